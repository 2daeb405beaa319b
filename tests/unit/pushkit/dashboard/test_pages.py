"""The pages, read without JavaScript."""

from __future__ import annotations

import asyncio
import html
import re
from dataclasses import replace
from datetime import timedelta
from urllib.parse import quote, urlencode

import pytest
from aiohttp import web
from pytest_aiohttp.plugin import AiohttpServer

from pushkit.dashboard.documents import findings, headline
from pushkit.outbox import stats
from pushkit.outbox.states import DeliveryState
from pushkit.outbox.stats import _MOST_FIRST, Finished, OutboxStats
from pushkit.storage.paging import AtMost
from pushkit.webui import site
from pushkit.webui.parts import MOST_SHOWN, HealthFinding, Severity, shown_body
from tests.browser import Browser
from tests.eventually import DEADLINE
from tests.unit.pushkit.dashboard.conftest import HOSTILE, House

PAGES = [
    "/",
    "/deliveries",
    "/deliveries?state=dead",
    "/subscriptions",
    "/queues",
    "/destinations",
    "/keys",
]


@pytest.mark.parametrize("path", PAGES)
async def test_every_page_of_an_empty_outbox_says_so(reader: Browser, path: str) -> None:
    page = await reader.get(path)
    assert "<h1>" in page or 'class="card verdict' in page


async def test_the_overview_is_healthy_while_deliveries_arrive(
    house: House, reader: Browser
) -> None:
    await house.notify("task-1")
    await house.deliver()
    page = await reader.get("/")
    assert "Healthy: deliveries arrive." in page
    assert "1 since " in page
    assert 'data-live="/live"' in page


async def test_a_new_dead_letter_is_shown_first(house: House, reader: Browser) -> None:
    await house.dead_letter()
    page = await reader.get("/")
    assert "Nothing arrives: every attempt fails." in page
    assert "1 dead letter within the last hour." in page
    assert "the webhook answered 400" in page
    assert f"the {_MOST_FIRST:,} queues that are due first" in page
    assert f"the newest {MOST_SHOWN // 20} dead letters" in page


async def test_a_new_dead_letter_is_shown_however_much_is_delivered_after_it(
    house: House, reader: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "_MOST_FINISHED", 1)
    await house.dead_letter()
    await house.notify("task-2")
    await house.deliver()
    assert "1 dead letter within the last hour." in await reader.get("/")


async def test_a_count_that_stopped_at_its_bound_is_shown_as_such(house: House) -> None:
    stats = await house.sender.outbox.stats()
    bound = AtMost(10_000, more=True)
    found = findings(replace(stats, failing=bound, died=bound), None)
    assert [each.says for each in found] == [
        "10,000+ destinations failed last, or asked to wait.",
        "10,000+ dead letters within the last hour.",
    ]


async def test_what_waits_for_its_destination_is_not_taken_for_neglected(house: House) -> None:
    await house.fail_destination()
    await house.notify("task-6", "/broken")
    stats = await house.sender.outbox.stats()
    assert stats.failing.number == 1
    later = replace(stats, now=stats.now + timedelta(minutes=5))
    assert "Deliveries are due, and no worker claims them." not in [
        each.says for each in findings(later, None)
    ]


async def test_a_failed_delivery_is_found_and_understood(house: House, reader: Browser) -> None:
    delivery_id = await house.dead_letter("report-7")
    page = await reader.get("/")
    page = await reader.get(reader.link(page, "1 dead letter within"))
    page = await reader.get(reader.link(page, "report-7"))
    assert delivery_id in page
    assert "Why it is dead: the webhook answered 400" in page
    assert "Attempt 1" in page
    assert "check that it speaks the version of A2A" in page
    assert "The webhook's answer began with" in page
    assert "X-A2A-Token" in page  # here, the answer repeats the names of the request's fields


