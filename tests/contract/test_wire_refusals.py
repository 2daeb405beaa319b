"""Every refusal of docs/wire.md is provoked through a public door, and compared with its row."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, MutableMapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import ClientSession, web
from aiohttp.typedefs import Handler
from pytest_aiohttp.plugin import AiohttpServer

from receiver import (
    Limits,
    MailboxOptions,
    RateLimit,
    Receiver,
    SenderProfile,
    TaskPolicy,
    TrustedSender,
    WebhookRequest,
)
from receiver.testing import Draft, SigningAgent
from tests.clock import START, Clock
from tests.contract.pages import codes_in, page, table
from tests.eventually import eventually

BASE, PATH = "https://client.example.com", "/a2a/push"
AGENT = SigningAgent(webhook_url=f"{BASE}{PATH}")
ONCE = RateLimit(per_second=0.1, burst=1)
MAILBOX_TOKEN = "the-token-of-the-laptop-is-private"


class Row(NamedTuple):
    """A refusal, as the pages describe it."""

    number: str  # of the step; empty for what is no step of the verification
    steps: frozenset[str]  # the names of the steps that it may come from
    status: int
    code: str
    retry_after: str  # in seconds; empty if the page names none


def rows() -> Iterator[Row]:
    """Yield the refusals of the steps of docs/wire.md, then those of docs/reference/codes.md."""
    described = {
        codes_in(code)[0]: (int(status), frozenset(codes_in(steps)), in_seconds(wait))
        for code, status, steps, wait, *_ in table("reference/codes.md", "| code | status | step |")
    }
    for number, named, _, refusals in table("wire.md", "| step | named | check | refusal |"):
        for status, code in stated(refusals):
            expected, steps, wait = described[code]
            assert status == expected, code
            yield Row(number, steps.intersection(codes_in(named)), status, code, wait)
    for code, (status, steps, wait) in described.items():
        if not steps:  # what has any, the other page has to name
            yield Row("", steps, status, code, wait)


def stated(refusals: str) -> Iterator[tuple[int, str]]:
    """Read `429 `rate_limited`; 400 `incomplete_body`, `malformed_request``."""
    status = 0
    for number, code in re.findall(r"(\d{3})|`(\w+)`", refusals):
        if number:
            status = int(number)
        else:
            yield status, code


def in_seconds(wait: str) -> str:
    number, _, unit = wait.partition(" ")
    return str(int(number) * {"s": 1, "min": 60}[unit]) if wait else ""


ROWS = list(rows())


# --- the doors -----------------------------------------------------------------------------------


class Seen(NamedTuple):
    """What came of a request."""

    status: int
    code: str
    retry_after: str | None = None


@dataclass
class Door:
    """Makes a receiver, and hands it requests."""

    database: Path
    serve: AiohttpServer
    stack: contextlib.AsyncExitStack
    clock: Clock = field(default_factory=Clock)
    events: list[Any] = field(default_factory=list)

    async def receiver(
        self,
        *others: str,
        started: bool = True,
        sender: dict[str, Any] | None = None,
        **options: Any,
    ) -> Receiver:
        """Return a receiver with one sender, or with further ones that are trusted alike."""
        settings: dict[str, Any] = {
            "issuer": AGENT.issuer,
            "keys": [AGENT.key.to_verification_key()],
            "tokens": (AGENT.token,),
            "tasks": TaskPolicy.ANY,
            **(sender or {}),
        }
        receiver = Receiver(
            url=BASE,
            senders=[TrustedSender(name=name, **settings) for name in ("agent", *others)],
            database=self.database,
            clock=self.clock,
            on_event=self.events.append,
            drain=timedelta(0),
            **options,
        )
        return await self.stack.enter_async_context(receiver) if started else receiver

    def draft(self, number: int = 1) -> Draft:
        return replace(AGENT.draft("task-1", number), issued_at=self.clock.now)

    async def hand_over(self, receiver: Receiver, request: WebhookRequest) -> Seen:
        answer = await receiver.receive(
            request, path=request.target.removeprefix(BASE).split("?")[0]
        )
        return Seen(answer.status, answer.code, dict(answer.headers).get("Retry-After"))

    async def post(self, app: web.Application, path: str = PATH, body: Any = None) -> Seen:
        """Post a genuine notification to this path of a server on loopback."""
        url, request = (await self.serve(app)).make_url(path), self.draft().request()
        headers, body = list(request.headers), request.body if body is None else body
        async with (
            ClientSession() as client,
            client.post(url, data=body, headers=headers) as answer,
        ):
            problem = await answer.json(content_type=None)
            return Seen(answer.status, problem["code"], answer.headers.get("Retry-After"))

    def change_storage(self, statement: str) -> None:
        """Change every table behind the receiver's back."""
        with contextlib.closing(sqlite3.connect(self.database)) as database, database:
            tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'pushkit%'"
            for (name,) in database.execute(tables).fetchall():
                database.execute(statement.format(name))


