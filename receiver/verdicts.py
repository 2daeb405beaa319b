"""`Verdict`: the answer to one request; refusals become one here, and are logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus

from pushkit.clock import utc_now
from pushkit.errors import InboundError
from pushkit.events import Listeners, NotificationRefused
from pushkit.logs import RepeatedLog, printable
from receiver.inbox import BacklogFullError, InboxFullError
from receiver.limits import RateLimitedError
from receiver.peers import rate_key
from receiver.replay import BeingStoredError

__all__ = ["Refusals", "Verdict"]

_log = logging.getLogger("receiver")

# A stranger may be refused a thousand times a second: so often does the log say so.
_STRANGERS_INTERVAL = timedelta(seconds=1)


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


_WITH_RETRY_AFTER = (RateLimitedError, BeingStoredError, BacklogFullError, InboxFullError)
_REFUSED = "refused %d %s peer=%s%s: %s"
_SHORT = {"delivery_id": "id"}


class Refusals:
    """Makes verdicts of refusals, and logs the reason of each.

    Of who is to come again (429, 503), the log says so once a minute for an address or a sender; of
    a stranger, who has proven nothing, once a second for a code. The lines say how many were left
    out. What else a sender was refused after its signature is always logged, for it names its task
    and delivery.

    Args:
        events: Who hears of every refusal.
        clock: Returns now, aware, in UTC.
    """

    def __init__(
        self, events: Listeners | None = None, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self._events = events or Listeners(_log)
        self._clock = clock
        self._come_again = RepeatedLog(_log)
        self._strangers = RepeatedLog(_log, interval=_STRANGERS_INTERVAL)

    def verdict(
        self,
        error: InboundError,
        *,
        peer: str,
        proven: Mapping[str, str | None] | None = None,
    ) -> Verdict:
        """Return the verdict that an error is, and log its reason.

        Args:
            error: The refusal.
            peer: The address that the request came from.
            proven: What the signature has shown before, for the log: sender, task, delivery id.
        """
        # The reason is for the log; the answer tells an outsider nothing about keys and tokens.
        self.note(error.status, error.code, peer=peer, reason=str(error), proven=proven)
        retry_after = None
        if isinstance(error, _WITH_RETRY_AFTER):
            retry_after = error.retry_after
        elif error.status == 503:
            retry_after = timedelta(seconds=5)
        return Verdict(status=error.status, code=error.code, retry_after=retry_after)

    def note(
        self,
        status: int,
        code: str,
        *,
        peer: str,
        reason: str,
        proven: Mapping[str, str | None] | None = None,
    ) -> None:
        """Log a refusal; the arguments are as above."""
        self.tell(status, code, peer=peer, proven=proven)
        known = {name: value for name, value in (proven or {}).items() if value is not None}
        about = "".join(f" {_SHORT.get(name, name)}={printable(known[name])}" for name in known)
        args = (status, code, peer, about, reason)
        facts = {"status": status, "code": code, "peer": peer, "reason": reason} | known
        if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            who = known.get("sender") or rate_key(peer)
            self._come_again.say((code, who), logging.WARNING, _REFUSED, *args, extra=facts)
        elif known:
            _log.warning(_REFUSED, *args, extra=facts)
        else:
            cause = (code, rate_key(peer))
            self._strangers.say(cause, logging.WARNING, _REFUSED, *args, extra=facts)

    def tell(
        self,
        status: int,
        code: str,
        *,
        peer: str,
        proven: Mapping[str, str | None] | None = None,
    ) -> None:
        """Tell of a refusal without a line in the log; the arguments are as above."""
        if self._events.wants(NotificationRefused.usual_level):
            known = proven or {}
            self._events.tell(
                NotificationRefused(
                    at=self._clock(),
                    sender=known.get("sender"),
                    task_id=known.get("task"),
                    delivery_id=known.get("delivery_id"),
                    status=status,
                    code=code,
                    peer=peer,
                )
            )
