"""CrewAI for clients: the `result_store` of its push notifications, over `Receiver.wait`.

    PushNotificationConfig(url=..., token=..., result_store=ReceiverResults(receiver))

CrewAI speaks A2A 0.3, and hands the same token to all tasks.
"""

from __future__ import annotations

import asyncio
from typing import Any

from pushkit.a2a import WireVersion, push_body
from receiver.inbox.model import Notification
from receiver.receiver import Receiver

_AT_ONCE = 0.5  # seconds, to read the inbox


class ReceiverResults:
    """CrewAI's `PushNotificationResultStore`.

    Args:
        receiver: The receiver that the agent pushes to. It must be served, by this process or by
            another one with the same inbox.
        sender: The name of the agent among the trusted senders; optional if there is only one.
        loop: The event loop of the receiver, which may run in another thread than the crew; by
            default the one that runs now, or else the one in which the crew waits.
    """

    def __init__(
        self,
        receiver: Receiver,
        *,
        sender: str | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._receiver = receiver
        self._sender = sender
        self._loop = loop or _running_loop()

    async def wait_for_result(
        self,
        task_id: str,
        timeout: float,  # noqa: ASYNC109  # as CrewAI has it
        poll_interval: float = 1.0,  # noqa: ARG002
    ) -> Any:
        """Return the SDK's task once it has stopped, past ones included; None after the time-out.

        Nothing is polled.
        """
        waiting = self._receiver.wait(task_id, timeout=timeout, sender=self._sender)
        try:
            if self._loop in (None, asyncio.get_running_loop()):
                return _task_of(await waiting)
            elsewhere = asyncio.run_coroutine_threadsafe(waiting, self._loop)
            return _task_of(await asyncio.wrap_future(elsewhere))
        except TimeoutError:
            return None

    async def get_result(self, task_id: str) -> Any:
        """Return the SDK's task if it has stopped; None otherwise."""
        return await self.wait_for_result(task_id, timeout=_AT_ONCE)

    async def store_result(self, task: Any) -> None:
        """Do nothing: the receiver has stored it."""


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _task_of(notification: Notification) -> Any:
    from a2a.types import Task  # of a2a-sdk 0.3, which CrewAI brings

    whole: Any = Task
    return whole.model_validate_json(push_body(notification.update, WireVersion.V0_3))