@pytest.fixture
async def door(tmp_path: Path, aiohttp_server: AiohttpServer) -> AsyncIterator[Door]:
    async with contextlib.AsyncExitStack() as stack:
        yield Door(tmp_path / "inbox.db", aiohttp_server, stack)


# --- the cases -----------------------------------------------------------------------------------

Case = Callable[[Door], Awaitable[Seen]]


def posting(
    sender: dict[str, Any] | None = None,
    *others: str,
    first: bool = False,  # whether a genuine notification is accepted before
    storage: str = "",  # what becomes of each table
    draft: dict[str, Any] | Callable[[Draft], Draft] | None = None,  # what is changed in it
    request: dict[str, Any] | None = None,
    started: bool = True,
    **options: Any,
) -> Case:
    """Hand over a genuine notification with one change, to a receiver with one change."""

    async def provoke(door: Door) -> Seen:
        receiver = await door.receiver(*others, sender=sender, started=started, **options)
        if first:
            receiver.wind_down()  # what is accepted stays unfinished
            assert (await door.hand_over(receiver, door.draft().request())).code == "accepted"
        if storage:
            door.change_storage(storage)
        made = door.draft(2)
        made = draft(made) if callable(draft) else replace(made, **(draft or {}))
        return await door.hand_over(receiver, replace(made.request(), **(request or {})))

    return provoke


def sending(name: str, *values: str) -> dict[str, Any]:
    return {"headers_sent": {name: values}}


def with_two_signatures(draft: Draft) -> Draft:
    bearer = f"Bearer {draft.jwt()}"
    return replace(draft, headers_sent={"Authorization": (bearer, bearer)})


async def a_slow_body(door: Door) -> Seen:
    receiver = await door.receiver(limits=Limits(request_timeout=timedelta(milliseconds=50)))

    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        await eventually(lambda: door.events)

    return await door.post(receiver.app(), body=body())


async def a_body_that_breaks_off(door: Door) -> Seen:
    """Nobody is left who reads the answer: the event has it."""
    receiver = await door.receiver()
    head = {"type": "http", "method": "POST", "path": PATH, "raw_path": PATH.encode()}
    fields = [
        (name.lower().encode(), value.encode()) for name, value in door.draft().request().headers
    ]

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        raise AssertionError(message)

    await receiver.asgi()({**head, "headers": fields}, receive, send)
    return Seen(door.events[-1].status, door.events[-1].code)


async def a_body_that_a_middleware_has_read(door: Door) -> Seen:
    @web.middleware
    async def reading_first(request: web.Request, handler: Handler) -> web.StreamResponse:
        await request.content.read()
        return await handler(request)

    app = web.Application(middlewares=[reading_first])
    app.add_subapp("/hooks", (await door.receiver(started=False)).app())
    return await door.post(app, f"/hooks{PATH}")


async def a_used_id(door: Door) -> Seen:
    receiver = await door.receiver()
    first = door.draft()
    for body in (first.body, first.body + b" "):
        seen = await door.hand_over(receiver, replace(first, body=body).request())
    return seen


async def a_defect(door: Door) -> Seen:
    """A filter of the application's is the part of a receiver that can be broken from outside."""

    def broken(_: logging.LogRecord) -> bool:
        raise RuntimeError("a fault of the application")

    receiver = await door.receiver()
    log = logging.getLogger("receiver")
    log.addFilter(broken)
    try:
        return await door.hand_over(receiver, replace(door.draft(), audience=BASE).request())
    finally:
        log.removeFilter(broken)


