"""What the overview says in one sentence, for every situation; and that the pages agree."""

from __future__ import annotations

import pytest

from pushkit.dashboard.health import DeliveryCounts, headline_of
from pushkit.webui.overview import Severity
from tests.unit.pushkit.dashboard.conftest import Browser, House

WARNING, FAILURE = Severity.WARNING, Severity.FAILURE
SITUATIONS = {
    "Nothing waits, and nothing was sent within the last hour.": DeliveryCounts(),
    "Deliveries wait; none arrived within the last hour.": DeliveryCounts(waiting=1),
    "Healthy: deliveries arrive.": DeliveryCounts(delivered=5, waiting=1),
    "Deliveries arrive, but some fail.": DeliveryCounts(
        delivered=5, failed=1, waiting=1, worst=WARNING
    ),
    "Nothing arrives: every attempt fails.": DeliveryCounts(failed=3, waiting=2, worst=WARNING),
    "Deliveries arrive, but something needs attention.": DeliveryCounts(delivered=1, worst=WARNING),
    "Nothing is sent: no worker claims what is due.": DeliveryCounts(
        delivered=1, waiting=3, is_unclaimed=True, worst=FAILURE
    ),
    "Nothing arrives: something on this side fails.": DeliveryCounts(
        failed=1, waiting=1, worst=FAILURE
    ),
    "Deliveries arrived within the last hour, but something on this side fails.": DeliveryCounts(
        delivered=1, worst=FAILURE
    ),
}


def test_each_situation_has_its_sentence() -> None:
    found = {headline_of(counts).says: counts for counts in SITUATIONS.values()}
    assert found == SITUATIONS


def test_only_what_was_delivered_is_green() -> None:
    green = [says for says, of in SITUATIONS.items() if headline_of(of).verdict == "healthy"]
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
