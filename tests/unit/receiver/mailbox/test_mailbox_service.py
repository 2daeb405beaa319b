"""A mailbox over HTTP: polls, leases, settlements, and who may do so."""

from __future__ import annotations

import asyncio
import hashlib
import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient
from pytest_aiohttp.plugin import AiohttpClient

from pushkit.errors import ConfigError
from pushkit.webui.access import DashboardAccess
from receiver import Headers, MailboxOptions, Receiver, WebhookRequest
from receiver.dashboard.app import inbox_dashboard
from receiver.inbox.mailboxes import MailboxQueues
from receiver.mailbox.messages import fetched
from tests.clock import START
from tests.eventually import DEADLINE, eventually
from tests.metrics_page import MetricsRead
from tests.unit.receiver.conftest import BASE_URL, trusted_sender
from tests.unit.receiver.mailbox.conftest import LEASE, MAILBOX_TOKEN, make_laptop

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import WorldFactory
    from tests.unit.receiver.mailbox.conftest import Laptop


async def test_hands_out_each_task_in_order_one_at_a_time(laptop: Laptop) -> None:
    await laptop.accept(1, 2)
    await laptop.accept(1, task_id="task-2")

    first = await laptop.poll("?max=8")
    assert first.seqs == [("task-1", 1), ("task-2", 1)]
    assert (await laptop.poll("?max=8")).found == []

    await laptop.settle("ack", first.found[0]["receipt"])
    assert (await laptop.poll("?max=8")).seqs == [("task-1", 2)]


async def test_hands_out_what_was_signed_and_verified(laptop: Laptop) -> None:
    await laptop.accept(7)

    [found] = (await laptop.poll()).found

    draft = laptop.world.draft(7)
    assert found["body"].encode() == draft.body
    assert found["delivery_id"] == draft.delivery_id
    assert (found["sender"], found["task_id"], found["seq"]) == ("agent", "task-1", 7)
    assert (found["attempt"], found["lease_seconds"]) == (1, LEASE.total_seconds())
    assert found["idempotency_key"] == f"agent:{draft.delivery_id}"


async def test_a_poll_waits_for_what_comes(laptop: Laptop) -> None:
    waiting = asyncio.create_task(laptop.poll("?wait=60"))
    await asyncio.sleep(0)
    await laptop.accept(1)

    assert (await waiting).seqs == [("task-1", 1)]


async def test_a_lease_that_ends_gives_the_notification_out_again(laptop: Laptop) -> None:
    await laptop.accept(1, 2)
    lost = (await laptop.poll()).found[0]["receipt"]
    laptop.world.clock.advance(60)
    assert (await laptop.poll()).found == []  # it waits as the schedule says
    laptop.world.clock.advance(10)

    [again] = (await laptop.poll()).found

    assert (again["seq"], again["attempt"]) == (1, 2)
    for verb in ("ack", "nack", "renew"):
        refused = await laptop.settle(verb, lost)
        assert (refused.status, refused.code) == (409, "lease_lost")
    assert (await laptop.settle("ack", again["receipt"])).status == 200