async def test_a_request_is_rebuilt_as_it_was_sent(house: House, reader: Browser) -> None:
    delivery_id = await house.notify("task-1")
    await house.deliver()
    page = html.unescape(await reader.get(f"/deliveries/{delivery_id}"))
    [sent] = house.received
    names = [name for name, _ in sent if name != "Content-Length"]
    assert re.search(r"POST /ok HTTP/1.1\n", page)
    shown = re.search(r"<pre>POST.*?</pre>", page, re.DOTALL)
    assert shown
    lines = shown[0].removesuffix("</pre>").splitlines()[1:]
    assert [line.partition(":")[0] for line in lines if line] == names
    fields = dict(sent)
    for name in ("Host", "Content-Type", "User-Agent", "Accept-Encoding", "webhook-id"):
        assert f"{name}: {fields[name]}\n" in shown[0]


async def test_a_body_is_shown_on_request(house: House, reader: Browser) -> None:
    delivery_id = await house.notify("task-1")
    assert "TASK_STATE_WORKING" not in await reader.get(f"/deliveries/{delivery_id}")
    assert "TASK_STATE_WORKING" in await reader.get(f"/deliveries/{delivery_id}?body=1")


@pytest.mark.parametrize(
    "query",
    [{"state": "dead"}, {"task": "task-1"}, {"owner": "alice"}, {"error": "rejected"}],
    ids=str,
)
async def test_deliveries_are_filtered(
    house: House, reader: Browser, query: dict[str, str]
) -> None:
    dead = await house.dead_letter("task-1")
    other = await house.notify("task-2", owner="bob")
    page = await reader.get(f"/deliveries?{urlencode(query)}")
    assert dead in page
    assert other not in page


async def test_deliveries_come_newest_first_in_pages(house: House, reader: Browser) -> None:
    ids = [await house.notify(f"task-{n:03}") for n in range(120)]
    page, found = await reader.get("/deliveries"), []
    for _ in range(3):
        found += re.findall(r'class="cut" href="/deliveries/(dlv_\w+)"', page)
        if "Older" not in page:
            break
        page = await reader.get(reader.link(page, "Older"))
    assert found == sorted(ids, reverse=True)  # by their time, to the millisecond
    assert "These are all." in page


@pytest.mark.parametrize(
    ("wanted", "shown"), [("dlv_", "Details"), ("sub_", "Webhook"), ("task", "report-7")]
)
async def test_the_search_finds_ids_and_tasks(
    house: House, reader: Browser, wanted: str, shown: str
) -> None:
    delivery_id = await house.notify("report-7")
    report = await house.sender.outbox.show(delivery_id)
    assert report is not None
    ids = {"dlv_": delivery_id, "sub_": report.delivery.subscription_id, "task": "report-7"}
    page = await reader.get(f"/search?{urlencode({'q': ids[wanted]})}")
    assert shown in page


async def test_a_destination_that_fails_is_shown_with_its_breaker(
    house: House, reader: Browser
) -> None:
    await house.fail_destination()
    page = await reader.get("/destinations")
    assert '<span class="state open">open</span>' in page
    assert "One destination failed last, or asked to wait." in await reader.get("/")


async def test_text_of_others_is_escaped(house: House, reader: Browser) -> None:
    task_id = HOSTILE.replace("\u202e", "")
    delivery_id = await house.notify(task_id, owner="<b>bob</b>")
    house.statuses["/ok"] = 400
    await house.deliver()
    report = await house.sender.outbox.show(delivery_id)
    assert report is not None
    for path in (
        "/",
        "/deliveries",
        "/subscriptions",
        "/queues",
        f"/deliveries/{delivery_id}?body=1&answers=1&said={quote(HOSTILE)}",
        f"/subscriptions/{report.delivery.subscription_id}",
        f"/deliveries?{urlencode({'task': task_id})}",
        f"/deliveries?{urlencode({'owner': '<b>bob</b>', 'origin': task_id})}",
    ):
        page = await reader.get(path)
        assert "<script>alert" not in page
        assert "<b>bob" not in page
    assert html.escape(task_id, quote=True).replace("&#x27;", "&#39;").replace(
        "&quot;", "&#34;"
    ) in await reader.get("/deliveries")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/deliveries?state=nonsense", 400),
        ("/deliveries?task=a%00b", 400),
        (f"/deliveries?task={'x' * 600}", 400),
        ("/queues?after=%00", 400),
        (f"/queues?after={'x' * 600}", 400),
        ("/deliveries/dlv_1", 404),
        ("/deliveries/%00", 404),
        ("/subscriptions/sub_1", 404),
        ("/nothing", 404),
    ],
)
async def test_an_unknown_path_or_invalid_query_is_refused(
    reader: Browser, path: str, status: int
) -> None:
    assert f"<h1>{status}</h1>" in await reader.get(path, status)


