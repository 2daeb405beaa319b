"""Which callback gets which notification."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pushkit.a2a import decode_update
from pushkit.errors import ConfigError
from receiver import Notification, TaskState, UpdateKind
from receiver.callbacks.registry import CallbackRegistry

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def notification(body: bytes, sender: str = "agent") -> Notification:
    update = decode_update(body)
    return Notification(
        id=1,
        idempotency_key=f"{sender}:delivery-1",
        sender=sender,
        kid="key-1",
        delivery_id="delivery-1",
        update=update,
        task_id=update.task_id,
        config_id=None,
        seq=None,
        missing=0,
        late=False,
        issued_at=NOW,
        received_at=NOW,
        body=body,
    )


WORKING = notification(b'{"statusUpdate":{"taskId":"t","status":{"state":"TASK_STATE_WORKING"}}}')
COMPLETED = notification(b'{"kind":"task","id":"t","status":{"state":"completed"}}')
ARTIFACT = notification(b'{"artifactUpdate":{"taskId":"t","artifact":{"artifactId":"a"}}}')
MESSAGE = notification(b'{"message":{"messageId":"m"}}')
FROM_OTHER = replace(WORKING, sender="other")
ALL = {
    "working": WORKING,
    "completed": COMPLETED,
    "artifact": ARTIFACT,
    "message": MESSAGE,
    "other": FROM_OTHER,
}


def ignore(_: Notification) -> None:
    """Do nothing with it."""


@pytest.mark.parametrize(
    ("wishes", "wanted"),
    [
        pytest.param({}, list(ALL), id="everything"),
        pytest.param({"kinds": ["task"]}, ["completed"], id="by-kind"),
        pytest.param(
            {"kinds": [UpdateKind.ARTIFACT_UPDATE, "message"]},
            ["artifact", "message"],
            id="by-several-kinds",
        ),
        pytest.param({"states": ["working"]}, ["working", "other"], id="by-state"),
        pytest.param(
            {"states": [TaskState.WORKING, TaskState.COMPLETED]},
            ["working", "completed", "other"],
            id="by-several-states",
        ),
        pytest.param({"senders": ["other"]}, ["other"], id="by-sender"),
        pytest.param({"senders": ["agent"], "states": ["working"]}, ["working"], id="by-both"),
        pytest.param({"kinds": ["artifact-update"], "states": ["working"]}, [], id="by-neither"),
    ],
)
def test_a_callback_gets_what_it_wants(wishes: Mapping[str, Any], wanted: list[str]) -> None:
    registry = CallbackRegistry()
    registry.add(ignore, **wishes)

    assert [name for name, found in ALL.items() if registry.wanting(found)] == wanted


def test_callbacks_are_called_in_the_order_of_registration() -> None:
    registry = CallbackRegistry()
    for name in ("b", "a", "c"):
        registry.add(ignore, name=name)

    assert [callback.name for callback in registry.wanting(WORKING)] == ["b", "a", "c"]


def test_a_name_is_stable_across_restarts() -> None:
    callback = CallbackRegistry().add(ignore)

    assert callback.name == f"{__name__}:ignore"


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(ignore, id="function"),
        pytest.param(lambda _: None, id="lambda"),
        pytest.param(functools.partial(ignore), id="partial"),
    ],
)
def test_a_second_callback_of_the_same_name_is_an_error(
    function: Callable[[Notification], None],
) -> None:
    registry = CallbackRegistry()
    registry.add(function)

    with pytest.raises(ConfigError, match="registered twice"):
        registry.add(function)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda: None, id="no argument"),
        pytest.param(lambda notification, more: None, id="two"),  # noqa: ARG005
    ],
)
def test_a_function_that_takes_no_notification_is_refused(function: Any) -> None:
    """Every call would fail, and after hours the notification would be a dead letter."""
    with pytest.raises(ConfigError, match="a function of one argument"):
        CallbackRegistry().add(function)


@pytest.mark.parametrize("name", [None, "named"])
def test_what_is_no_function_is_refused(name: str | None) -> None:
    function: Any = 5
    with pytest.raises(ConfigError, match="function: found int, expected a callable"):
        CallbackRegistry().add(function, name=name)


def yielding(_: Notification) -> Iterator[None]:
    yield


async def yielding_later(_: Notification) -> AsyncIterator[None]:
    yield


class Yielding:
    def __call__(self, _: Notification) -> Iterator[None]:
        yield


@pytest.mark.parametrize(
    "function", [yielding, yielding_later, Yielding(), functools.partial(yielding)]
)
def test_a_generator_is_refused(function: Any) -> None:
    """A call would run nothing, and the notification would count as called back."""
    with pytest.raises(ConfigError, match="found a generator"):
        CallbackRegistry().add(function)


def test_a_function_with_more_arguments_that_may_be_left_out_is_a_callback() -> None:
    def function(notification: object, *more: object, again: bool = False) -> None: ...

    CallbackRegistry().add(function)
    CallbackRegistry().add(functools.partial(function, again=True), name="partial")
    CallbackRegistry().add(print)


@pytest.mark.parametrize(
    "wishes",
    [
        pytest.param({"kinds": ["status_update"]}, id="kind"),
        pytest.param({"states": ["done"]}, id="state"),
    ],
)
def test_an_unknown_wish_is_an_error(wishes: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected one of"):
        CallbackRegistry().add(ignore, **wishes)
