"""What the services log to standard error: lines for people, or JSON objects for machines."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from enum import StrEnum

_TEXT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"
# What every record has; the rest was given as `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LogFormat(StrEnum):
    """How a log is written."""

    TEXT = "text"
    JSON = "json"


def log_to_stderr(*, verbose: bool, log_format: LogFormat) -> None:
    """Log warnings and errors, and with `verbose` what went well, to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if log_format is LogFormat.JSON else logging.Formatter(_TEXT))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    # Its tracebacks are of requests that are no HTTP, with the stranger's text in them.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)


class JsonLines(logging.Formatter):
    """One JSON object a line: `time`, `level`, `logger`, `process`, `message`, and the facts."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
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
        except (TypeError, ValueError):  # an application's: NaN, keys of other types, loops
            return json.dumps(line | {name: str(value) for name, value in facts.items()})