async def test_keys_are_shown_with_their_states(reader: Browser) -> None:
    page = await reader.get("/keys")
    assert '<span class="state active">active</span>' in page


def test_a_long_body_is_shown_as_it_is_for_its_lines_would_be_many_times_as_long() -> None:
    def deep(values: int) -> bytes:
        return b"[" * 60 + b"1," * values + b"1" + b"]" * 60

    assert len(shown_body(deep(10)) or "") > 1000
    assert shown_body(deep(100_000)) == deep(100_000).decode()


async def test_no_more_than_so_many_pages_are_live(
    reader: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "_LIVE_INTERVAL", DEADLINE)
    monkeypatch.setattr(site, "_MAX_LIVE", 1)
    asked = [asyncio.ensure_future(reader.client.get("/live")) for _ in range(2)]
    [refused], [live] = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    assert (await refused).status == 503
    live.cancel()


# --- health --------------------------------------------------------------------------------------


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


# --- queues --------------------------------------------------------------------------------------


async def test_a_queue_waits_for_a_worker_until_its_deliveries_are_done(
    house: House, reader: Browser
) -> None:
    await house.notify("report-7")

    [waits] = (await reader.document("/queues"))["queues"]
    shown = await reader.get("/queues")
    await house.deliver()

    assert (waits["task_id"], waits["owner"], waits["worker"]) == ("report-7", "alice", None)
    assert waits["waiting"] == {"number": 1, "more": False}
    assert waits["due_at"] is not None
    assert "nobody" in shown
    assert f'href="/subscriptions/{waits["id"]}"' in shown
    assert await reader.document("/queues") == {"queues": [], "after": None}
    assert "No worker leases a queue" in await reader.get("/queues")


async def test_a_queue_is_shown_with_the_worker_that_leases_it(
    house: House, reader: Browser, aiohttp_server: AiohttpServer
) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        began.set()
        await may_end.wait()
        return web.Response()

    app = web.Application()
    app.router.add_post("/slow", answer)
    server = await aiohttp_server(app)
    house.webhook = f"http://127.0.0.1:{server.port}"
    await house.notify("report-7", "/slow")
    async with asyncio.timeout(DEADLINE), asyncio.TaskGroup() as tasks:
        tasks.create_task(house.deliver())
        await began.wait()
        [found] = (await reader.document("/queues"))["queues"]
        shown = await reader.get("/queues")
        may_end.set()

    assert found["worker"]
    assert found["leased_at"] < found["lease_until"]
    assert found["worker"] in shown
    assert "nobody" not in shown


async def test_a_queue_is_shown_with_what_holds_it_back(house: House, reader: Browser) -> None:
    await house.fail_destination()

    found = (await reader.document("/queues"))["queues"]

    assert {each["failures"] for each in found} == {5}
    assert all(each["failing_since"] and each["waits_until"] for each in found)
    assert "its destination waits" in await reader.get("/queues")


async def test_queues_come_in_pages(house: House, reader: Browser) -> None:
    for number in range(3):
        await house.notify(f"task-{number}")

    seen, query = list[str](), "?limit=2"
    while query:
        page = await reader.document(f"/queues{query}")
        seen += [each["task_id"] for each in page["queues"]]
        query = page["after"] and f"?limit=2&after={page['after']}"
    link = reader.link(await reader.get("/queues?limit=2"), "More")

    assert sorted(seen) == ["task-0", "task-1", "task-2"]
    assert "task-" in await reader.get(f"/queues{link}")