@pytest.mark.parametrize("most", [1, 2])
async def test_a_stream_hands_out_again_what_nobody_settled(
    laptop: Laptop, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("receiver.mailbox.service._LOOK_SECONDS", 0.02)
    headers = {"Authorization": f"Bearer {MAILBOX_TOKEN}", "Accept": "text/event-stream"}
    for number in range(most):
        await laptop.accept(1, task_id=f"task-{number}")

    async with (
        asyncio.timeout(DEADLINE),
        laptop.client.get(f"/mailbox/laptop?max={most}", headers=headers) as stream,
    ):

        async def attempt() -> int:
            while not (line := await stream.content.readline()).startswith(b"data: "):
                pass
            attempt: int = json.loads(line.removeprefix(b"data: "))["attempt"]
            return attempt

        assert [await attempt() for _ in range(most)] == [1] * most
        laptop.world.clock.advance(60)
        await eventually(lambda: has_ended(laptop))
        laptop.world.clock.advance(10)
        assert [await attempt() for _ in range(most)] == [2] * most


async def has_ended(laptop: Laptop) -> bool:
    """Whether no lease is left."""
    return not (await laptop.state()).handed_out


async def test_a_lease_that_is_renewed_does_not_end(laptop: Laptop) -> None:
    await laptop.accept(1)
    receipt = (await laptop.poll()).found[0]["receipt"]
    laptop.world.clock.advance(30)

    renewed = await laptop.settle("renew", receipt)
    laptop.world.clock.advance(30)

    assert (renewed.status, renewed.message["state"]) == (200, "pending")
    assert renewed.message["lease_until"] == (START + 1.5 * LEASE).isoformat()
    assert (await laptop.poll()).found == []
    assert (await laptop.settle("ack", receipt)).status == 200


async def test_a_clock_that_is_set_back_ends_no_lease_of_another_mailbox(
    make_world: WorldFactory, aiohttp_client: AiohttpClient
) -> None:
    world = make_world()
    shortly = MailboxOptions(name="other", tokens=[MAILBOX_TOKEN], lease=timedelta(seconds=5))
    world.receiver.mailbox(shortly)
    laptop = await make_laptop(world, aiohttp_client)
    await laptop.accept(1)
    [found] = (await laptop.poll()).found
    await laptop.ask("GET", "/mailbox/other")

    world.clock.advance(-1)
    await laptop.ask("GET", "/mailbox/other")
    world.clock.advance(10)
    await laptop.poll()

    assert (await laptop.settle("ack", found["receipt"])).status == 200


async def test_a_client_may_say_when_it_wants_it_again(laptop: Laptop) -> None:
    await laptop.accept(1)
    receipt = (await laptop.poll()).found[0]["receipt"]
    await laptop.settle("nack", receipt, retry_after=3600)
    laptop.world.clock.advance(3599)
    assert (await laptop.poll()).found == []
    laptop.world.clock.advance(1)

    assert len((await laptop.poll()).found) == 1


async def test_what_fails_too_often_is_a_dead_letter_and_the_next_one_comes(
    laptop: Laptop, caplog: pytest.LogCaptureFixture
) -> None:
    await laptop.accept(1, 2)
    states = []
    for _ in range(3):
        receipt = (await laptop.poll()).found[0]["receipt"]
        states.append((await laptop.settle("nack", receipt)).message["state"])
        laptop.world.clock.advance(20)

    assert states == ["pending", "pending", "dead"]
    assert "is a dead letter: mailbox:laptop: nacked" in caplog.text
    assert (await laptop.poll()).seqs == [("task-1", 2)]
    assert (await laptop.state()).dead == 1


async def test_leases_that_end_too_often_are_a_dead_letter(
    laptop: Laptop, caplog: pytest.LogCaptureFixture
) -> None:
    await laptop.accept(1)
    for _ in range(3):
        assert len((await laptop.poll()).found) == 1
        laptop.world.clock.advance(60)
        assert (await laptop.poll()).found == []
        laptop.world.clock.advance(20)

    assert "is a dead letter: mailbox:laptop: its lease ended" in caplog.text
    state = await laptop.state()
    assert (state.pending, state.dead) == (0, 1)


@pytest.mark.parametrize(
    ("path", "token"),
    [
        pytest.param("/mailbox/laptop", None, id="no-token"),
        pytest.param("/mailbox/laptop", "another-token-of-somebody", id="another-token"),
        pytest.param("/mailbox/laptop", MAILBOX_TOKEN[:-1], id="a-part-of-it"),
        pytest.param("/mailbox/other", MAILBOX_TOKEN, id="the-token-of-another-mailbox"),
        pytest.param("/mailbox/", MAILBOX_TOKEN, id="no-name"),
        pytest.param("/mailbox/nobody/ack", MAILBOX_TOKEN, id="no-such-mailbox"),
    ],
)
async def test_only_its_own_token_opens_a_mailbox(
    make_world: WorldFactory, aiohttp_client: AiohttpClient, path: str, token: str | None
) -> None:
    world = make_world()
    world.receiver.mailbox(MailboxOptions(name="other", tokens=["the-token-of-the-other-one"]))
    laptop = await make_laptop(world, aiohttp_client)
    await laptop.accept(1)

    refused = await laptop.ask("GET", path, token=token)

    assert (refused.status, refused.code) == (401, "mailbox_unauthorized")
    assert refused.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/hooks/mailbox/laptop", "/mailbox/laptop"])
async def test_a_proxy_may_leave_the_path_of_the_url_or_strip_it(
    tmp_path: Path, aiohttp_client: AiohttpClient, path: str
) -> None:
    receiver = Receiver(
        url=f"{BASE_URL}/hooks", senders=[trusted_sender()], database=tmp_path / "inbox.db"
    )
    receiver.mailbox(MailboxOptions(name="laptop", tokens=[MAILBOX_TOKEN]))
    client = await aiohttp_client(receiver.app())

    async with client.get(path, headers={"Authorization": f"Bearer {MAILBOX_TOKEN}"}) as answer:
        assert answer.status == 200


async def test_every_token_of_a_mailbox_opens_it(
    make_world: WorldFactory, aiohttp_client: AiohttpClient
) -> None:
    tokens = [MAILBOX_TOKEN, "its-next-token-that-replaces-it"]
    laptop = await make_laptop(make_world(), aiohttp_client, tokens=tokens)

    answers = [await laptop.ask("GET", "/mailbox/laptop", token=each) for each in tokens]

    assert [each.status for each in answers] == [200, 200]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        pytest.param("GET", "?wait=-1", None, id="negative"),
        pytest.param("GET", "?wait=1e9", None, id="no-number"),
        pytest.param("GET", "?max=0", None, id="nothing-at-all"),
        pytest.param("GET", "/ack", None, id="get-of-ack"),
        pytest.param("POST", "", "{}", id="post-to-the-mailbox"),
        pytest.param("POST", "/steal", "{}", id="another-verb"),
        pytest.param("POST", "/ack", "{}", id="no-receipt"),
        pytest.param("POST", "/ack", '{"receipt": 7}', id="a-number"),
        pytest.param("POST", "/ack", '{"receipt": "7.99999999999999999999"}', id="too-large"),
        pytest.param("POST", "/ack", "[]", id="a-list"),
        pytest.param("POST", "/ack", "{", id="no-json"),
        pytest.param("POST", "/ack", '{"receipt": "%s"}' % ("1" * 5000), id="too-long"),
        pytest.param("POST", "/nack", '{"receipt": "1.1", "retry_after": -1}', id="in-the-past"),
        pytest.param("POST", "/nack", '{"receipt": "1.1", "retry_after": true}', id="a-boolean"),
    ],
)
async def test_a_malformed_request_is_refused(
    laptop: Laptop, method: str, path: str, body: str | None
) -> None:
    refused = await laptop.ask(method, f"/mailbox/laptop{path}", data=body)

    assert (refused.status, refused.code) in [(400, "malformed_request"), (400, "malformed_json")]


