"""The ASGI application and middleware, in real hosts behind a real uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from pushkit import KeyRing, PushSender, StatusUpdate, TaskState, TaskStatus
from pushkit.errors import StorageError
from pushkit.webhook import Headers
from receiver import Limits, MailboxOptions, Notification, Receiver, TaskPolicy, TrustedSender, asgi
from receiver.middleware import ReceiverMiddleware
from tests.asgi_server import answers_to_a_websocket, serving
from tests.eventually import DEADLINE, eventually
from tests.unit.receiver.drafts import sending
from tests.unit.receiver.serving.sockets import connected, raw

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory

ISSUER = "https://agent.example.com"

Host = Callable[[Receiver], Any]


def fastapi_mount(receiver: Receiver) -> FastAPI:
    app = FastAPI(lifespan=receiver.lifespan)
    app.mount("/hooks", receiver.asgi())
    return app


def fastapi_middleware(receiver: Receiver) -> FastAPI:
    app = FastAPI()
    app.add_middleware(ReceiverMiddleware, receiver=receiver, prefix="/hooks")

    @app.get("/hooks/own")
    async def own() -> str:
        return "the host's"

    return app


def starlette_nested(receiver: Receiver) -> Starlette:
    inner = Starlette(routes=[Mount("/hooks", receiver.asgi())])
    return Starlette(routes=[Mount("/", inner)], lifespan=receiver.lifespan)


HOSTS = [
    pytest.param(fastapi_mount, "", id="fastapi-mount"),
    pytest.param(fastapi_middleware, "", id="fastapi-middleware"),
    pytest.param(starlette_nested, "", id="starlette-nested"),
    pytest.param(fastapi_mount, "/public", id="mount-behind-a-proxy-that-strips"),
    pytest.param(fastapi_middleware, "/public", id="middleware-behind-a-proxy-that-strips"),
]


def receiver_at(port: int, keys: KeyRing, folder: Path) -> Receiver:
    """Return a receiver that is mounted under /hooks, and trusts these keys."""
    key = keys.signing_key(datetime.now(UTC)).to_verification_key()
    sender = TrustedSender(
        name="agent",
        issuer=ISSUER,
        keys=[key],
        tokens=["tok-1"],
        tasks=TaskPolicy.ANY,
    )
    return Receiver(
        url=f"http://127.0.0.1:{port}/hooks", senders=[sender], database=folder / "inbox.db"
    )


@pytest.mark.parametrize(("host", "root_path"), HOSTS)
async def test_a_signed_delivery_reaches_the_callback_of_a_mounted_receiver(
    host: Host, root_path: str, tmp_path: Path, unused_tcp_port: int
) -> None:
    keys = KeyRing.create(datetime.now(UTC))
    receiver = receiver_at(unused_tcp_port, keys, tmp_path)
    called: list[Notification] = []

    @receiver.on_status("completed")
    async def completed(notification: Notification) -> None:
        called.append(notification)

    push = PushSender(
        issuer=ISSUER, keys=keys, database=tmp_path / "outbox.db", allow=["127.0.0.1:*"]
    )
    app = host(receiver)
    async with serving(app, port=unused_tcp_port, root_path=root_path) as url, push:
        hook = {"url": f"{url}/hooks/a2a/push", "token": "tok-1"}
        await push.subscribe("task-1", hook, version="1.0")
        status = TaskStatus(state=TaskState.COMPLETED)
        await push.notify(StatusUpdate(task_id="task-1", context_id="c", status=status))

        await eventually(lambda: called)
    assert [(n.task_id, n.seq, n.sender) for n in called] == [("task-1", 1, "agent")]


@pytest.mark.parametrize("path", ["/public/hooks/a2a/push", "/hooks/a2a/push"])
@pytest.mark.parametrize("host", [fastapi_mount, fastapi_middleware, starlette_nested])
async def test_a_root_path_may_stand_in_the_path_or_be_left_out(
    host: Host, path: str, world: World
) -> None:
    receiver = await world.start()
    transport = httpx.ASGITransport(host(receiver), root_path="/public")  # Hypercorn leaves it out

    async with httpx.AsyncClient(transport=transport) as client:
        answer = await post(client, f"https://client.example.com{path}", world)

    assert answer.status_code == 202


@pytest.mark.parametrize(
    ("path", "status"),
    [
        pytest.param("/%68ooks/a2a/push", 202, id="a mount in another spelling"),
        pytest.param("/hooks%2Fa2a/push", 404, id="a segment that is partly the mount's"),
    ],
)
@pytest.mark.parametrize("host", [fastapi_mount, fastapi_middleware, starlette_nested])
async def test_a_path_is_read_as_a_middleware_in_front_reads_it(
    host: Host, path: str, status: int, world: World
) -> None:
    transport = httpx.ASGITransport(host(await world.start()))

    async with httpx.AsyncClient(transport=transport) as client:
        answer = await post(client, f"https://client.example.com{path}", world)

    assert answer.status_code == status


async def test_an_application_of_its_own_starts_and_stops_the_receiver(world: World) -> None:
    async with serving(world.receiver.asgi()) as url, httpx.AsyncClient() as client:
        ready = await client.get(f"{url}/readyz")
        answer = await post(client, f"{url}/a2a/push", world)
    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
    assert answer.status_code == 202
    assert await world.receiver.unready()  # closed


async def post(client: httpx.AsyncClient, url: str, world: World) -> httpx.Response:
    request = world.draft().request()
    headers = [(name.encode(), value.encode()) for name, value in request.headers]
    return await client.post(url, content=request.body, headers=headers)


async def test_a_receiver_that_nobody_started_is_a_503_and_the_log_says_what_to_do(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    app = FastAPI()
    app.mount("/hooks", world.receiver.asgi())
    async with serving(app) as url, httpx.AsyncClient() as client:
        answer = await post(client, f"{url}/hooks/a2a/push", world)
        ready = await client.get(f"{url}/hooks/readyz")
    assert answer.status_code == 503
    assert ready.status_code == 503
    assert "the receiver is not started: lifespan=receiver.lifespan" in caplog.text


async def test_the_middleware_hands_on_what_is_not_the_senders(world: World) -> None:
    events: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        events.append(f"start {bool(await world.receiver.unready())}")
        yield
        events.append(f"stop {bool(await world.receiver.unready())}")

    app = FastAPI(lifespan=lifespan)
    app.add_middleware(ReceiverMiddleware, receiver=world.receiver, prefix="/hooks/")
    app.add_route("/healthz", lambda _request: PlainTextResponse("the host's"))
    app.add_route("/hooks/more", lambda _request: PlainTextResponse("the host's"))
    async with serving(app) as url, httpx.AsyncClient() as client:
        answers = [
            await client.get(f"{url}{path}") for path in ("/healthz", "/hooks/more", "/a2a/push")
        ]
        mine = await client.get(f"{url}/hooks/a2a/push")
    assert [answer.status_code for answer in answers] == [200, 200, 404]
    assert answers[2].json() == {"detail": "Not Found"}  # FastAPI's own words
    assert (mine.status_code, mine.json()["code"]) == (405, "method_not_allowed")
    assert events == ["start False", "stop False"]  # the receiver runs around the host


async def a_host_that_raises(scope: Any, _receive: Any, _send: Any) -> None:
    if scope["type"] != "http":
        raise ValueError("Django can only handle ASGI/HTTP connections, not lifespan.")


async def a_host_that_returns(_scope: Any, _receive: Any, _send: Any) -> None:
    return


@pytest.mark.parametrize("host", [a_host_that_raises, a_host_that_returns])
async def test_the_middleware_runs_the_receiver_of_a_host_without_a_lifespan(
    host: Any, world: World
) -> None:
    async with (
        serving(ReceiverMiddleware(host, receiver=world.receiver)) as url,
        httpx.AsyncClient() as client,
    ):
        answer = await post(client, f"{url}/a2a/push", world)
    assert answer.status_code == 202
    assert await world.receiver.unready()  # closed


async def test_a_host_that_fails_to_start_stops_the_receiver(world: World) -> None:
    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        raise RuntimeError("the host's own fault")
        yield

    app = ReceiverMiddleware(Starlette(lifespan=lifespan), receiver=world.receiver)
    sent: list[str] = []

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    with pytest.raises(RuntimeError, match="the host's own fault"):
        await app({"type": "lifespan", "state": {}}, receive, send)
    assert sent == ["lifespan.startup.failed"]
    assert await world.receiver.unready()


async def test_a_receiver_that_cannot_start_reports_the_reason_to_its_server(world: World) -> None:
    world.database = Path("/nowhere/inbox.db")
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    with pytest.raises(StorageError, match="/nowhere") as failed:
        await world.receiver.asgi()({"type": "lifespan"}, receive, send)
    assert sent == [{"type": "lifespan.startup.failed", "message": str(failed.value)}]


@pytest.mark.parametrize(
    "host",
    [
        pytest.param(Receiver.asgi, id="alone"),
        pytest.param(
            lambda receiver: ReceiverMiddleware(Starlette(), receiver=receiver), id="middleware"
        ),
    ],
)
async def test_a_server_that_gives_up_a_start_leaves_no_receiver_open(
    world: World, host: Host
) -> None:
    async with world.receiver:
        pass  # the database is made
    before = set(threading.enumerate())

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def send(_message: Any) -> None:
        pass

    with contextlib.closing(sqlite3.connect(world.database)) as other:
        other.execute("BEGIN IMMEDIATE")  # whoever opens it waits
        living = asyncio.create_task(host(world.receiver)({"type": "lifespan"}, receive, send))
        await asyncio.wait([living], timeout=0.1)
        living.cancel()
        await asyncio.wait([living], timeout=0.1)
    await asyncio.wait([living])

    def have_ended() -> bool:
        began = set(threading.enumerate()) - before
        return not [each for each in began if each.name.startswith("pushkit")]

    await eventually(have_ended)
    assert living.cancelled()
    assert not world.receiver.is_open


# --- mailboxes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_a_client_of_a_mailbox_that_is_gone_gets_nothing_leased(
    world: World, accept: str
) -> None:
    token = "the-token-of-the-laptop-is-private"
    world.receiver.mailbox(MailboxOptions(name="laptop", tokens=[token], max_polls=1))
    headers = {"Authorization": f"Bearer {token}"}
    async with serving(world.receiver.asgi()) as url, httpx.AsyncClient(headers=headers) as client:
        poll = f"{url}/mailbox/laptop"

        async def is_one_waiting() -> bool:
            return (await client.get(poll)).status_code == 429

        async def is_none_waiting() -> bool:
            return not await is_one_waiting()

        async with connected(port_of(url)) as gone:
            lines = [f"GET {poll}?wait=60 HTTP/1.1", "Host: a", f"Accept: {accept}"]
            await gone.send(
                "\r\n".join([*lines, f"Authorization: Bearer {token}", "", ""]).encode()
            )
            await eventually(is_one_waiting)
        await eventually(is_none_waiting, within=30)  # not only when a poll ends by itself
        await world.receive(world.draft())
        [found] = (await client.get(f"{poll}?wait=60", timeout=DEADLINE)).json()["notifications"]

    assert found["attempt"] == 1


# --- the body ------------------------------------------------------------------------------------


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


async def test_a_chunked_body_over_the_limit_is_refused(
    make_world: WorldFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "_DISCARDING_SECONDS", 0.05)
    world = make_world({"limits": Limits(max_body_bytes=1000)})
    async with serving(world.receiver.asgi()) as url, connected(port_of(url)) as client:
        await client.send(raw(world.draft(), "Transfer-Encoding: chunked", body=False))
        await client.send(b"7d0\r\n" + b"x" * 2000 + b"\r\n")  # and no end
        answer = await client.answer()
        await client.ended()
    assert (answer.status, answer.code) == (413, "body_too_large")
    assert answer.headers["connection"] == "close"


class Draining:
    """A middleware that reads a request's body, or its first part, and passes the request on."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await receive()
        await self._app(scope, receive, send)


