"""Hears all that is said, and looks for what nobody may learn from it, and for bugs of ours.

Everything secret in a world has the canary in it: tokens, credentials, the DSN's password, bodies.
Signed tokens are known by their shape.
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
    """Listens to the log, and is shown what else is said.

    Args:
        found: Told where something was, and what was said there.

    Attributes:
        lines: How many lines of log there were.
    """

    def __init__(self, found: Callable[[str], None]) -> None:
        super().__init__()
        self._found = found
        self.lines = 0

    def look_at(self, where: str, said: str) -> None:
        """Look for secrets in what somebody said."""
        if _SECRET.search(said):
            self._found(f"a secret is in {where}: {said}")

    def emit(self, record: logging.LogRecord) -> None:
        """Look at a line of log: its text, its facts, and the errors that come with it."""
        self.lines += 1
        said = [record.getMessage()]
        said += [str(v) for k, v in vars(record).items() if k not in _ORDINARY]
        error = record.exc_info[1] if record.exc_info else None
        while error is not None:
            said.append(f"{type(error).__name__}: {error}")
            error = error.__cause__ or error.__context__
        self.look_at(f"the log of {record.name}", " ".join(said))
        if "failed unexpectedly" in said[0]:  # nothing that a world does to us is unexpected
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
