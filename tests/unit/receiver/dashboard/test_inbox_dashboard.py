"""The receiver's dashboard: what came in, what it passed, what callbacks made of it, its queues."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, urlencode

import pytest
from pytest_aiohttp.plugin import AiohttpClient
from tenacity import stop_after_attempt

from pushkit.scheduling.retry import RetryPolicy, wait_schedule
from pushkit.storage.database import Database
from pushkit.storage.paging import AtMost
from pushkit.webui.access import DashboardAccess
from pushkit.webui.parts import Headline, HealthFinding, Severity
from receiver import InboxStatus, Notification
from receiver.admin import InboxAdmin
from receiver.callbacks.dispatcher import Dispatcher
from receiver.callbacks.registry import CallbackRegistry
from receiver.dashboard.app import inbox_dashboard
from receiver.dashboard.documents import findings, headline
from receiver.dashboard.memory import KeptRefusal
from receiver.inbox.inspection import CallbackTrouble, InboxStats
from tests.browser import TOKEN, Browser
from tests.emitted import refused
from tests.unit.receiver import storing

BODY = b'{"statusUpdate":{"taskId":"%s","status":{"state":"TASK_STATE_WORKING"}}}'
WORKER = "dispatcher_0123456789abcdef"
ONCE = RetryPolicy(wait=wait_schedule((1,)), stop=stop_after_attempt(1))
SECRET = "a-word-of-the-error"


@dataclass
class Desk:
    """An inbox whose callback fails for tasks that are called `bad…`, until it is mended."""

    database: Database
    mended: bool = False

    async def came(
        self, task: str | None, *, seq: int = 1, kid: str = "key-1", worker: str | None = None
    ) -> None:
        """Store a notification of a minute ago; its queue is leased if a worker is named."""
        now = datetime.now(UTC) - timedelta(minutes=1)
        await self.database.write(
            storing.store(
                task,
                None if task is None else seq,
                body=BODY % (task or "").encode(),
                now=now,
                delivery_id=None if task else "dlv_1",
                kid=kid,
                worker=worker,
                until=now + timedelta(minutes=5),
            )
        )

    async def call_back(self, states: Collection[str] = ()) -> None:
        registry = CallbackRegistry()

        async def told(notification: Notification) -> None:
            if (notification.task_id or "").startswith("bad") and not self.mended:
                raise ValueError(SECRET)

        registry.add(told, name="handlers:told", states=states)
        dispatcher = Dispatcher(self.database, registry, retry=ONCE, concurrency=4)
        while await dispatcher.run_once():
            pass
        await dispatcher.retire()


@pytest.fixture
def desk(database: Database) -> Desk:
    return Desk(database)


@pytest.fixture
async def reader(desk: Desk, aiohttp_client: AiohttpClient) -> Browser:
    """A browser on this machine, which may read."""
    site = inbox_dashboard(InboxAdmin(desk.database), access=DashboardAccess())
    return await Browser.at(site, aiohttp_client)


@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        ([], "Nothing arrived within the last hour, and nothing waits."),
        (["good-1"], "Healthy: notifications arrive, and callbacks run."),
        (["good-1", "bad-1"], "Notifications arrive, but some callbacks fail."),
        (["bad-1", "bad-2"], "Notifications arrive, but every callback fails."),
    ],
    ids=["nothing yet", "all well", "some fail", "all fail"],
)
async def test_the_overview_says_what_was_observed(
    desk: Desk, reader: Browser, tasks: list[str], says: str
) -> None:
    for task_id in tasks:
        await desk.came(task_id)
    await desk.call_back()
    assert f"<h1>{says}</h1>" in await reader.get("/")


WARNING, FAILURE = Severity.WARNING, Severity.FAILURE
ACCEPTED, CALLED, FAILED = "accepted", "called back", "failed"
WAITING, REFUSED, UNCLAIMED = "waiting", "refused", "unclaimed"
SITUATIONS: dict[str, tuple[set[str], Severity]] = {
    "Nothing arrived within the last hour, and nothing waits.": (set(), Severity.NOTE),
    "Nothing arrived within the last hour; earlier notifications wait.": ({WAITING}, Severity.NOTE),
    "Healthy: notifications arrive, and callbacks run.": ({ACCEPTED, CALLED}, Severity.NOTE),
    "Notifications arrive; none has been called back yet.": ({ACCEPTED, WAITING}, Severity.NOTE),
    "Notifications arrive, and no callback wants them.": ({ACCEPTED}, Severity.NOTE),
    "Notifications arrive, but some callbacks fail.": ({ACCEPTED, CALLED, FAILED}, WARNING),
    "Notifications arrive, but every callback fails.": ({ACCEPTED, FAILED}, WARNING),
    "Notifications arrive, but something needs attention.": ({ACCEPTED, CALLED, REFUSED}, WARNING),
    "Nothing is accepted: every notification is refused.": ({REFUSED}, WARNING),
    "Nothing is accepted: something on this side fails.": ({REFUSED}, FAILURE),
    "Notifications arrive, but something on this side fails.": ({ACCEPTED, CALLED}, FAILURE),
    "No callback runs: no receiver claims what is due.": ({ACCEPTED, WAITING, UNCLAIMED}, FAILURE),
}


def test_each_situation_has_its_sentence() -> None:
    found = {says: seen(*situation) for says, situation in SITUATIONS.items()}
    assert {expected: headline.says for expected, headline in found.items()} == {
        says: says for says in SITUATIONS
    }
    green = [says for says, headline in found.items() if headline.verdict == "healthy"]
    assert green == ["Healthy: notifications arrive, and callbacks run."]


def seen(situation: set[str], worst: Severity) -> Headline:
    """Return what the overview says of an inbox in which this has happened."""
    now = datetime.now(UTC)
    stats = dataclasses.replace(
        _nothing_else(now),
        received=AtMost(int(WAITING in situation), more=False),
        due_since=now - timedelta(minutes=2) if UNCLAIMED in situation else None,
        arrivals=((now, now if CALLED in situation else None),) if ACCEPTED in situation else (),
    )
    trouble = CallbackTrouble(
        callback="told", error="ValueError", waiting=1, dead=0, last_at=now, newest=1
    )
    return headline(
        stats,
        [trouble] if FAILED in situation else [],
        [KeptRefusal(number=1, event=refused(now, "invalid_token", "agent"))]
        if REFUSED in situation
        else [],
        [HealthFinding(worst, "", "")],
    )


async def test_a_dead_letter_is_found_and_understood(desk: Desk, reader: Browser) -> None:
    await desk.came("bad-1")
    await desk.came("good-1")
    await desk.call_back()
    found = await reader.get("/")
    assert "There is a dead letter." in found
    found = await reader.get(reader.link(found, "bad-1"))
    assert "Why it is dead: handlers:told: ValueError" in found
    assert "3. signature" in found
    assert "key key-1" in found
    assert SECRET not in found
    found = await reader.get("/notifications?status=dead")
    assert "bad-1" in found
    assert "good-1" not in found


def test_callbacks_that_fail_are_named_and_their_notifications_not_counted_twice() -> None:
    now = datetime.now(UTC)
    troubles = [  # of one notification
        CallbackTrouble(
            callback=callback, error="ValueError", waiting=1, dead=0, last_at=now, newest=1
        )
        for callback in ("handlers:first", "handlers:second")
    ]
    [found] = findings(_nothing_else(now), troubles, (), {})
    assert found.says == "Callbacks fail: handlers:first, handlers:second."


def _nothing_else(now: datetime) -> InboxStats:
    none = AtMost(0, more=False)
    return InboxStats(
        now=now,
        received=AtMost(1, more=False),
        in_progress=none,
        done=none,
        dead=none,
        unmatched=none,
        incomplete=none,
        oldest_unfinished_at=now,
        due_since=None,
        senders=(),
        arrivals=(),
        arrivals_since=now,
    )


async def test_a_sender_without_a_named_key_may_still_have_signed(
    desk: Desk, reader: Browser
) -> None:
    await desk.came("by-standard-webhooks", kid="")
    [found] = await InboxAdmin(desk.database).find()
    shown = await reader.get(f"/notifications/{found.id}")
    assert "this sender names no key" in shown
    assert "does not sign" not in shown


async def test_what_no_callback_wanted_is_nowhere_shown_as_done(
    desk: Desk, reader: Browser
) -> None:
    await desk.came("nobody-wants-it")
    await desk.call_back(states=["completed"])
    [found] = await InboxAdmin(desk.database).find()

    shown = [
        await reader.get(path)
        for path in (f"/notifications/{found.id}", "/notifications", "/task?task=nobody-wants-it")
    ]
    callbacks = (await reader.document(f"/notifications/{found.id}"))["steps"][-1]
    overview = await reader.document("/overview")

    for text in shown:
        assert 'class="state unmatched"' in text
        assert 'class="state done"' not in text
    assert callbacks["result"] == "not_reached"
    assert callbacks["found"] == "it matched no callback"
    assert sum(each["done"] for each in overview["came"]) == 0
    assert sum(each["other"] for each in overview["came"]) == 1
    assert overview["seconds_until_called_back"]["p50"] is None


async def test_a_signature_passes_only_if_the_inbox_has_its_key(
    desk: Desk, reader: Browser
) -> None:
    await desk.came("signed")
    await desk.came("perhaps-unsigned", kid="")
    steps = {}
    for found in await InboxAdmin(desk.database).find():
        steps[found.task_id] = (await reader.document(f"/notifications/{found.id}"))["steps"]

    passed = {
        task: {each["name"] for each in found if each["result"] == "passed"}
        for task, found in steps.items()
    }
    # Which signature it was the inbox does not say, and not each one states issuer and audience.
    of_any = {"request", "sender", "token", "size", "rate", "content", "replay", "task", "stored"}
    assert passed == {
        "signed": of_any | {"signature", "time", "ids", "body"},
        "perhaps-unsigned": of_any,
    }


async def test_gaps_of_a_task_are_shown_where_they_are(desk: Desk, reader: Browser) -> None:
    for seq in (1, 2, 5):
        await desk.came("task-1", seq=seq)
    found = await reader.get("/task?task=task-1")
    assert re.search(r"#2.*#3 to #4.*had not arrived.*#5", found, re.DOTALL)
    assert re.search(r'<a href="/notifications/\d+"><strong>#5</strong></a>', found)
    assert re.search(r'href="/notifications" aria-current="page"', found)


async def test_a_task_is_found_whatever_characters_its_sender_put_in_its_id(
    desk: Desk, reader: Browser
) -> None:
    task = "task\x1b[2J\r\n\x7f"
    await desk.came(task)
    [found] = await InboxAdmin(desk.database).find()
    shown = await reader.get(f"/notifications/{found.id}")
    assert f"/notifications/{found.id}" in await reader.get(reader.link(shown, "task\x1b[2J"))
    query = urlencode({"task": task})
    assert f"/notifications/{found.id}" in await reader.get(f"/notifications?{query}")


async def test_a_body_is_shown_on_request_and_is_no_markup(desk: Desk, reader: Browser) -> None:
    await desk.came("<script>alert(1)</script>")
    found = await reader.get("/notifications")
    link = re.search(r'href="(/notifications/\d+)"', found)
    assert link
    assert "TASK_STATE_WORKING" not in await reader.get(link[1])
    found += await reader.get("/queues")
    found += await reader.get(f"{link[1]}?body=1")
    found += await reader.get(f"/task?{urlencode({'task': '<script>alert(1)</script>'})}")
    assert "TASK_STATE_WORKING" in found
    assert "<script>alert" not in found


async def test_notifications_come_newest_first_in_pages(desk: Desk, reader: Browser) -> None:
    for number in range(60):
        await desk.came(f"task-{number}")
    first = await reader.get("/notifications")
    second = await reader.get(reader.link(first, "Older"))
    found = re.findall(r'title="(task-\d+)#1"', first + second)
    assert found == [f"task-{number}" for number in reversed(range(60))]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/notifications/1", 404),
        ("/notifications/x", 404),
        ("/notifications?status=nonsense", 400),
        ("/notifications?before=x", 400),
        ("/task", 400),
        ("/api/v1/notifications?task=%00", 400),
        *((f"/queues?after={quote(after)}", 400) for after in ("%00", "agent\ntask", "%zz")),
    ],
)
async def test_an_unknown_path_or_invalid_query_is_refused(
    reader: Browser, path: str, status: int
) -> None:
    await reader.get(path, status)


async def test_the_api_shows_the_same(desk: Desk, reader: Browser) -> None:
    await desk.came("task-1")
    [found] = (await reader.document("/notifications"))["notifications"]
    assert (found["task_id"], found["status"]) == ("task-1", "received")
    steps = (await reader.document(f"/notifications/{found['id']}"))["steps"]
    numbers = [1, 2, 3, 4, 4, 4, 4, 5, 1, 3, 6, 6, 7, 8, 9, 10]
    assert [each["step"] for each in steps] == numbers


async def test_dead_letters_are_redriven_one_by_one_and_together(
    desk: Desk, aiohttp_client: AiohttpClient
) -> None:
    for number in range(3):
        await desk.came(f"bad-{number}")
    await desk.call_back()
    admin = InboxAdmin(desk.database)
    access = DashboardAccess(token=TOKEN, allow_actions=True)
    operator = await Browser.at(inbox_dashboard(admin, access=access), aiohttp_client)
    assert "<h1>Log in</h1>" in await operator.get("/")
    await operator.log_in()
    first, *_, last = (await admin.browse()).items

    shown = await operator.get(f"/notifications/{first.id}")
    assert "1 redriven." in await operator.submit(shown, "Redrive")
    shown = await operator.get("/notifications?status=dead")
    assert "1 redriven." in await operator.submit(shown, "Redrive", id=str(last.id))
    desk.mended = True
    await desk.call_back()

    statuses = [each.status for each in (await admin.browse()).items]
    assert statuses == [InboxStatus.DONE, InboxStatus.DEAD, InboxStatus.DONE]


async def test_a_late_notification_closes_its_gap(desk: Desk, reader: Browser) -> None:
    for seq in (1, 5, 3):
        await desk.came("task-1", seq=seq)
    lines = (await reader.document("/task?task=task-1"))["lines"]
    shown = [(each["first"], each["last"]) if each["gap"] else each["seq"] for each in lines]
    assert shown == [1, 3, (2, 2), (4, 4), 5]


async def test_callbacks_that_fail_are_shown_by_how(desk: Desk, reader: Browser) -> None:
    for task in ("bad-1", "bad-2", "good-1"):
        await desk.came(task)
    await desk.call_back()
    [found] = (await reader.document("/callbacks"))["callbacks"]
    [trouble] = found["troubles"]
    assert (found["callback"], trouble["error"]) == ("handlers:told", "ValueError")
    assert (trouble["dead"], trouble["waiting"]) == (2, 0)
    shown = await reader.get("/callbacks")
    assert "handlers:told" in shown
    assert SECRET not in shown


async def test_where_no_receiver_runs_refusals_are_not_known(reader: Browser) -> None:
    assert "Refusals are not stored" in await reader.get("/refusals")
    await reader.get("/refusals/1", 404)


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [("bad-1", "<h1>bad-1</h1>"), ("#1", "3. signature"), ("", "<h1>Notifications</h1>")],
)
async def test_a_search_finds_tasks_and_numbers(
    desk: Desk, reader: Browser, wanted: str, shown: str
) -> None:
    await desk.came("bad-1")
    assert shown in await reader.get(f"/search?{urlencode({'q': wanted})}")


# --- queues --------------------------------------------------------------------------------------


async def test_a_queue_is_shown_with_the_process_that_leases_it(
    desk: Desk, reader: Browser
) -> None:
    await desk.came("leased", worker=WORKER)
    await desk.came("waits")
    await desk.came("waits", seq=2)

    found = {each["task_id"]: each for each in (await reader.document("/queues"))["queues"]}
    page = await reader.get("/queues")

    assert found["leased"]["worker"] == WORKER
    assert found["leased"]["leased_at"] < found["leased"]["lease_until"]
    assert found["leased"]["due_at"] is None
    assert found["waits"]["worker"] is found["waits"]["leased_at"] is None
    assert found["waits"]["waiting"] == {"number": 2, "more": False}
    assert found["waits"]["due_at"] is not None
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    assert [WORKER in row for row in rows[1:]] == [True, False]
    assert "nobody" in rows[2]
    assert 'href="/task?task=waits&amp;sender=agent"' in rows[2]


async def test_a_notification_without_a_task_is_alone_in_its_queue(
    desk: Desk, reader: Browser
) -> None:
    await desk.came(None)

    [found] = (await reader.document("/queues"))["queues"]

    assert (found["task_id"], found["id"]) == (None, "agent%0Ddlv_1")
    assert "no task" in await reader.get("/queues")


async def test_queues_come_in_pages(desk: Desk, reader: Browser) -> None:
    assert "No process leases a queue" in await reader.get("/queues")
    tasks = ["a/b", "c d", "\x1b[31m", "é"]
    for task in tasks:
        await desk.came(task)

    seen, query = list[str](), "?limit=1"
    while query:
        page = await reader.document(f"/queues{query}")
        seen += [each["task_id"] for each in page["queues"]]
        query = page["after"] and f"?limit=1&after={quote(page['after'], safe='')}"
    link = reader.link(await reader.get("/queues?limit=3"), "More")

    assert sorted(seen) == sorted(tasks)
    assert "queue" in await reader.get(f"/queues{link}")
