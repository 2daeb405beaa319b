"""`Expecting`: hands out what an agent needs to push, and waits for the updates of its tasks."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import inspect
import secrets
from collections.abc import AsyncGenerator, Callable, Collection
from dataclasses import replace
from datetime import datetime, timedelta

from pushkit.a2a import Authentication, PushConfig, TaskState, WireVersion, format_push_config
from pushkit.bounded_json import JsonObject
from pushkit.errors import ConfigError
from pushkit.options import check_duration, check_each, check_type
from pushkit.record import record
from pushkit.webhook import hash_credentials, hash_token
from receiver.callbacks.waiting import has_ended, has_stopped, in_states
from receiver.inbox.model import Notification
from receiver.registrations import Registration, register, replace_token, unregister
from receiver.runtime import Runtime
from receiver.senders import TrustedSender, choose_sender

OVERLAP = timedelta(hours=1)
_MINTED = frozenset({"apikey", "basic", "bearer"})


@record(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The result of `expect()`."""

    sender: str  # the name of the trusted sender that may use it
    config: PushConfig  # for that agent, with URL and token
    version: WireVersion  # the A2A version in which `as_json` writes it

    def as_json(self) -> JsonObject:
        """Return the config object in its A2A version."""
        return format_push_config(self.config, self.version)


class Expecting(Runtime):
    """Hands out tokens for the tasks that a receiver expects, and waits for their updates."""

    url: str
    _clock: Callable[[], datetime]

    async def expect(
        self,
        sender: str | None = None,
        *,
        task_id: str | None = None,
        version: WireVersion | str = WireVersion.V1_0,
        expires_in: timedelta | None = None,
        authentication: str | None = None,
        replaces: str | None = None,
        overlap: timedelta = OVERLAP,
    ) -> Expectation:
        """Mint a token for a task, and return the push config to hand to the agent.

        Args:
            sender: Which trusted sender; may be left out if there is only one.
            task_id: The task, if it is known already; not with `replaces`.
            version: The A2A version that the agent speaks.
            expires_in: How long the token is valid; None for the receiver's `retention.expected`,
                by default 90 days.
            authentication: Also mint credentials of this scheme (`Bearer`, `Basic` or `ApiKey`),
                which the agent must then send: an agent that ignores the config's `authentication`
                is refused.
            replaces: A token that was handed out before; the new one is for the same task.
            overlap: For how long the replaced token stays valid.

        Raises:
            ConfigError: The sender, version or scheme is unknown, the version has no tokens or
                credentials although they are needed, `expires_in` is not positive, or the token to
                replace is not valid.
            StorageError: This receiver was closed.
        """
        trusted, now, token = self._sender(sender), self._clock(), mint_token()
        check_each(str | None, task_id=task_id, authentication=authentication, replaces=replaces)
        if task_id == "":  # no notification has such a task
            raise ConfigError("task_id: found an empty string, expected a task, or None for any")
        if replaces is not None and task_id is not None:
            raise ConfigError(
                "task_id: a token that replaces another has its task; leave task_id out"
            )
        wire_version = WireVersion.parse(str(version))
        if wire_version is WireVersion.AGENTVAULT_0_2:
            _check_expected_by_task(trusted, task_id, authentication)
        minted = mint_authentication(authentication) if authentication else None
        registration = Registration(
            sender=trusted.name,
            expectation=mint_token(),
            token_sha256=hash_token(token),
            credentials_sha256=(
                hash_credentials(f"{minted.scheme} {minted.credentials}") if minted else None
            ),
            task_id=task_id,
            created_at=now,
            expires_at=self._end(now, expires_in),
        )
        check_type("overlap", overlap, timedelta)
        await self._ask()
        write = self._database.write
        if replaces is None:
            await write(register(registration))
        else:
            _moment("overlap", now, overlap)
            replacing = replace_token(hash_token(replaces), registration, overlap=overlap)
            task_id = await write(replacing)
        config = PushConfig(
            url=f"{self.url}{trusted.path}", token=token, task_id=task_id, authentication=minted
        )
        return Expectation(sender=trusted.name, config=config, version=wire_version)

    async def unregister(
        self, sender: str | None = None, *, token: str | None = None, task_id: str | None = None
    ) -> int:
        """Withdraw the registrations of a token or a task; return how many there were.

        Args:
            sender: Which trusted sender; may be left out if there is only one.
            token: The token of the registration.
            task_id: Or the task of the registrations.

        Raises:
            ConfigError: Neither token nor task is given, or one is no string.
            StorageError: This receiver was closed.
        """
        check_each(str | None, token=token, task_id=task_id)
        if token is None and task_id is None:
            raise ConfigError("unregister: expected a token or a task_id, found neither")
        await self._ask()
        return await self._database.write(
            unregister(
                sender=self._sender(sender).name, token=token, task_id=task_id, now=self._clock()
            )
        )

    async def wait(
        self,
        task_id: str,
        *,
        until: Collection[TaskState] | Callable[[Notification], bool] = has_stopped,
        timeout: timedelta | float | None = None,  # noqa: ASYNC109  # part of the promise
        after: Notification | None = None,
        sender: str | None = None,
    ) -> Notification:
        """Return the first notification of a task that matches, past ones included.

            asked = await receiver.wait(task_id, timeout=3600)       # input-required, say
            ...                                                      # answer the agent
            done = await receiver.wait(task_id, after=asked, timeout=3600)

        Args:
            task_id: The task.
            until: States, or a predicate (a plain function); by default a state in which the agent
                stops by itself: terminal, input-required, auth-required, or unknown but `final`.
            timeout: A timedelta or seconds; None waits for ever.
            after: Only notifications after this one.
            sender: The sender of the task; may be left out if there is only one.

        Raises:
            TimeoutError: No such notification arrived in time.
            ConfigError: The state or sender is unknown, or an argument has a wrong type.
            StorageError: This receiver was closed, before or during the wait.
        """
        check_type("task_id", task_id, str)
        check_type("timeout", timeout, timedelta | float | int | None)
        check_type("after", after, Notification | None)
        if inspect.iscoroutinefunction(until):  # its coroutine would be true, and never awaited
            raise ConfigError("until: found a coroutine function, expected a plain one, or states")
        wanted = until if callable(until) else in_states(until)
        await self._listen()
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        arrivals = self._arrivals.updates(
            task_id, sender=self._sender(sender).name, after=after.id if after else 0
        )
        async with asyncio.timeout(seconds), contextlib.aclosing(arrivals) as updates:
            async for notification in updates:
                if wanted(notification):
                    return await self._with_verdicts_on_data(notification)
        raise AssertionError("updates() ended")  # it has no end

    async def updates(
        self, task_id: str, *, sender: str | None = None
    ) -> AsyncGenerator[Notification, None]:
        """Yield a task's notifications, until a terminal state, or an unknown one that is `final`.

        Raises:
            ConfigError: The sender is unknown, or the task is no string.
            StorageError: This receiver was closed, before or during the iteration.
        """
        check_type("task_id", task_id, str)
        await self._listen()
        arrivals = self._arrivals.updates(task_id, sender=self._sender(sender).name)
        async with contextlib.aclosing(arrivals) as updates:
            async for notification in updates:
                yield await self._with_verdicts_on_data(notification)
                if has_ended(notification):
                    return

    def _sender(self, name: str | None) -> TrustedSender:
        return choose_sender(name, self.trust.senders.values(), setting="sender")

    async def _with_verdicts_on_data(self, notification: Notification) -> Notification:
        sender = self.trust.senders.get(notification.sender)
        if sender is None or sender.schemas is None:
            return notification
        from pushkit.schemas import check_structured_data_apart

        found = await check_structured_data_apart(notification.update, sender.schemas)
        return replace(notification, data=tuple(found))

    def _end(self, now: datetime, expires_in: timedelta | None) -> datetime | None:
        """Return when a new token expires; None for never."""
        if expires_in is None:
            expires_in = self._retention.expected
        if expires_in is None:
            return None
        check_duration("expires_in", expires_in)
        return _moment("expires_in", now, expires_in)


