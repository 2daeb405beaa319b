"""Listeners receive events; without listeners an event costs nothing."""

from __future__ import annotations

import logging
from asyncio import Future, get_running_loop
from datetime import timedelta

import pytest

from pushkit.errors import ConfigError
from pushkit.events import (
    AttemptMade,
    Delivered,
    Event,
    Listeners,
    SubscriptionChange,
    SubscriptionChanged,
)
from tests.emitted import OF_DELIVERY, OF_SUBSCRIPTION

LOG = logging.getLogger("events")


def attempt(status: int | None, error: str | None, task_id: str = "task-1") -> AttemptMade:
    return AttemptMade(
        **(OF_DELIVERY | {"task_id": task_id}),
        seq=1,
        attempt=2,
        outcome="delivered" if error is None else "retry",
        status=status,
        error=error,
        took=timedelta(milliseconds=1500),
    )


def test_an_event_is_wanted_with_a_listener_or_at_the_level_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listeners = Listeners(LOG)
    caplog.set_level(logging.WARNING, "events")
    assert [listeners.wants(level) for level in (0, logging.INFO, logging.WARNING)] == [
        False,
        False,
        True,
    ]
    heard: list[Event] = []
    listeners.add(heard.append)
    assert listeners.wants(logging.NOTSET)
    listeners.remove(heard.append)
    assert not listeners.wants(logging.INFO)


def test_listeners_are_called_in_order_even_if_one_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listeners, heard = Listeners(LOG), list[Event]()

    def broken(_: Event) -> None:
        raise RuntimeError("mine")

    listeners.add(broken)
    listeners.add(heard.append)
    events = [attempt(200, None), attempt(500, "status_500")]
    for event in events:
        listeners.emit(event)
    assert heard == events
    assert caplog.text.count("a listener failed at attempt") == 2


def test_a_coroutine_function_is_no_listener() -> None:
    async def listen(event: Event) -> None:
        raise AssertionError(event)

    with pytest.raises(ConfigError, match="found a coroutine function"):
        Listeners(LOG).add(listen)  # type: ignore[arg-type]  # as an application may


async def test_a_listener_that_reads_a_cancelled_future_does_not_cancel_its_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listeners, heard = Listeners(LOG), list[Event]()
    future: Future[None] = get_running_loop().create_future()
    future.cancel()
    listeners.add(lambda _: future.result())
    listeners.add(heard.append)
    listeners.emit(attempt(200, None))
    assert len(heard) == 1
    assert caplog.text.count("a listener failed at attempt") == 1


def test_the_log_has_a_line_with_the_code_and_the_facts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "events")
    listeners = Listeners(LOG)
    listeners.emit(attempt(503, "status_503", task_id="task\n1"))
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "attempt owner=alice task=task\\n1 subscription_id=sub delivery_id=dlv"
        " origin=https://client.example.com:443 seq=1 attempt=2 outcome=retry status=503"
        " error=status_503 seconds=1.5"
    )
    assert vars(record)["code"] == "attempt"
    assert vars(record)["delivery_id"] == "dlv"
    assert vars(record)["seconds"] == 1.5


def test_the_log_names_a_change_by_its_word(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "events")
    change = SubscriptionChange.REGISTERED
    Listeners(LOG).emit(SubscriptionChanged(**OF_SUBSCRIPTION, change=change))
    [record] = caplog.records
    assert " change=registered " in record.getMessage()


def test_an_event_that_another_log_line_reports_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "events")
    Listeners(LOG).emit(Delivered(**OF_DELIVERY, attempts=1, waited=timedelta(seconds=1)))
    assert caplog.records == []