async def test_a_framework_that_sends_whole_answers_is_asked_for_no_stream(
    laptop: Laptop, caplog: pytest.LogCaptureFixture
) -> None:
    fields = {"Authorization": f"Bearer {MAILBOX_TOKEN}", "Accept": "text/event-stream"}
    asked = WebhookRequest(
        method="GET", target="/mailbox/laptop", headers=Headers(fields), body=b""
    )

    answer = await laptop.world.receiver.receive(asked)

    assert (answer.status, answer.code) == (400, "malformed_request")
    assert "mailbox: Accept: found text/event-stream, expected polls" in caplog.text


@pytest.mark.parametrize("other", ["application/json", "*/*;q=0.1"])
async def test_a_client_that_takes_both_polls_where_there_are_no_streams(
    laptop: Laptop, other: str
) -> None:
    accept = f"text/event-stream, {other}"
    fields = {"Authorization": f"Bearer {MAILBOX_TOKEN}", "Accept": accept}
    asked = WebhookRequest(
        method="GET", target="/mailbox/laptop", headers=Headers(fields), body=b""
    )

    answer = await laptop.world.receiver.receive(asked)

    assert (answer.status, answer.body) == (200, b'{"notifications":[]}')


async def test_a_mailbox_that_is_refused_is_not_there(make_world: WorldFactory) -> None:
    receiver = make_world().receiver
    options = MailboxOptions(name="laptop", tokens=[MAILBOX_TOKEN])
    with pytest.raises(ConfigError):
        receiver.mailbox(options, states=["no-such-state"])

    assert receiver.mailboxes == []
    receiver.mailbox(options, states=["completed"])


