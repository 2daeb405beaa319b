"""Forwards: callbacks that hand a notification to something outside this program.

To an HTTP URL on the inside, to a Redis stream, or to a command's standard input. The body goes as
it was signed, byte for byte; beside it goes what was verified of it. Each forward is a callback:
its state is its own and durable, it is retried with back-off, and what keeps failing is a dead
letter. At least once: a receiver that dies before it has noted the success forwards again, with the
same idempotency key.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol
from urllib.parse import quote

from pushkit.errors import PushkitError
from receiver.inbox.model import Notification

# Visible ASCII but for the percent sign: a header, a variable and a log line can hold it.
_PLAIN = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")


class ForwardFailedError(PushkitError, code="forward_failed"):
    """What a notification was forwarded to did not take it. It is tried again."""


class Forward(Protocol):
    """Hands notifications on."""

    @property
    def name(self) -> str:
        """Stable across restarts: the inbox remembers who had what. Without secrets."""
        ...

    async def send(self, notification: Notification) -> None:
        """Hand one on; return once it is taken.

        Raises:
            ForwardFailedError: It was not taken.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


def facts_of(notification: Notification) -> dict[str, str]:
    """Return what was verified, by names in kebab case; facts that there are none of are left out.

    What a sender wrote is percent-encoded where it is not visible ASCII, so that it forges neither
    a header nor a line.
    """
    facts: dict[str, object | None] = {
        "sender": notification.sender,
        "delivery-id": notification.delivery_id,
        "task-id": notification.task_id,
        "config-id": notification.config_id,
        "kid": notification.kid,
        "kind": notification.kind.value,
        "state": notification.state.value if notification.state else None,
        "seq": notification.seq,
        "missing": notification.missing,
        "late": str(notification.late).lower(),
        "issued-at": _moment(notification.issued_at),
        "received-at": _moment(notification.received_at),
    }
    return {name: encoded(str(fact)) for name, fact in facts.items() if fact is not None}


def encoded(text: str) -> str:
    """Return a text in visible ASCII, the rest percent-encoded."""
    return quote(text, safe=_PLAIN, errors="surrogatepass")


def _moment(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
