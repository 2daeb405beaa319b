"""What failed on this side before there was a request: its code, and where it happened.

Such a fault is not the webhook's. Whoever runs the sender must hear of it, but not a thousand times
a minute, and not in the words of an exception that is not ours: those may hold a secret.
"""

from __future__ import annotations

import logging
import traceback
from typing import Final

from pushkit.errors import PushkitError
from pushkit.logs import RepeatedLog

UNEXPECTED: Final = "unexpected_error"


def code_of(exc: Exception) -> str:
    """Return the code of a fault: the error's own, or the one of what nobody expected."""
    return exc.code if isinstance(exc, PushkitError) else UNEXPECTED


class LocalFaults:
    """Tells of faults in a log, with their traceback, once per cause and minute."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = RepeatedLog(log)

    def tell(self, delivery_id: str, exc: Exception) -> None:
        """Tell of a fault that kept a delivery from being attempted."""
        self._log.say(
            (code_of(exc), type(exc)),
            logging.ERROR,
            "delivery %s: not sent, by no fault of its webhook (%s); it is tried again\n%s",
            delivery_id,
            code_of(exc),
            _told(exc),
            extra={"code": code_of(exc), "delivery_id": delivery_id},
        )


def _told(exc: BaseException) -> str:
    """Return the traceback of an exception and its causes; without the words of foreign ones."""
    cause = exc.__cause__ or exc.__context__
    # Without the lines of code: what is written in them may be a secret, too.
    frames = "\n".join(
        f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}'
        for frame in traceback.extract_tb(exc.__traceback__)
    )
    words = f": {exc}" if isinstance(exc, PushkitError) else ""
    told = f"Traceback (most recent call last):\n{frames}\n{type(exc).__name__}{words}"
    return f"{_told(cause)}\n\n{told}" if cause is not None else told