@contextlib.asynccontextmanager
async def laptop(door: Door) -> AsyncIterator[Callable[..., Coroutine[Any, Any, tuple[Seen, Any]]]]:
    """Serve a receiver with a mailbox in which is one notification; yield what asks its service."""
    receiver = await door.receiver(started=False)
    receiver.mailbox(MailboxOptions(name="laptop", tokens=[MAILBOX_TOKEN], max_polls=1))
    server = await door.serve(receiver.app())
    assert (await door.hand_over(receiver, door.draft().request())).code == "accepted"
    async with ClientSession() as client:

        async def ask(
            path: str = "?wait=60", token: str = MAILBOX_TOKEN, **body: str
        ) -> tuple[Seen, Any]:
            headers = {"Authorization": f"Bearer {token}"}
            method, url = "POST" if body else "GET", server.make_url(f"/mailbox/laptop{path}")
            async with client.request(method, url, headers=headers, json=body or None) as answer:
                said = await answer.json(content_type=None)
                wait = answer.headers.get("Retry-After")
                return Seen(answer.status, said.get("code", ""), wait), said

        yield ask


async def another_token(door: Door) -> Seen:
    async with laptop(door) as ask:
        return (await ask(token="another-token-of-somebody"))[0]


async def a_second_poll(door: Door) -> Seen:
    async with laptop(door) as ask:
        await ask()  # the one that there is
        both = [asyncio.create_task(ask()) for _ in range(2)]  # whichever arrives last is refused
        [refused], [waiting] = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        return refused.result()[0]


async def an_invented_receipt(door: Door) -> Seen:
    async with laptop(door) as ask:
        return (await ask("/ack", receipt="7.7"))[0]


async def a_late_ack(door: Door) -> Seen:
    async with laptop(door) as ask:
        [notification] = (await ask())[1]["notifications"]
        door.clock.advance(61)
        await ask("?wait=0")
        return (await ask("/ack", receipt=notification["receipt"]))[0]


NO_KEYS = {"keys": None, "jwks_url": "http://127.0.0.1:1/jwks.json"}
NO_KEYS_OF_TWO = NO_KEYS | {"profile": SenderProfile.A2A_SAMPLES, "issuer": None}
OTHER_TOKEN = "another-token-that-is-private"
LOST = "DROP TABLE {0}"
FULL = "CREATE TRIGGER on_{0} BEFORE INSERT ON {0} BEGIN SELECT RAISE(ABORT, 'full'); END"
# As another process leaves it that stores the same id at this moment.
RACED = FULL.replace("ABORT, 'full'", "IGNORE")

