"""Logging of the services to standard error, as lines for people or JSON objects."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from enum import StrEnum

_TEXT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"
# The attributes of every record; others were given as `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LogFormat(StrEnum):
    """The format of a log."""

    TEXT = "text"
    JSON = "json"


def log_to_stderr(*, verbose: bool, log_format: LogFormat) -> None:
    """Log warnings and errors to standard error; with `verbose`, also information."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if log_format is LogFormat.JSON else logging.Formatter(_TEXT))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    # aiohttp logs malformed requests with a traceback that quotes them.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)


class JsonLines(logging.Formatter):
    """Writes one JSON object a line: time, level, logger, process, message and the `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for a record."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        facts = {k: v for k, v in vars(record).items() if k not in _STANDARD and k not in line}
        try:
            return json.dumps(line | facts, default=str, allow_nan=False)
        except (TypeError, ValueError):  # of an application: NaN, keys of other types, cycles
            return json.dumps(line | {name: str(value) for name, value in facts.items()})
