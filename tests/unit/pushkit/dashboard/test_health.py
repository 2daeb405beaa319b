"""What the overview says in one sentence, for every situation; and that the pages agree."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from pushkit.dashboard.documents import headline
from pushkit.outbox.states import DeliveryState
from pushkit.outbox.stats import Finished, OutboxStats
from pushkit.storage.paging import AtMost
from pushkit.webui.parts import HealthFinding, Severity
from tests.browser import Browser
from tests.unit.pushkit.dashboard.conftest import House

WARNING, FAILURE = Severity.WARNING, Severity.FAILURE
DELIVERED, FAILED, WAITING, UNCLAIMED = "delivered", "failed", "waiting", "unclaimed"
SITUATIONS: dict[str, tuple[set[str], Severity]] = {
    "Nothing waits, and nothing was sent within the last hour.": (set(), Severity.NOTE),
    "Deliveries wait; none arrived within the last hour.": ({WAITING}, Severity.NOTE),
    "Healthy: deliveries arrive.": ({DELIVERED, WAITING}, Severity.NOTE),
    "Deliveries arrive, but some fail.": ({DELIVERED, FAILED, WAITING}, WARNING),
    "Nothing arrives: every attempt fails.": ({FAILED, WAITING}, WARNING),
    "Deliveries arrive, but something needs attention.": ({DELIVERED}, WARNING),
    "Nothing is sent: no worker claims what is due.": ({DELIVERED, WAITING, UNCLAIMED}, FAILURE),
    "Nothing arrives: something on this side fails.": ({FAILED, WAITING}, FAILURE),
    "Deliveries arrived within the last hour, but something on this side fails.": (
        {DELIVERED},
        FAILURE,
    ),
}


def seen(stats: OutboxStats, situation: set[str]) -> OutboxStats:
    """Return the numbers of an outbox in which this has happened."""
    now = stats.now
    one = Finished(
        id="dlv_1",
        origin="https://client.example.com:443",
        state=DeliveryState.DELIVERED,
        attempts=1,
        age_from=now,
        finished_at=now,
    )
    return replace(
        stats,
        finished=(one,) if DELIVERED in situation else (),
        retrying=int(FAILED in situation),
        pending=AtMost(int(WAITING in situation), more=False),
        due_since=now - timedelta(minutes=2) if UNCLAIMED in situation else None,
    )


async def test_each_situation_has_its_sentence_and_only_what_was_delivered_is_green(
    house: House,
) -> None:
    stats = await house.sender.outbox.stats()
    found = {
        says: headline(seen(stats, situation), [HealthFinding(worst, "", "")])
        for says, (situation, worst) in SITUATIONS.items()
    }
    assert {expected: headline.says for expected, headline in found.items()} == {
        says: says for says in SITUATIONS
    }
    green = [says for says, headline in found.items() if headline.verdict == "healthy"]
    assert green == ["Healthy: deliveries arrive."]


@pytest.mark.parametrize("status", [500, 401, 400], ids=str)
async def test_a_sender_that_reaches_nobody_says_so(
    house: House, reader: Browser, status: int
) -> None:
    house.statuses["/wrong"] = status
    await house.notify("task-1", "/wrong")
    await house.deliver()
    page = await reader.get("/")
    assert "<h1>Nothing arrives: every attempt fails.</h1>" in page
    assert "verdict failing" in page
    await house.notify("task-2")
    await house.deliver()
    assert "<h1>Deliveries arrive, but some fail.</h1>" in await reader.get("/")


@pytest.mark.parametrize("status", [500, 401], ids=["counts for the breaker", "does not"])
async def test_a_destination_that_failed_last_counts_as_failing_and_is_no_green_breaker(
    house: House, reader: Browser, status: int
) -> None:
    house.statuses["/wrong"] = status
    await house.notify("task-1", "/wrong")
    await house.deliver()
    stats = await house.sender.outbox.stats()
    assert stats.failing.number == 1
    page = await reader.get("/destinations")
    assert '<span class="state failing">failing</span>' in page
    assert "closed" not in page
    house.statuses["/wrong"] = 202
    await house.sender.outbox.retry_now([each.id for each in await house.sender.outbox.find()])
    await house.deliver()
    assert (await house.sender.outbox.stats()).failing.number == 0
    assert "state failing" not in await reader.get("/destinations")


async def test_what_is_paused_only_waits(house: House, reader: Browser) -> None:
    assert "<h1>Nothing waits, and nothing was sent" in await reader.get("/")
    await house.notify("task-1")
    await house.sender.pause("task-1", owner="alice")
    page = await reader.get("/")
    assert "<h1>Deliveries wait; none arrived within the last hour.</h1>" in page
    assert "verdict idle" in page
