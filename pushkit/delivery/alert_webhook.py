"""`OutboxAlertWebhook`: sends alerts to the operator's webhook, through the same outbox.

It is a subscription like any other: signed, retried, shown by the same commands. Its owner has no
other subscription, so that it has its own fair share of the permits.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta

from pushkit.a2a import DataPart, Message, MessageUpdate, PushConfig, Role, TextPart, WireVersion
from pushkit.alerts import Alert, AlertCode, AlertSink
from pushkit.delivery.reporting import NotifyResult
from pushkit.errors import AlertFailedError
from pushkit.events import ALERTS_OWNER, ALERTS_TASK
from pushkit.outbox.model import IdempotencyKey


class OutboxAlertWebhook(AlertSink):
    """Sends alerts as messages of a task of their own: a text part, and the alert as a data part.

    Args:
        subscribe: `PushSender.subscribe`.
        notify: `PushSender.notify`.
        config: The webhook, and the token that it expects.
        every: The same alert is stored once in this time, by all processes together.
    """

    name = "webhook"

    def __init__(
        self,
        subscribe: Callable[..., Awaitable[object]],
        notify: Callable[..., Awaitable[NotifyResult]],
        config: PushConfig,
        *,
        every: timedelta,
    ) -> None:
        self._subscribe = subscribe
        self._notify = notify
        self._config = config
        self._every = every
        self._is_subscribed = False

    def accepts(self, alert: Alert) -> bool:
        """Return False for alerts which say that delivering may not work."""
        return alert.code not in {AlertCode.LOCAL_FAULT, AlertCode.HEALTH_FAULT}

    async def send(self, alert: Alert) -> None:
        """Store an alert for delivery.

        Raises:
            AlertFailedError: The backlog is full, or the subscription is disabled.
            PushkitError: The URL is refused, or the database is out of reach.
        """
        if not self._is_subscribed:
            await self._subscribe(
                ALERTS_TASK, self._config, version=WireVersion.V1_0, owner=ALERTS_OWNER
            )
            self._is_subscribed = True
        window = int(alert.at.timestamp() / self._every.total_seconds())
        name = f"{alert.code.value}/{alert.about}/{window}"
        # Two processes find the same alert with different facts: only the name is the same.
        key = IdempotencyKey(key=name, update_sha256="")
        result = await self._notify(_message(alert, name), idempotency_key=key)
        for refused in result.refused:
            raise AlertFailedError(refused.message)
        if result.for_nobody:
            command = f"pushkit subscriptions enable --task {ALERTS_TASK}"
            raise AlertFailedError(f"its subscription is disabled: enable it with `{command}`")


def _message(alert: Alert, name: str) -> MessageUpdate:
    data: Mapping[str, object] = json.loads(json.dumps(alert.document(), default=str))
    return MessageUpdate(
        message=Message(
            message_id=f"alert/{name}",
            role=Role.AGENT,
            parts=(TextPart(text=alert.says), DataPart(data=data)),  # type: ignore[arg-type]  # it was JSON
            task_id=ALERTS_TASK,
        )
    )
