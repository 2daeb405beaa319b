"""a2a-sdk 1.x for clients: send a message, and await the agent's push notifications.

    push = PushClient(client, receiver, sender="agent")
    task = await push.send("Please count.")          # returns as soon as the task has an id
    done = await task.wait(timeout=3600)             # returns once it is done, or needs input

The push config is filled in, with a new token. Notifications that arrive before `wait()` are not
missed, and another process with the same inbox can wait for the same task.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Collection
from datetime import timedelta

from a2a.client import Client
from a2a.helpers import new_text_message
from a2a.types import a2a_pb2

from pushkit.a2a import TaskState
from pushkit.errors import PushkitError
from receiver.callbacks.waiting import has_stopped
from receiver.inbox.model import Notification
from receiver.receiver import Receiver


class NoTaskError(PushkitError, code="no_task"):
    """The agent answered with a message and opened no task to wait for."""


class PushClient:
    """Sends messages whose updates arrive as push notifications.

    Args:
        client: The SDK's client; the caller closes it. Make it with `streaming=False`: a stream is
            closed after its first answer, and agents of a2a-sdk 0.3 then push no more updates.
        receiver: The receiver that the agent pushes to. It must be served, by this process or by
            another one with the same inbox.
        sender: The name of the agent among the trusted senders; optional if there is only one.
        expires_in: How long a message's token is valid; None for the receiver's
            `retention.expected`, by default 90 days.
    """

    def __init__(
        self,
        client: Client,
        receiver: Receiver,
        *,
        sender: str | None = None,
        expires_in: timedelta | None = None,
    ) -> None:
        self.receiver = receiver
        self.sender = sender
        self._client = client
        self._expires_in = expires_in

    async def send(self, message: str | a2a_pb2.Message) -> SentMessage:
        """Send a message, and return once the agent has named the task.

        Args:
            message: A text, or the SDK's message.

        Raises:
            A2AError: The SDK's; the token is withdrawn then.
        """
        expected = await self.receiver.expect(self.sender, expires_in=self._expires_in)
        config = a2a_pb2.TaskPushNotificationConfig(
            url=expected.config.url, token=expected.config.token
        )
        try:
            answer = await self._send(_as_message(message), config)
        except BaseException:
            await self._forget(expected.config.token)
            raise
        if answer.HasField("message"):
            await self._forget(expected.config.token)
        return SentMessage(self, answer, token=expected.config.token)

    async def reply(self, message: a2a_pb2.Message) -> a2a_pb2.StreamResponse:
        """Send a message for a task whose updates are already pushed."""
        return await self._send(message, None)

    async def _send(
        self, message: a2a_pb2.Message, config: a2a_pb2.TaskPushNotificationConfig | None
    ) -> a2a_pb2.StreamResponse:
        """Send, and return the first answer; a stream is closed, but the task continues."""
        configuration = a2a_pb2.SendMessageConfiguration(
            return_immediately=True, task_push_notification_config=config
        )
        request = a2a_pb2.SendMessageRequest(message=message, configuration=configuration)
        answers = self._client.send_message(request)
        async for answer in answers:
            if isinstance(answers, AsyncGenerator):
                await answers.aclose()
            return answer
        raise NoTaskError("the agent ended its stream without an answer")

    async def _forget(self, token: str | None) -> None:
        await self.receiver.unregister(self.sender, token=token)


class SentMessage:
    """A message that was sent, and its task.

    Attributes:
        task_id: The task that the agent opened; None if it answered with a message.
        message: The agent's message, if it answered with one.
    """

    def __init__(
        self, client: PushClient, answer: a2a_pb2.StreamResponse, *, token: str | None
    ) -> None:
        self._client = client
        self._token = token
        self.task_id: str | None
        self._context_id, self.task_id = _ids(answer)
        self.message: a2a_pb2.Message | None = (
            answer.message if answer.HasField("message") else None
        )

    async def wait(
        self,
        *,
        until: Collection[TaskState] | Callable[[Notification], bool] = has_stopped,
        timeout: timedelta | float | None = None,  # noqa: ASYNC109  # as `Receiver.wait` has it
        after: Notification | None = None,
    ) -> Notification:
        """Return the first update that is wanted; see `Receiver.wait`.

        Raises:
            NoTaskError: The agent answered with a message; see `message`.
            TimeoutError: No such update arrived in time.
        """
        return await self._client.receiver.wait(
            self._task(), until=until, timeout=timeout, after=after, sender=self._client.sender
        )

    async def updates(self) -> AsyncGenerator[Notification, None]:
        """Yield every update, from the first to a terminal state.

        Raises:
            NoTaskError: The agent answered with a message; see `message`.
        """
        found = self._client.receiver.updates(self._task(), sender=self._client.sender)
        async with contextlib.aclosing(found) as updates:
            async for notification in updates:
                yield notification

    async def reply(self, message: str | a2a_pb2.Message) -> None:
        """Answer the agent's question; then wait with `after=` the update that asked it.

        Raises:
            NoTaskError: There is no task.
            A2AError: The SDK's.
        """
        answer = _as_message(message)
        answer.task_id, answer.context_id = self._task(), self._context_id
        await self._client.reply(answer)

    async def forget(self) -> None:
        """Accept no more updates with this message's token; those in the inbox stay."""
        await self._client.receiver.unregister(self._client.sender, token=self._token)

    def _task(self) -> str:
        if self.task_id is None:
            raise NoTaskError("the agent answered with a message, and opened no task")
        return self.task_id


def _as_message(message: str | a2a_pb2.Message) -> a2a_pb2.Message:
    if isinstance(message, str):
        return new_text_message(message, role=a2a_pb2.Role.ROLE_USER)
    copy = a2a_pb2.Message()
    copy.CopyFrom(message)
    return copy


def _ids(answer: a2a_pb2.StreamResponse) -> tuple[str, str | None]:
    kind = answer.WhichOneof("payload")
    if kind == "task":
        return answer.task.context_id, answer.task.id
    if kind == "status_update":
        return answer.status_update.context_id, answer.status_update.task_id
    if kind == "artifact_update":
        return answer.artifact_update.context_id, answer.artifact_update.task_id
    return "", None
