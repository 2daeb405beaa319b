"""A sender whose signing key is in a key service."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from pushkit import AlertOptions, DeliveryState
from pushkit.errors import ConfigError
from pushkit.events import Event, SigningKeyNearEnd
from pushkit.keys.files import key_source
from tests.clock import Clock
from tests.eventually import DEADLINE
from tests.kms import Kms
from tests.unit.pushkit.delivery.conftest import Senders, Webhook, enqueue, state_and_error


@pytest.fixture
def kms() -> Kms:
    return Kms()


async def test_a_key_of_unknown_age_has_no_alert_and_no_metric(
    senders: Senders, kms: Kms, events: list[Event]
) -> None:
    sender = await senders.open(keys=kms, alerts=AlertOptions(log=True), on_event=events.append)
    assert sender._alerts
    await sender._alerts.run_once()
    assert [event for event in events if isinstance(event, SigningKeyNearEnd)] == []
    assert b"pushkit_signing_key_age_seconds{" not in (await sender.metrics.page()).body


@pytest.mark.parametrize("found", [None, "{}", []], ids=repr)
def test_a_public_jwk_that_is_no_mapping_is_a_configuration_error(found: object) -> None:
    class Wrong:
        public_jwk = found

        async def sign(self, data: bytes) -> bytes:
            return data

    says = f"public_jwk of Wrong: found {type(found).__name__}, expected a mapping"
    with pytest.raises(ConfigError, match=says):
        key_source(Wrong())  # type: ignore[arg-type]  # that is the mistake


async def test_signatures_of_a_key_service_verify_with_the_published_key(
    senders: Senders, webhook: Webhook, kms: Kms
) -> None:
    sender = await senders.open(keys=kms)
    await enqueue(sender, webhook.url(), owner="alice")
    assert await sender.worker.run_once() == 1
    [request] = webhook.received
    assert request.claims(senders.public_keys()).kid == kms.key.kid


async def test_the_attempt_timeout_covers_a_key_service_that_hangs(
    senders: Senders, webhook: Webhook, kms: Kms
) -> None:
    sender = await senders.open(keys=kms, timeout=timedelta(milliseconds=200))
    await enqueue(sender, webhook.url(), owner="alice")
    kms.hangs = True
    async with asyncio.timeout(DEADLINE):
        assert await sender.worker.run_once() == 1
    assert (kms.cancelled, webhook.received) == (1, [])
    assert await state_and_error(sender) == (DeliveryState.PENDING, "signing_failed")


async def test_a_delivery_waits_for_a_failing_key_service_and_is_then_sent(
    senders: Senders, webhook: Webhook, kms: Kms, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    sender = await senders.open(keys=kms)
    await enqueue(sender, webhook.url(), owner="alice")
    kms.fails = True
    for _ in range(3):
        assert await sender.worker.run_once() == 1
        clock.advance(24 * 3600)
    kms.fails = False
    assert await sender.worker.run_once() == 1
    [request] = webhook.received
    assert request.claims(senders.public_keys()).seq == 1
    assert "ConnectionError" in caplog.text
    assert "canary" not in caplog.text


async def test_a_cancelled_call_to_the_key_service_is_a_local_fault(
    senders: Senders, webhook: Webhook
) -> None:
    class Shared(Kms):
        async def sign(self, data: bytes) -> bytes:
            flight = asyncio.ensure_future(asyncio.Event().wait())
            flight.cancel()  # as by a closed client, or by another caller of a shared request
            await flight
            return await super().sign(data)

    sender = await senders.open(keys=Shared())
    await enqueue(sender, webhook.url(), owner="alice")
    assert await sender.worker.run_once() == 1
    assert await state_and_error(sender) == (DeliveryState.PENDING, "signing_failed")