def _moment(setting: str, since: datetime, within: timedelta) -> datetime:
    try:
        return since + within
    except OverflowError as exc:
        raise ConfigError(f"{setting}: found {within}, which ends beyond the calendar") from exc


def _check_expected_by_task(
    sender: TrustedSender, task_id: str | None, authentication: str | None
) -> None:
    """Refuse a registration that needs more than a task: AgentVault's config is a URL alone."""
    carries = "since AgentVault's config carries no"
    if task_id is None:
        raise ConfigError(f"task_id: expected one, {carries} token")
    if authentication is not None:
        raise ConfigError(f"authentication: expected none, {carries} credentials")
    if sender.token_required:
        raise ConfigError(
            f"sender {sender.name!r}: token_required: expected false, {carries} token"
        )


def mint_token() -> str:
    """Return a fresh token: 256 random bits, URL-safe."""
    return secrets.token_urlsafe(32)


def mint_authentication(scheme: str) -> Authentication:
    """Return fresh credentials of a scheme, for the agent's push config.

    Args:
        scheme: `Bearer`, `Basic` or `ApiKey`, in the case that the agent wants to read.

    Raises:
        ConfigError: Another scheme.
    """
    secret = mint_token()
    if scheme.lower() not in _MINTED:
        raise ConfigError("authentication: expected Bearer, Basic or ApiKey")
    if scheme.lower() == "basic":  # RFC 7617 §2: already encoded, as the agent writes it verbatim
        secret = base64.b64encode(f"a2a:{secret}".encode()).decode()
    return Authentication(schemes=(scheme,), credentials=secret)
