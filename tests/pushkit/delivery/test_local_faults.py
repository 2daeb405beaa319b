"""What fails on this side is not the webhook's: it waits by itself, is loud, ends nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pushkit import StatusUpdate
from pushkit.delivery.breaker import BreakerPolicy
from pushkit.delivery.signatures import Signing
from pushkit.errors import IdempotencyConflictError
from pushkit.events.model import Event
from pushkit.events.sender import DeliveryEvent, LocalFault
from pushkit.outbox.states import DeliveryState
from tests.pushkit.delivery.conftest import key_ring
from tests.told import told

if TYPE_CHECKING:
    from pushkit import KeyRing
    from tests.pushkit.delivery.conftest import Clock, Senders, Webhook

WORDS = "canary: a mount is gone"
MakeStatus = Callable[..., StatusUpdate]


class Keys:
    """A key source that is out of reach once the sender is open, unless it is mended."""

    def __init__(self) -> None:
        self.is_open = self.broken = False

    def ring(self) -> KeyRing:
        if not self.is_open:
            self.is_open = self.broken = True
        elif self.broken:
            raise OSError(WORDS)
        return key_ring()


def no_signing(_: object) -> Any:
    return None


def a_foreign_error_of_ours(_: object) -> Signing:
    raise IdempotencyConflictError("nobody expects this one here")


def a_foreign_error(_: object) -> Signing:
    raise KeyError("canary")


FAULTS = [
    pytest.param({"keys": Keys()}, "unexpected_error", id="a key source out of reach"),
    pytest.param({"signing": no_signing}, "signing_failed", id="a function without a Signing"),
    pytest.param(
        {"signing": a_foreign_error_of_ours}, "idempotency_conflict", id="an error of ours"
    ),
    pytest.param({"signing": a_foreign_error}, "signing_failed", id="a foreign error"),
]


@pytest.mark.parametrize(("options", "error"), FAULTS)
async def test_it_waits_longer_each_time_and_uses_nothing_up(  # noqa: PLR0917  # fixtures
    senders: Senders,
    clock: Clock,
    webhook: Webhook,
    status: MakeStatus,
    options: dict[str, Any],
    error: str,
) -> None:
    sender = await senders.open(**options)
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0", owner="alice")
    await sender.notify(status())
    waits = []
    for _ in range(11):
        assert await sender.worker.run_once() == 1
        assert await sender.worker.run_once() == 0  # not claimed again at once
        [delivery] = await sender.deliveries("task-1")
        assert (delivery.state, delivery.last_error) == (DeliveryState.PENDING, error)
        waits.append((delivery.not_before - clock.now).total_seconds())
        clock.now = delivery.not_before
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert delivery.attempts == 0
    assert webhook.received == []


async def test_it_is_never_given_up_and_delivered_once_the_fault_is_mended(
    senders: Senders, clock: Clock, webhook: Webhook, status: MakeStatus
) -> None:
    keys = Keys()
    sender = await senders.open(keys=keys)
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0", owner="alice")
    await sender.notify(status())
    for _ in range(20):
        assert await sender.worker.run_once() == 1
        clock.advance(timedelta(hours=10).total_seconds())
    keys.broken = False
    webhook.replies_with(500)
    assert await sender.worker.run_once() == 1
    [delivery] = await sender.deliveries("task-1")
    assert (delivery.attempts, delivery.fruitless_claims) == (1, 0)


async def test_a_fault_after_an_attempt_ends_with_the_age_of_the_delivery(
    senders: Senders, clock: Clock, webhook: Webhook, status: MakeStatus
) -> None:
    keys = Keys()
    sender = await senders.open(keys=keys)
    keys.broken = False
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0", owner="alice")
    await sender.notify(status())
    webhook.replies_with(500)
    await sender.worker.run_once()
    keys.broken = True
    clock.advance(10)
    await sender.worker.run_once()
    clock.advance(timedelta(hours=90).total_seconds())
    await sender.worker.run_once()
    [delivery] = await sender.deliveries("task-1")
    assert (delivery.state, delivery.last_error) == (DeliveryState.DEAD, "too_old")


async def test_it_opens_no_breaker_and_disables_nothing(
    senders: Senders, clock: Clock, webhook: Webhook, status: MakeStatus
) -> None:
    keys, events = Keys(), list[Event]()
    sender = await senders.open(
        keys=keys,
        breaker=BreakerPolicy(failures=1),
        disable_after=timedelta(hours=1),
        on_event=events.append,
    )
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0", owner="alice")
    await sender.notify(status())
    for _ in range(5):
        await sender.worker.run_once()
        clock.advance(timedelta(days=1).total_seconds())
    assert {event.error for event in told(events, LocalFault)} == {"unexpected_error"}
    assert {type(event) for event in told(events, DeliveryEvent)} == {LocalFault}
    [subscription] = await sender.subscriptions("task-1", owner="alice")
    assert subscription.active
    keys.broken = False
    await sender.worker.run_once()
    assert len(webhook.received) == 1


async def test_it_is_in_the_log_with_its_traceback_once_for_all_of_one_cause(
    senders: Senders, webhook: Webhook, status: MakeStatus, caplog: pytest.LogCaptureFixture
) -> None:
    sender = await senders.open(keys=Keys())
    for number in range(5):
        await sender.subscribe(f"task-{number}", {"url": webhook.url()}, version="1.0")
        await sender.notify(status(task_id=f"task-{number}"))
    assert await sender.worker.run_once() == 5
    told = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 1
    assert "Traceback" in told[0].getMessage()
    assert "in ring" in told[0].getMessage()
    assert "OSError" in told[0].getMessage()
    assert "canary" not in caplog.text  # the words of a foreign exception may hold anything


async def test_the_outbox_says_how_many_wait_for_which_fault(
    senders: Senders, webhook: Webhook, status: MakeStatus
) -> None:
    sender = await senders.open(keys=Keys())
    for number in range(3):
        await sender.subscribe(f"task-{number}", {"url": webhook.url()}, version="1.0")
        await sender.notify(status(task_id=f"task-{number}"))
    await sender.worker.run_once()
    stats = await sender.outbox.stats()
    assert stats.local_faults == {"unexpected_error": 3}
    healthy = await senders.open()
    webhook.replies_with(404)
    await healthy.subscribe("other", {"url": webhook.url()}, version="1.0")
    await healthy.notify(status(task_id="other"))
    await healthy.worker.run_once()
    stats = await sender.outbox.stats()
    assert stats.local_faults == {"unexpected_error": 3}
    assert stats.errors == {"unexpected_error": 3, "status_404": 1}
