"""The methods' operations, independent of protocol versions: set, get, list and delete configs."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from inspect import isawaitable
from typing import TypeAlias

from pushkit.a2a import PushConfig, WireVersion
from pushkit.delivery.sender import PushSender
from pushkit.errors import PushkitError
from pushkit.integrations.config_errors import config_errors
from pushkit.integrations.push_config_api.errors import ApiError, ErrorKind
from pushkit.logs import RepeatedLog
from pushkit.subscriptions.model import Subscription

_log = logging.getLogger("pushkit.push_config_api")

_MAX_ID_CHARS = 512
_MAX_PAGE_SIZE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The client that makes a call."""

    owner: str  # the client's name, by the agent's own authentication
    tenant: str = ""  # the tenant that the call names; empty before 1.0


TaskCheck: TypeAlias = Callable[[Caller, str], bool | Awaitable[bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some of an owner's configs, and the token of the next page, if there is one."""

    configs: list[PushConfig]
    next_page_token: str = ""


class Configs:
    """One owner's configs of a task. Returned configs never contain a secret.

    Without a sender, push notifications are not supported. `task_exists` returns whether a task
    exists that this caller may follow.
    """

    def __init__(self, sender: PushSender | None, task_exists: TaskCheck | None) -> None:
        self._sender = sender
        self._task_exists = task_exists
        self._faults = RepeatedLog(_log)

    async def put(
        self, caller: Caller, task_id: str, config: PushConfig, version: WireVersion
    ) -> PushConfig:
        """Register a config, or change the one with the same id."""
        sender = await self._sender_for(caller, task_id)
        with config_errors(self._faults, _api_error):
            subscription = await sender.subscribe(
                task_id, config, version=version, owner=caller.owner, tenant=caller.tenant
            )
        return _as_read(subscription)

    async def get(self, caller: Caller, task_id: str, config_id: str | None) -> PushConfig | None:
        """Return a config; None if there is none.

        Without an id, that is the config registered without one, whose id is the task's, or else
        the oldest.
        """
        found = await self._of_caller(caller, task_id, config_id)
        chosen = [each for each in found if each.key.config_id == task_id] or found
        return _as_read(chosen[0]) if chosen else None

    async def all(self, caller: Caller, task_id: str) -> list[PushConfig]:
        """Return all configs, the oldest first."""
        return [_as_read(each) for each in await self._of_caller(caller, task_id)]

    async def page(self, caller: Caller, task_id: str, *, size: int = 0, token: str = "") -> Page:
        """Return the page of configs after `token`, by id; size 0 means the longest page."""
        if size < 0:
            raise ApiError(ErrorKind.PARAMS, "pageSize: expected 0 or more")
        after = _read_page_token(token) if token else ""
        found = await self._of_caller(caller, task_id)
        rest = sorted(
            (each for each in found if each.key.config_id > after), key=lambda s: s.key.config_id
        )
        size = min(size or _MAX_PAGE_SIZE, _MAX_PAGE_SIZE)
        configs = [_as_read(each) for each in rest[:size]]
        more = len(rest) > size
        return Page(
            configs=configs,
            next_page_token=_page_token(rest[size - 1].key.config_id) if more else "",
        )

    async def remove(self, caller: Caller, task_id: str, config_id: str) -> None:
        """Remove a config, if it exists, and cancel its unfinished deliveries."""
        sender = await self._sender_for(caller, task_id)
        _check_id("id", config_id)
        with config_errors(self._faults, _api_error):
            await sender.unsubscribe(task_id, config_id, owner=caller.owner, tenant=caller.tenant)

    async def _of_caller(
        self, caller: Caller, task_id: str, config_id: str | None = None
    ) -> list[Subscription]:
        sender = await self._sender_for(caller, task_id)
        with config_errors(self._faults, _api_error):
            return await sender.subscriptions(
                task_id, config_id, owner=caller.owner, tenant=caller.tenant
            )

    async def _sender_for(self, caller: Caller, task_id: str) -> PushSender:
        """Check that a caller may set configs of a task, and return the sender."""
        if self._sender is None:
            raise ApiError(ErrorKind.PUSH)
        _check_id("task id", task_id)
        if caller.tenant:
            _check_id("tenant", caller.tenant)
        if self._task_exists is not None:
            answer = self._task_exists(caller, task_id)
            if not (await answer if isawaitable(answer) else answer):
                raise ApiError(ErrorKind.TASK)
        return self._sender


def _api_error(error: PushkitError | None) -> ApiError:
    return ApiError(ErrorKind.PARAMS, str(error)) if error else ApiError(ErrorKind.INTERNAL)


def _check_id(name: str, value: str) -> None:
    if not value or len(value) > _MAX_ID_CHARS or not value.isprintable():
        raise ApiError(
            ErrorKind.PARAMS,
            f"{name}: expected 1 to {_MAX_ID_CHARS} printable characters, found {len(value)}",
        )


def _as_read(subscription: Subscription) -> PushConfig:
    """Return the config as a client may read it: without token and credentials.

    Answers are logged and cached, and the client that registered the secrets has them.
    """
    return replace(
        subscription.config,
        id=subscription.key.config_id,
        task_id=subscription.key.task_id,
        tenant=subscription.key.tenant or None,
    )


def _page_token(config_id: str) -> str:
    return base64.urlsafe_b64encode(config_id.encode()).decode().rstrip("=")


def _read_page_token(token: str) -> str:
    try:
        padded = token + "=" * (-len(token) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as exc:
        raise ApiError(ErrorKind.PARAMS, "pageToken: expected one of a page before") from exc