async def test_a_mailbox_gets_what_it_was_made_for(
    make_world: WorldFactory, aiohttp_client: AiohttpClient
) -> None:
    world = make_world()
    token = "the-token-of-the-other-one"
    world.receiver.mailbox(
        MailboxOptions(name="ends", tokens=[token]), states=["completed"], senders=["agent"]
    )
    laptop = await make_laptop(world, aiohttp_client)
    await laptop.accept(1)
    draft = world.draft(2, state="completed")
    await world.receiver.receive(draft.request(), peer="192.0.2.1")
    await laptop.settled()

    ends = await laptop.ask("GET", "/mailbox/ends?max=9", token=token)

    assert ends.seqs == [("task-1", 2)]
    assert (await laptop.poll()).seqs == [("task-1", 1)]


async def test_a_full_mailbox_leaves_the_rest_in_the_inbox_without_an_attempt(
    make_world: WorldFactory, aiohttp_client: AiohttpClient, caplog: pytest.LogCaptureFixture
) -> None:
    laptop = await make_laptop(make_world(), aiohttp_client, max_backlog=1)
    await laptop.accept(1)
    draft = laptop.world.draft(2)
    await laptop.world.receiver.receive(draft.request(), peer="192.0.2.1")
    await eventually(lambda: "mailbox laptop is full" in caplog.text)
    await laptop.settle("ack", (await laptop.poll()).found[0]["receipt"])
    laptop.world.clock.advance(30)
    laptop.world.receiver.dispatcher.wake()
    await laptop.settled()

    assert (await laptop.poll()).seqs == [("task-1", 2)]
    [kept, _] = await laptop.world.receiver.inbox.find()
    assert kept.attempts == 1


