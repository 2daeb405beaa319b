"""Searches log lines, events, errors and answers for secrets, and the log for unexpected errors.

Every secret of a world contains the canary: tokens, credentials, the DSN's password, bodies. Signed
tokens and private keys are recognized by their form.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Callable
from typing import Final

__all__ = ["CANARY", "WEBHOOK_SECRET", "Secrets"]

CANARY: Final = "c4n4ry"
WEBHOOK_SECRET: Final = (
    "whsec_" + base64.b64encode(f"{CANARY}: of 32 bytes or so".encode()).decode()
)

_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
_SECRET = re.compile(
    rf"{CANARY}|{re.escape(WEBHOOK_SECRET[6:14])}|eyJ[\w-]{{16,}}\.[\w-]{{16,}}|PRIVATE KEY|\"d\":"
)


class Secrets(logging.Handler):
    """A log handler that searches for secrets; other texts are passed to `check`.

    Args:
        found: Called with a description of each finding.

    Attributes:
        lines: The number of log lines.
    """

    def __init__(self, found: Callable[[str], None]) -> None:
        super().__init__()
        self._found = found
        self.lines = 0

    def check(self, where: str, said: str) -> None:
        """Search a text for secrets."""
        if _SECRET.search(said):
            self._found(f"a secret is in {where}: {said}")

    def emit(self, record: logging.LogRecord) -> None:
        """Search a log record: its text, its attributes, and its exceptions."""
        self.lines += 1
        said = [record.getMessage()]
        said += [str(v) for k, v in vars(record).items() if k not in _ORDINARY]
        error = record.exc_info[1] if record.exc_info else None
        while error is not None:
            said.append(f"{type(error).__name__}: {error}")
            error = error.__cause__ or error.__context__
        self.check(f"the log of {record.name}", " ".join(said))
        if "failed unexpectedly" in said[0]:  # every simulated fault is an expected one
            self._found(f"{record.name}: {' '.join(said)}")

    def __enter__(self) -> Secrets:
        self._levels = {name: logging.getLogger(name).level for name in _LOUD}
        for name in _LOUD:
            logging.getLogger(name).setLevel(logging.DEBUG)
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)


_LOUD = ("pushkit", "receiver")
