"""`SignedAlertWebhook`: posts alerts to the operator's webhook, signed by Standard Webhooks.

A receiver has no outbox: an alert is tried for a minute; after that only the log has it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from pushkit.alerts import Alert, AlertCode, AlertSink
from pushkit.errors import AlertFailedError, ConfigError, TransportError
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import ConnectionOptions, Transport
from pushkit.scheduling.retry import persist
from pushkit.signing.standard_webhooks import read_signer, sign_webhook
from pushkit.version import __version__

_TIMEOUT: Final = timedelta(seconds=15)
_WITHIN: Final = timedelta(minutes=1)


class SignedAlertWebhook(AlertSink):
    """Posts alerts as JSON to a URL that the operator names; private addresses are allowed.

    Args:
        secret: The secret that signs them, `whsec_…` or `whsk_…`.

    Raises:
        ConfigError: The URL or the secret is malformed, or there is no secret.
    """

    name = "webhook"

    def __init__(
        self,
        url: str,
        secret: str | None,
        clock: Callable[[], datetime],
        connections: ConnectionOptions,
    ) -> None:
        if secret is None:
            raise ConfigError("alerts: webhook: expected a secret to sign with: webhook_secret")
        self._transport = Transport(DestinationPolicy.naming(url), connections)
        self._destination = self._transport.policy.check(url)
        self._signer = read_signer(secret)
        self._clock = clock

    def accepts(self, alert: Alert) -> bool:
        """Return whether it posts this alert: all but faults of the database."""
        return (alert.code, alert.about) != (AlertCode.HEALTH_FAULT, "storage")

    async def send(self, alert: Alert) -> None:
        """Post one alert; failures are retried for a minute.

        Raises:
            AlertFailedError: No attempt was answered 2xx.
        """
        body = json.dumps(alert.document(), default=str).encode()
        alert_id = f"alert_{uuid.uuid4().hex}"
        await persist(lambda: self._post(alert_id, body), through=AlertFailedError, within=_WITHIN)

    async def _post(self, alert_id: str, body: bytes) -> None:
        signed = sign_webhook(body, delivery_id=alert_id, now=self._clock(), signers=[self._signer])
        headers = [
            ("Content-Type", "application/json"),
            ("User-Agent", f"pushkit-receiver/{__version__}"),
            *signed,
        ]
        try:
            answer = await self._transport.post(self._destination, headers, body, timeout=_TIMEOUT)
        except TransportError as exc:
            raise AlertFailedError(f"webhook: {exc}") from exc
        if not 200 <= answer.status < 300:
            origin = self._destination.origin
            raise AlertFailedError(f"webhook: {origin} answered {answer.status}, expected 2xx")

    async def close(self) -> None:
        """Close its connections."""
        await self._transport.close()