async def test_a_full_mailbox_is_tried_so_often_a_second_however_many_wait(
    make_world: WorldFactory, aiohttp_client: AiohttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("receiver.mailbox.service._TRIED_AGAIN", 0.1)
    laptop = await make_laptop(make_world(), aiohttp_client, max_backlog=1)
    await laptop.accept(1)
    inbox = laptop.world.receiver.inbox
    for number in range(3):
        draft = laptop.world.draft(1, task_id=f"waits-{number}")
        await laptop.world.receiver.receive(draft.request(), peer="192.0.2.1")

    async def are_put_off() -> bool:
        return [each.last_error for each in await inbox.find()].count("put_off") == 3

    await eventually(are_put_off)
    now = laptop.world.clock.now
    pauses = [(each.not_before - now).total_seconds() for each in await inbox.find()]

    assert [round(pause) for pause in sorted(pauses)[1:]] == [30, 40, 50]


async def test_another_process_on_the_same_database_hands_out_and_settles(
    laptop: Laptop, aiohttp_client: AiohttpClient
) -> None:
    other = laptop.world.another_receiver()
    other.mailbox(MailboxOptions(name="laptop", tokens=[MAILBOX_TOKEN], lease=LEASE))
    await laptop.world.receivers.enter_async_context(other)
    server = await laptop.world.server_factory(other.app())
    beside = type(laptop)(laptop.world, await aiohttp_client(server), server)
    await laptop.accept(1, 2)

    receipt = (await laptop.poll()).found[0]["receipt"]
    assert (await beside.poll()).found == []
    waiting = asyncio.create_task(laptop.poll("?wait=60"))
    assert (await beside.settle("ack", receipt)).status == 200

    assert (await waiting).seqs == [("task-1", 2)]


async def test_looks_do_not_grow_with_the_polls_that_wait(
    laptop: Laptop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("receiver.mailbox.service._LOOK_SECONDS", 0.1)
    looks, is_due = 0, MailboxQueues.is_due

    def counted(self: MailboxQueues, mailbox: str) -> Any:
        nonlocal looks
        looks += 1
        return is_due(self, mailbox)

    monkeypatch.setattr(MailboxQueues, "is_due", counted)
    waiting = [asyncio.create_task(laptop.poll("?wait=60")) for _ in range(16)]
    await eventually(lambda: looks == 16)
    looks = 0
    await asyncio.sleep(2)
    while_idle = looks
    looks = 0
    for _ in range(10):
        laptop.world.receiver._look_again()  # another process stored something
        await asyncio.sleep(0.05)
    on_news = looks
    laptop.world.receiver.wind_down()
    await asyncio.gather(*waiting)

    assert while_idle <= 30  # one poll looks 20 times
    assert on_news <= 20


async def test_polls_are_answered_when_the_service_stops(laptop: Laptop) -> None:
    waiting = asyncio.create_task(laptop.poll("?wait=60"))
    await asyncio.sleep(0.05)

    laptop.world.receiver.wind_down()

    assert (await waiting).found == []


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_polls_and_streams_end_before_an_aiohttp_application_breaks_them_off(
    laptop: Laptop, accept: str
) -> None:
    runner = web.AppRunner(laptop.world.receiver.app(), shutdown_timeout=5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    headers = {"Authorization": f"Bearer {MAILBOX_TOKEN}", "Accept": accept}

    async def ask() -> bytes:
        url = f"http://{host}:{port}/mailbox/laptop?wait=60"
        async with laptop.client.session.get(url, headers=headers) as answer:
            return await answer.read()

    waiting = asyncio.create_task(ask())
    server = runner.server
    assert server is not None
    await eventually(lambda: server.requests_count)

    await runner.cleanup()

    assert await waiting in (b'{"notifications":[]}', b": open\n\n")


async def test_metrics_count_what_is_in_mailboxes(laptop: Laptop) -> None:
    async def read() -> MetricsRead:
        return MetricsRead.of((await laptop.world.receiver.metrics.page()).body)

    await laptop.accept(1)
    laptop.world.clock.advance(5)

    found = await read()
    assert found.value("receiver_mailbox", mailbox="laptop", status="pending") == 1
    assert found.value("receiver_mailbox", mailbox="laptop", status="dead") == 0
    assert found.value("receiver_mailbox_oldest_seconds", mailbox="laptop") == 5


async def test_the_dashboard_shows_what_is_in_mailboxes(laptop: Laptop) -> None:
    await laptop.accept(1)
    access = DashboardAccess()
    site = inbox_dashboard(laptop.world.receiver.inbox, access=access)
    server = await laptop.world.server_factory(site.app())
    client: TestClient[Any, Any] = await laptop.world.client_factory(server)

    async with client.get("/mailboxes") as answer:
        assert "<code>laptop</code>" in await answer.text()
    async with client.get("/api/v1/mailboxes") as answer:
        [found] = (await answer.json())["mailboxes"]
    assert (found["mailbox"], found["pending"], found["handed_out"]) == ("laptop", 1, 0)


VECTOR = json.loads((Path(__file__).parents[4] / "docs/vectors/mailbox.json").read_bytes())


def test_the_vector_is_what_a_client_reads() -> None:
    [message] = VECTOR["answer"]["notifications"]

    found = fetched(message)

    assert found.receipt == message["receipt"]
    assert hashlib.sha256(found.notification.body).hexdigest() == VECTOR["body_sha256"]
    assert found.notification.idempotency_key == message["idempotency_key"]
    assert found.notification.task_id == message["task_id"]


async def test_the_vector_is_what_the_service_says(laptop: Laptop) -> None:
    await laptop.accept(1)
    [found] = (await laptop.poll()).found
    [message] = VECTOR["answer"]["notifications"]
    assert [*found, "unknown"] == [*message]

    for one in VECTOR["settlements"]:
        body = json.loads(json.dumps(one["body"]).replace(message["receipt"], found["receipt"]))
        answer = await laptop.ask("POST", f"/mailbox/laptop/{one['verb']}", json=body)
        assert answer.status == one["status"]
        assert answer.message.get("code") == one.get("code")
        assert "answer" not in one or answer.message == one["answer"]