# By the number of the step, or nothing, and the code: what provokes it.
CASES: dict[tuple[str, str], Case] = {
    ("1", "rate_limited"): posting(first=True, limits=Limits(peer_rate=ONCE)),
    ("1", "headers_too_large"): posting(draft=sending("X-Padding", "x" * 20_000)),
    ("1", "body_too_large"): posting(limits=Limits(max_body_bytes=100)),
    ("1", "body_timeout"): a_slow_body,
    ("1", "incomplete_body"): a_body_that_breaks_off,
    ("1", "malformed_request"): posting(draft=sending("Content-Type", *["application/json"] * 2)),
    ("1", "body_consumed"): a_body_that_a_middleware_has_read,
    ("1", "unsupported_media_type"): posting(draft=sending("Content-Type", "text/plain")),
    ("2", "unknown_sender"): posting(draft={"issuer": "https://evil.example.com"}),
    ("2", "keys_unavailable"): posting(NO_KEYS_OF_TWO, "other", allow=["127.0.0.1:*"]),
    ("3", "invalid_signature"): posting(draft=Draft.forged),
    ("3", "digest_mismatch"): posting(draft={"body_sent": b"{}"}),
    ("3", "keys_unavailable"): posting(NO_KEYS, allow=["127.0.0.1:*"]),
    ("3", "malformed_request"): posting(draft=with_two_signatures),
    ("4", "invalid_claims"): posting(draft={"claims": {"exp": None}}),
    ("4", "stale_timestamp"): posting(draft={"issued_at": START - timedelta(seconds=301)}),
    ("4", "wrong_audience"): posting(draft={"audience": "https://evil.example.com/"}),
    ("4", "malformed_request"): posting(draft=sending("webhook-id", "another")),
    ("5", "malformed_request"): posting(draft=sending("X-Api-Key", "a", "a")),
    ("5", "invalid_token"): posting(draft={"token": OTHER_TOKEN}),
    ("5", "storage"): posting(storage=LOST, draft={"token": OTHER_TOKEN}),
    ("6", "rate_limited"): posting(first=True, limits=Limits(sender_rate=ONCE)),
    ("6", "malformed_request"): posting(draft={"task_id": "task-2"}),
    ("6", "malformed_body"): posting(draft={"body": b"{"}),
    ("6", "unrecognised_body"): posting(draft={"body": b"{}"}),
    ("7", "id_conflict"): a_used_id,
    ("7", "storage"): posting(storage=LOST),
    ("8", "task_not_expected"): posting({"tasks": TaskPolicy.REGISTERED}),
    ("9", "being_stored"): posting(storage=RACED),
    ("9", "inbox_full"): posting(first=True, limits=Limits(max_backlog=1)),
    ("9", "storage"): posting(storage=FULL),
    ("9", "backlog_full"): posting(first=True, limits=Limits(max_backlog_per_sender=1)),
    ("", "not_found"): posting(request={"target": "/elsewhere"}),
    ("", "method_not_allowed"): posting(request={"method": "PUT"}),
    ("", "invalid_validation_token"): posting(
        request={"method": "GET", "target": f"{PATH}?validationToken=%3Cb%3E"}, validation_echo=True
    ),
    ("", "mailbox_unauthorized"): another_token,
    ("", "mailbox_busy"): a_second_poll,
    ("", "unknown_receipt"): an_invented_receipt,
    ("", "lease_lost"): a_late_ack,
    ("", "not_started"): posting(started=False),
    ("", "internal"): a_defect,
}
# What no request to a receiver shows, and who does.
UNPROVOKED = {
    ("4", "wrong_issuer"): "the issuer selects the sender: without one, it is unknown",
    ("6", "malformed_json"): "a body that is no JSON is refused by `malformed_body`",
    ("8", "storage"): "what this step reads was read in the step before",
    (
        "",
        "malformed_http",
    ): "the service alone, whose server reads the bytes: serving/test_http1.py",
    ("", "head_timeout"): "the service alone: serving/test_hostile_sockets.py",
}
# Only their bucket knows how long.
WITH_A_WAIT_OF_ITS_OWN = {"rate_limited"}


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if (row.number, row.code) not in UNPROVOKED],
    ids=lambda row: f"{row.number} {row.code}".strip(),
)
async def test_a_refusal_is_what_its_row_says(door: Door, row: Row) -> None:
    seen = await CASES[row.number, row.code](door)

    assert (seen.status, seen.code) == (row.status, row.code)
    if row.code in WITH_A_WAIT_OF_ITS_OWN:
        assert int(seen.retry_after or 0) > 0
    else:
        assert (seen.retry_after or "") == row.retry_after
    came_to = [event.steps for event in door.events if getattr(event, "code", "") == row.code]
    if row.number:
        assert came_to[-1][-1] in row.steps
    else:
        assert not any(came_to)


def test_every_row_has_a_case_or_a_reason_and_no_more() -> None:
    assert sorted([*CASES, *UNPROVOKED]) == sorted((row.number, row.code) for row in ROWS)
    listed = table("reference/codes.md", "| code | status | step |")
    assert {row.code for row in ROWS} == {codes_in(code)[0] for code, *_ in listed}


def test_the_page_states_the_refusals_beside_the_steps() -> None:
    text = " ".join(page("wire.md").split())
    others = re.search(r"Other refusals: ([^.]*)\.", text)
    mailboxes = re.search(r"Clients of \[a mailbox\]\S* are refused by ([^.]*)\.", text)
    assert others
    assert mailboxes
    beside = {row.code: row.status for row in ROWS if not row.number}
    said = {code: status for status, code in stated(others[1])}
    assert said.items() <= beside.items()
    assert beside.keys() - said.keys() == set(codes_in(mailboxes[1]))
