"""Forwards to real servers and real commands, through the receiver's own dispatcher."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import json
import sys
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from pytest_aiohttp.plugin import AiohttpServer
from redis.asyncio import Redis

from pushkit.errors import ConfigError
from pushkit.net.transport import closing
from receiver import Notification
from receiver.forwards import (
    CommandForward,
    Forward,
    ForwardFailedError,
    HttpForward,
    StreamForward,
)
from receiver.settings.tables import ForwardSettings
from tests.eventually import DEADLINE, eventually, eventually_sync
from tests.redis_server import RedisServer
from tests.served import answering

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.unit.receiver.conftest import World, WorldFactory

HOSTILE = "task\r\nX-Evil: 1\x01ä%"


@dataclass
class Inside:
    """A server of the internal network."""

    url: str = ""
    status: int = 204
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        self.requests.append((dict(request.headers), await request.read()))
        headers = {"Location": self.url} if 300 <= self.status < 400 else {}
        return web.Response(status=self.status, headers=headers)


@pytest.fixture
async def inside(aiohttp_server: AiohttpServer) -> Inside:
    inside = Inside()
    inside.url = str((await aiohttp_server(answering(inside.take))).make_url("/hook?key=secret"))
    return inside


async def accepted(world: World, task_id: str = "task-1") -> Notification:
    """Let the receiver accept a notification; return it as a callback gets it."""
    verdict = await world.receive(world.draft(task_id=task_id))
    assert verdict.status == 202
    async for notification in world.receiver.updates(task_id):
        return notification
    raise AssertionError("updates() ended")


async def passed_on(forward: Forward, notification: Notification) -> None:
    """Forward one, and close."""
    async with closing(forward):
        await forward.send(notification)


# --- HTTP -----------------------------------------------------------------------------------------


async def test_the_body_is_forwarded_untouched_with_the_verified_facts(
    world: World, inside: Inside
) -> None:
    world.receiver.forward(HttpForward(inside.url))
    draft = world.draft()
    await world.receive(draft)
    await world.receiver.wait("task-1", until=lambda _: True)
    await world.receiver.dispatcher.run_once()
    await world.restart()
    [(headers, body)] = inside.requests
    assert body == draft.body
    assert headers["Content-Type"] == "application/json"
    assert headers["Receiver-Sender"] == "agent"
    assert headers["Receiver-Delivery-Id"] == draft.delivery_id
    assert headers["Receiver-Task-Id"] == "task-1"
    assert headers["Receiver-Config-Id"] == "receiver-testing"
    assert headers["Receiver-Kind"] == "status-update"
    assert headers["Receiver-State"] == "working"
    assert headers["Receiver-Seq"] == "1"
    assert headers["Receiver-Missing"] == "0"
    assert headers["Receiver-Late"] == "false"
    assert headers["Receiver-Received-At"] == "2026-01-01T12:00:00.000Z"
    assert headers["Idempotency-Key"] == f"agent:{draft.delivery_id}"
    assert "Authorization" not in headers
    assert "X-A2A-Token" not in headers


async def test_as_many_are_forwarded_at_once_as_there_are_slots(
    world: World, aiohttp_server: AiohttpServer
) -> None:
    all_came = asyncio.Barrier(64)

    async def take(_: web.Request) -> web.Response:
        await all_came.wait()
        return web.Response()

    forward = HttpForward(str((await aiohttp_server(answering(take))).make_url("/hook")))
    notification = await accepted(world)
    async with asyncio.timeout(DEADLINE):
        await asyncio.gather(*(forward.send(notification) for _ in range(64)))
    await forward.close()


async def test_a_sender_cannot_forge_a_header(world: World, inside: Inside) -> None:
    await passed_on(HttpForward(inside.url), await accepted(world, HOSTILE))
    [(headers, _)] = inside.requests
    assert headers["Receiver-Task-Id"] == "task%0D%0AX-Evil:%201%01%C3%A4%25"
    assert "X-Evil" not in headers


@pytest.mark.parametrize("status", [302, 400, 409, 500])
async def test_any_other_answer_than_2xx_is_tried_again(
    world: World, inside: Inside, status: int
) -> None:
    inside.status = status
    forward = HttpForward(inside.url)
    with pytest.raises(ForwardFailedError, match=f"answered {status}, expected 2xx") as raised:
        await passed_on(forward, await accepted(world))
    assert "secret" not in f"{raised.value}{forward.name}"
    assert len(inside.requests) == 1


@pytest.mark.parametrize("url", ["", "ftp://x/", "http://", "http://a:b@c/", "http://x:99999/"])
def test_a_forward_needs_a_url(url: str) -> None:
    with pytest.raises(ConfigError, match=r"URL|allow"):
        HttpForward(url)


async def test_a_failed_forward_is_retried_and_the_others_are_not(
    make_world: WorldFactory, inside: Inside, tmp_path: Path
) -> None:
    world = make_world()
    log = tmp_path / "log"
    script = f"import sys; open({str(log)!r}, 'a').write('once;')"
    world.receiver.forward(CommandForward([sys.executable, "-c", script]))
    world.receiver.forward(HttpForward(inside.url))
    inside.status = 503
    await world.receiver.open()
    await world.receiver.receive(world.draft().request())
    await world.receiver.dispatcher.run_once()
    inside.status = 200
    world.clock.advance(60)
    await world.receiver.dispatcher.run_once()
    await world.restart()
    assert [headers["Idempotency-Key"] for headers, _ in inside.requests] == [
        "agent:delivery-task-1-1"
    ] * 2
    assert log.read_text() == "once;"


async def test_a_forward_that_fails_is_one_line_of_the_log(
    world: World, unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    world.receiver.forward(HttpForward(f"http://127.0.0.1:{unused_tcp_port}/in"))
    await world.receiver.open()
    await world.receiver.receive(world.draft().request())
    await world.receiver.dispatcher.run_once()
    [failed] = [each for each in caplog.records if "failed on notification" in each.message]
    assert "Connect call failed" in failed.message
    assert failed.exc_info is None


# --- a Redis stream -------------------------------------------------------------------------------


@pytest.fixture
async def redis(redis_server: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_server) as redis:
        await redis.flushdb()
        yield redis


async def test_a_notification_is_added_to_a_stream(
    world: World, redis: Redis, redis_server: str
) -> None:
    notification = await accepted(world)
    await passed_on(StreamForward(f"{redis_server}?stream=updates&maxlen=1000"), notification)
    found: Any = await redis.xrange("updates")
    [(_, fields)] = found
    assert fields[b"body"] == notification.body
    assert fields[b"idempotency-key"] == b"agent:delivery-task-1-1"
    assert fields[b"sender"] == b"agent"
    assert fields[b"task-id"] == b"task-1"
    assert fields[b"seq"] == b"1"


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # left to the garbage collector
def test_connections_of_a_closed_event_loop_are_forgotten(redis_server: str) -> None:
    forward = StreamForward(f"{redis_server}?stream=updates")

    async def ping(redis: Redis) -> None:
        await redis.ping()

    for _ in range(2):
        asyncio.run(ping(forward._redis))
        asyncio.run(forward.close())
    del forward
    gc.collect()


async def test_no_forward_stays_with_a_server_that_became_a_replica(world: World) -> None:
    notification = await accepted(world)
    server, primary = RedisServer(), RedisServer()
    forward = StreamForward(f"{server.url}?stream=updates")
    await forward.send(notification)
    async with Redis.from_url(server.url) as redis:
        await redis.replicaof("::1", "1")
    server.lead_to(primary)
    await forward.send(notification)
    async with Redis.from_url(primary.url) as redis:
        assert await redis.xlen("updates") == 1
    await forward.close()
    server.remove()
    primary.remove()


async def test_a_key_that_is_not_a_stream_is_tried_again(
    world: World, redis: Redis, redis_server: str
) -> None:
    await redis.set("updates", "a string")
    with pytest.raises(ForwardFailedError, match="WRONGTYPE"):
        await passed_on(StreamForward(f"{redis_server}?stream=updates"), await accepted(world))


# Python says of the connection of the other event loop that it was not closed there.
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
async def test_a_forward_to_a_stream_goes_on_after_its_event_loop_has_ended(
    world: World, redis: Redis, redis_server: str
) -> None:
    forward, notification = StreamForward(f"{redis_server}?stream=updates"), await accepted(world)
    await asyncio.to_thread(asyncio.run, forward.send(notification))

    await forward.close()
    await passed_on(forward, notification)

    assert await redis.xlen("updates") == 2
    gc.collect()


def test_every_version_of_redis_compares_the_name_of_a_server_with_its_certificate() -> None:
    forward = StreamForward("rediss://redis.example.com/0?stream=updates")

    # Only from version 6 on by default.
    assert forward._redis.connection_pool.connection_kwargs["ssl_check_hostname"] is True


async def test_a_redis_server_out_of_reach_is_tried_again(
    world: World, unused_tcp_port: int
) -> None:
    forward = StreamForward(f"redis://user:password@127.0.0.1:{unused_tcp_port}/0?stream=s")
    with pytest.raises(ForwardFailedError) as raised:
        await passed_on(forward, await accepted(world))
    assert "password" not in f"{raised.value}{forward.name}"


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1/0?stream=a&stream=b",
        "redis://127.0.0.1/0?stream=a&maxlen=1&maxlen=2",
        "redis://h/0",
        "redis://h/0?stream=",
        "redis://h/0?stream=s&maxlen=x",
        "redis://h/0?stream=s&more=1",
        "http://h/?stream=s",
    ],
)
def test_a_stream_needs_a_name(url: str) -> None:
    with pytest.raises(ConfigError, match="stream=name"):
        StreamForward(url)


async def test_a_redis_socket_may_be_configured(tmp_path: Path) -> None:
    forward = ForwardSettings(to="unix:///run/redis.sock?stream=updates").build(tmp_path)
    assert isinstance(forward, StreamForward)
    await forward.close()


# --- a command ------------------------------------------------------------------------------------

PRINT = """
import json, os, sys
ours = ("NOTIFICATION_", "RECEIVER_", "PUSHKIT_")
facts = {k: v for k, v in os.environ.items() if k.startswith(ours)}
json.dump({"body": sys.stdin.read(), "facts": facts}, open(sys.argv[1], "w"))
"""


async def test_a_command_gets_the_body_and_the_verified_facts(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECEIVER_SENDERS", "[a token]")
    monkeypatch.setenv("PUSHKIT_SECRET_KEYS", "a secret key")
    notification = await accepted(world, HOSTILE)
    forward = CommandForward([sys.executable, "-c", PRINT, str(tmp_path / "out; rm -rf $HOME")])
    await forward.send(notification)
    found = json.loads((tmp_path / "out; rm -rf $HOME").read_text())
    assert found["body"].encode() == notification.body
    assert found["facts"]["NOTIFICATION_TASK_ID"] == "task%0D%0AX-Evil:%201%01%C3%A4%25"
    assert found["facts"]["NOTIFICATION_SENDER"] == "agent"
    assert found["facts"]["NOTIFICATION_IDEMPOTENCY_KEY"] == notification.idempotency_key.replace(
        "%", "%25"
    ).replace("\r\n", "%0D%0A").replace(" ", "%20").replace("\x01", "%01").replace("ä", "%C3%A4")
    assert not [name for name in found["facts"] if not name.startswith("NOTIFICATION_")]


async def test_facts_without_a_value_are_left_out(world: World, inside: Inside) -> None:
    bare = replace(await accepted(world), config_id=None, kid="", seq=None)
    await passed_on(HttpForward(inside.url), bare)
    [(headers, _)] = inside.requests
    assert "Receiver-Sender" in headers
    assert headers.keys().isdisjoint(["Receiver-Config-Id", "Receiver-Kid", "Receiver-Seq"])


@pytest.mark.parametrize("status", [1, 75, 255])
async def test_another_exit_status_is_tried_again(world: World, status: int) -> None:
    forward = CommandForward([sys.executable, "-c", f"raise SystemExit({status})"])
    with pytest.raises(ForwardFailedError, match=f"ended with status {status}, expected 0"):
        await forward.send(await accepted(world))


async def test_a_command_may_ignore_its_input(world: World) -> None:
    await CommandForward(["true"]).send(await accepted(world))


async def test_a_command_that_takes_too_long_is_tried_again(world: World) -> None:
    forward = CommandForward(["sleep", "1000"], timeout=timedelta(milliseconds=50))
    with pytest.raises(ForwardFailedError, match="did not end within"):
        await forward.send(await accepted(world))


LOCK = """
import fcntl, os, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
os.fork()
file.write("locked")
file.flush()
time.sleep(100)
"""


def free(path: Path) -> bool:
    """Return whether no process holds the lock."""
    with path.open() as file, contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def both_run(path: Path) -> bool:
    """Return whether the command and its child hold the lock."""
    return path.exists() and "locked" in path.read_text()


async def test_a_command_is_killed_with_what_it_started(world: World, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    forward = CommandForward(
        [sys.executable, "-c", LOCK, str(path)], timeout=timedelta(milliseconds=500)
    )
    with pytest.raises(ForwardFailedError, match="did not end within"):
        await forward.send(await accepted(world))
    assert not path.exists() or eventually_sync(lambda: free(path))


@pytest.mark.parametrize("starts", [True, False], ids=["while it starts", "while it runs"])
async def test_a_command_that_is_cancelled_leaves_nothing_behind(
    world: World, tmp_path: Path, *, starts: bool
) -> None:
    path = tmp_path / "lock"
    forward = CommandForward([sys.executable, "-c", LOCK, str(path)])
    sending = asyncio.create_task(forward.send(await accepted(world)))
    if starts:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        eventually_sync(lambda: both_run(path))  # while the event loop is blocked
    else:
        await eventually(lambda: both_run(path))
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(sending, DEADLINE)
    assert eventually_sync(lambda: free(path))


async def test_a_command_is_run_in_its_folder(world: World, tmp_path: Path) -> None:
    script = tmp_path / "take.sh"
    script.write_text("#!/bin/sh\ncat > taken\n")
    script.chmod(0o755)
    notification = await accepted(world)
    await CommandForward(["./take.sh"], folder=tmp_path).send(notification)
    assert (tmp_path / "taken").read_bytes() == notification.body


@pytest.mark.parametrize("command", [[], [""], ["no-such-program-anywhere"], ["./none"]])
def test_a_command_must_exist(command: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="command"):
        CommandForward(command, folder=tmp_path)


async def test_a_forward_that_is_only_a_url_is_refused_with_what_takes_one(world: World) -> None:
    url: Any = "http://127.0.0.1/hook?key=secret"
    with pytest.raises(ConfigError, match="to: found str, expected a Forward") as refusal:
        world.receiver.forward(url)
    assert "secret" not in str(refusal.value)