class Streaming(BaseHTTPMiddleware):
    """Starlette's, after which the application gets an empty body."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        async for _ in request.stream():
            pass
        return await call_next(request)


@pytest.mark.parametrize("middleware", [Draining, Streaming])
async def test_a_body_that_a_middleware_has_read_is_a_fault_that_says_so(
    make_world: WorldFactory, middleware: Any, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world({"limits": Limits(request_timeout=timedelta(seconds=1))})
    app = Starlette(
        routes=[Mount("/", world.receiver.asgi())],
        middleware=[Middleware(middleware)],
        lifespan=world.receiver.lifespan,
    )
    async with serving(app) as url, httpx.AsyncClient(timeout=DEADLINE) as client:
        answer = await post(client, f"{url}/a2a/push", world)
    assert (answer.status_code, answer.json()["code"]) == (503, "body_consumed")
    assert "a middleware in front of the receiver" in caplog.text


async def test_a_slow_body_is_refused_at_the_deadline(
    make_world: WorldFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "_DISCARDING_SECONDS", 0.05)
    world = make_world({"limits": Limits(request_timeout=timedelta(milliseconds=50))})
    async with serving(world.receiver.asgi()) as url, connected(port_of(url)) as client:
        await client.send(raw(world.draft(), "Content-Length: 500", body=False) + b'{"st')
        answer = await client.answer()
        await client.ended()
    assert (answer.status, answer.code) == (408, "body_timeout")


async def test_a_peer_that_goes_away_is_no_fault_of_the_receiver(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(world.receiver.asgi()) as url:
        async with connected(port_of(url)) as client:
            await client.send(raw(world.draft(), "Content-Length: 500", body=False) + b'{"st')

        await eventually(lambda: "refused 400 incomplete_body" in caplog.text)
    assert "Traceback" not in caplog.text
    assert not any(world.rows().values())


async def test_an_address_that_a_client_makes_up_cannot_forge_a_log_line(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    # As `uvicorn --forwarded-allow-ips '*'` does.
    behind: Any = world.receiver.asgi()
    app = ProxyHeadersMiddleware(behind, trusted_hosts="*")
    made_up = {"X-Forwarded-For": "192.0.2.7 sender=agent task=task-1: forged"}
    async with serving(app) as url, httpx.AsyncClient() as client:
        await client.post(f"{url}/a2a/push", content=b"{}", headers=made_up)
    [line] = [each for each in caplog.messages if each.startswith("refused 401")]
    assert " sender=" not in line
    assert "peer=192.0.2.7\\x20sender=agent\\x20task" in line


@pytest.mark.parametrize(("forged", "sent"), [(False, []), (True, ["start", "body"])])
async def test_a_client_that_left_receives_no_answer(
    world: World, forged: bool, sent: list[str]
) -> None:
    receiver = await world.start()
    draft = world.draft()
    headers = draft.request().headers
    if forged:
        headers = Headers([each for each in headers if each[0] != "Authorization"])
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/a2a/push",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
    }
    told: list[str] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        told.append(message["type"].removeprefix("http.response."))

    await receiver.asgi()(scope, receive, send)
    assert told == sent


@pytest.mark.parametrize(
    ("name", "values", "status"),
    [
        ("Content-Type", ("application/json", "application/json"), 400),
        ("X-A2A-Token", ("the-notification-token-is-private", "another"), 401),
    ],
)
async def test_a_field_that_stands_twice_arrives_twice(
    world: World, name: str, values: tuple[str, str], status: int
) -> None:
    draft = sending(world.draft(), name, *values)
    async with serving(world.receiver.asgi()) as url, connected(port_of(url)) as client:
        await client.send(raw(draft))
        answer = await client.answer()
    assert answer.status == status
    assert not any(world.rows().values())


async def test_a_websocket_is_closed_once_it_asks(world: World) -> None:
    said = await answers_to_a_websocket(world.receiver.asgi())
    assert said == [{"type": "websocket.close", "code": 1000}]


# --- an answer to a body that is not read ------------------------------------------------------


def by_httpx(url: str, headers: list[tuple[str, str]], body: bytes) -> int:
    return httpx.post(url, headers=headers, content=body, timeout=20).status_code


def by_urllib(url: str, headers: list[tuple[str, str]], body: bytes) -> int:
    request = urllib.request.Request(url, body, dict(headers))  # noqa: S310  # loopback
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310  # loopback
            return int(answer.status)
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code


@pytest.mark.parametrize("client", [by_httpx, by_urllib])
@pytest.mark.parametrize(
    ("size", "forged", "status"),
    [(1_100_000, False, 413), (5_000_000, False, 413), (1_000_000, True, 401)],
)
@pytest.mark.slow
async def test_a_client_that_writes_everything_before_it_reads_gets_its_refusal(
    world: World, client: Callable[..., int], size: int, forged: bool, status: int
) -> None:
    draft = replace(world.draft(), signed=not forged)
    headers = [*draft.request().headers]
    async with serving(world.receiver.asgi()) as url:
        found = [
            await asyncio.to_thread(client, f"{url}/a2a/push", headers, b" " * size)
            for _ in range(5)
        ]
    assert found == [status] * 5


async def test_a_refused_body_is_read_only_up_to_a_bound(
    make_world: WorldFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "_MAX_DISCARDED", 200_000)
    world = make_world({"limits": Limits(max_body_bytes=1000)})
    async with serving(world.receiver.asgi()) as url, connected(port_of(url)) as client:
        await client.send(raw(world.draft(), "Content-Length: 1000000000", body=False))
        answer = await client.answer()
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(DEADLINE):
                while not client.reader.at_eof():
                    await client.send(b"x" * 65536)
                    await asyncio.sleep(0)
    assert (answer.status, answer.code) == (413, "body_too_large")
