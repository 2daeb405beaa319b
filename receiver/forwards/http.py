"""Forwarding to an HTTP URL on the inside."""

from __future__ import annotations

from datetime import timedelta

from pushkit.errors import ConfigError, TransportError
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import Transport
from pushkit.version import __version__
from receiver.forwards.forward import ForwardFailedError, encoded, facts_of
from receiver.inbox.model import Notification

_TIMEOUT = timedelta(seconds=30)


class HttpForward:
    """Posts each notification to a URL; any 2xx has taken it.

    The connection goes to this URL's host and port alone, and follows no redirect.

    Args:
        url: Where to. The operator names it: `http` and addresses of the inside are allowed.
        timeout: For one attempt in total.

    Raises:
        ConfigError: Not a URL.
    """

    def __init__(self, url: str, *, timeout: timedelta = _TIMEOUT) -> None:
        try:
            self._transport = Transport(DestinationPolicy.naming(url))
        except ConfigError as exc:
            raise ConfigError(
                "forward: expected an absolute http or https URL, without user name or fragment"
            ) from exc
        self._destination = self._transport.policy.check(url)
        self._timeout = timeout
        # Without the query, which may hold a secret.
        path = self._destination.url.target.partition("?")[0]
        self.name: str = f"forward:{self._destination.origin}{path}"

    async def send(self, notification: Notification) -> None:
        """Post one.

        Raises:
            ForwardFailedError: No answer, or another one than 2xx.
        """
        try:
            answer = await self._transport.post(
                self._destination, _headers(notification), notification.body, timeout=self._timeout
            )
        except TransportError as exc:
            raise ForwardFailedError(str(exc)) from exc
        if not 200 <= answer.status < 300:
            raise ForwardFailedError(
                f"{self._destination.origin} answered {answer.status}, expected 2xx"
            )

    async def close(self) -> None:
        """Close its connections."""
        await self._transport.close()


def _headers(notification: Notification) -> list[tuple[str, str]]:
    facts = facts_of(notification)
    return [
        ("Content-Type", "application/json"),
        ("User-Agent", f"pushkit-receiver/{__version__}"),
        ("Idempotency-Key", encoded(notification.idempotency_key)),
        *((f"Receiver-{name.title()}", fact) for name, fact in facts.items()),
    ]
