"""`Verdict`: the answer to one request; refusals become one here, and are logged."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from pushkit.errors import InboundError
from receiver.limits import RateLimitedError
from receiver.replay import BeingStoredError
from receiver.selection import printable

__all__ = ["Verdict", "refusal"]

_log = logging.getLogger("receiver")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer to one request.

    Attributes:
        status: The HTTP status.
        code: `accepted`, `duplicate`, or the stable code of the refusal.
        retry_after: For 429 and 503.
        notification_id: Of a notification that was accepted now; None otherwise.
    """

    status: int
    code: str
    retry_after: timedelta | None = None
    notification_id: int | None = None

    @property
    def refused(self) -> bool:
        """Whether the sender gets a problem instead of a thank-you."""
        return self.status >= 400


_SHORT = {"delivery_id": "id"}


def refusal(
    error: InboundError, *, peer: str, proven: Mapping[str, str | None] | None = None
) -> Verdict:
    """Return the verdict that an error is, and log its reason.

    Args:
        error: The refusal.
        peer: The address that the request came from.
        proven: What the signature has shown before, for the log: sender, task, delivery id.
    """
    # The reason is for the log; the answer tells an outsider nothing about keys and tokens.
    known = {name: value for name, value in (proven or {}).items() if value is not None}
    facts = {"status": error.status, "code": error.code, "peer": peer, "reason": str(error)}
    about = "".join(f" {_SHORT.get(name, name)}={printable(known[name])}" for name in known)
    _log.warning(
        "refused %d %s peer=%s%s: %s",
        *(error.status, error.code, peer, about, error),
        extra=facts | known,
    )
    retry_after = None
    if isinstance(error, RateLimitedError | BeingStoredError):
        retry_after = error.retry_after
    elif error.status == 503:
        retry_after = timedelta(seconds=5)
    return Verdict(status=error.status, code=error.code, retry_after=retry_after)
