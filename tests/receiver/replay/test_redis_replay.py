"""The memory of ids in Redis: leases, expiry, and a server that goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest
from redis.asyncio import Redis

from pushkit.errors import StorageError
from receiver.refusals import Refusals
from receiver.replay.memory import BeingStoredError, Seen
from receiver.replay.redis import RedisReplay
from tests.eventually import eventually
from tests.redis_server import RedisServer

SEEN = Seen(sender="agent", delivery_id="delivery-1", body_sha256="aa" * 32)
OTHER_BODY = Seen(sender="agent", delivery_id="delivery-1", body_sha256="bb" * 32)


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as redis:
        yield redis


@pytest.fixture
async def replay(redis_url: str) -> AsyncIterator[RedisReplay]:
    replay = RedisReplay(redis_url, namespace="receiver-1", lease=timedelta(seconds=20))
    yield replay
    await replay.close()


async def only_key(redis: Redis) -> str:
    [key] = await redis.keys("*")
    return key if isinstance(key, str) else key.decode()


async def reserved(replay: RedisReplay, seen: Seen = SEEN) -> Seen:
    found = await replay.reserve(seen)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "seen", [pytest.param(SEEN, id="same"), pytest.param(OTHER_BODY, id="other")]
)
async def test_a_copy_of_what_is_being_stored_is_asked_to_come_again(
    replay: RedisReplay, seen: Seen
) -> None:
    await reserved(replay)

    with pytest.raises(BeingStoredError) as refused:
        await replay.reserve(seen)
    verdict = Refusals().verdict(refused.value, peer="192.0.2.1")
    assert (verdict.status, verdict.retry_after) == (503, timedelta(seconds=1))


async def test_a_reservation_ends_with_its_lease(replay: RedisReplay, redis: Redis) -> None:
    await reserved(replay)
    left = await redis.pttl(await only_key(redis))
    await redis.delete(await only_key(redis))  # as it goes by itself once `left` is over

    assert 0 < left <= 20_000
    assert await replay.reserve(SEEN) is not None


async def test_an_accepted_id_is_remembered_for_96_hours(replay: RedisReplay, redis: Redis) -> None:
    await replay.commit(await reserved(replay))

    left = await redis.pttl(await only_key(redis))

    assert timedelta(hours=95.9) < timedelta(milliseconds=left) <= timedelta(hours=96)


async def test_a_process_that_lost_its_lease_does_not_release_the_next_lease(
    replay: RedisReplay, redis: Redis
) -> None:
    late = await reserved(replay)
    await redis.delete(await only_key(redis))
    await reserved(replay)
    await replay.release(late)

    with pytest.raises(BeingStoredError):
        await replay.reserve(SEEN)


async def test_a_commit_after_a_lost_lease_is_remembered(replay: RedisReplay, redis: Redis) -> None:
    late = await reserved(replay)
    await redis.delete(await only_key(redis))
    await reserved(replay)
    await replay.commit(late)

    assert await replay.reserve(SEEN) is None


async def test_two_receivers_on_one_server_do_not_share_ids(
    replay: RedisReplay, redis_url: str
) -> None:
    other = RedisReplay(redis_url, namespace="receiver-2")
    await replay.commit(await reserved(replay))

    assert await other.reserve(SEEN) is not None
    await other.close()


async def test_nothing_of_what_a_sender_wrote_stands_in_a_key(
    replay: RedisReplay, redis: Redis
) -> None:
    await reserved(replay, Seen(sender="agent", delivery_id="x" * 100_000, body_sha256="aa"))

    assert len(await only_key(redis)) < 100


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.remove()


async def test_a_server_that_is_away_is_a_storage_error_and_comes_back(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    replay = RedisReplay(server.url, namespace="receiver-1")
    stored = await reserved(replay)
    server.stop()
    with pytest.raises(StorageError, match="Redis is out of reach"):
        await replay.reserve(SEEN)
    with pytest.raises(StorageError, match="Redis is out of reach"):
        await replay.open()
    await replay.commit(stored)  # the notification is in the inbox: no reason to refuse it
    await replay.release(stored)
    server.start()

    async def reserves() -> bool:
        try:
            return await replay.reserve(SEEN) is not None
        except StorageError:
            return False

    await eventually(reserves)
    await replay.close()
    assert "only the inbox remembers id" in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        pytest.param("CONFIG SET maxmemory 1", id="full"),
        pytest.param("REPLICAOF ::1 1", id="replica"),
    ],
)
async def test_a_server_that_stores_nothing_is_reported(server: RedisServer, change: str) -> None:
    replay = RedisReplay(server.url, namespace="receiver-1")
    await replay.open()
    async with Redis.from_url(server.url) as redis:
        await redis.execute_command(*change.split())  # type: ignore[no-untyped-call]
    with pytest.raises(StorageError, match=r"Redis refused: .*(maxmemory|replica)"):
        await replay.open()
    await replay.close()


async def test_a_missing_password_is_reported_as_such(server: RedisServer) -> None:
    async with Redis.from_url(server.url) as redis:
        await redis.config_set("requirepass", "secret")
    replay = RedisReplay(server.url, namespace="receiver-1")
    with pytest.raises(StorageError, match=r"^Redis is out of reach: AuthenticationError$"):
        await replay.open()
    await replay.close()


async def test_no_connection_stays_with_a_server_that_became_a_replica(
    server: RedisServer,
) -> None:
    replay = RedisReplay(server.url, namespace="receiver-1")
    await replay.open()
    async with Redis.from_url(server.url) as redis:
        await redis.replicaof("::1", "1")
    primary = RedisServer()
    server.lead_to(primary)

    assert await replay.reserve(SEEN) is not None
    await replay.close()
    primary.remove()


@pytest.mark.parametrize(
    "answers", [pytest.param(True, id="idle"), pytest.param(False, id="before-the-answer")]
)
async def test_a_connection_that_breaks_refuses_nothing(
    server: RedisServer, *, answers: bool
) -> None:
    broken: list[bytes] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = server.url.removeprefix("unix://")
        from_server, to_server = await asyncio.open_unix_connection(path)
        while data := await reader.read(65_536):
            to_server.write(data)
            answer = await from_server.read(65_536)
            breaks = b"reserved" in data and not broken
            if answers or not breaks:
                writer.write(answer)
            if breaks:
                broken.append(data)
                break
        writer.close()
        to_server.close()

    relaying = await asyncio.start_server(relay, "127.0.0.1", 0)
    port = relaying.sockets[0].getsockname()[1]
    replay = RedisReplay(f"redis://127.0.0.1:{port}", namespace="receiver-1")
    try:
        await replay.commit(await reserved(replay))
        assert broken
        assert await replay.reserve(SEEN) is None
    finally:
        await replay.close()
        relaying.close()


async def test_an_id_that_is_reserved_while_it_is_closed_can_be_let_go(
    replay: RedisReplay, redis: Redis
) -> None:
    await replay.open()
    await redis.client_pause(60_000, all=False)  # nobody may write

    async def asks() -> bool:
        return any(each["cmd"] == "set" for each in await redis.client_list())

    asking = asyncio.create_task(replay.reserve(SEEN))
    await eventually(asks)
    closing = asyncio.create_task(replay.close())
    await asyncio.sleep(0)  # it has begun
    await redis.client_unpause()
    await closing
    reservation = await asking
    assert reservation is not None
    await replay.release(reservation)

    assert await replay.reserve(SEEN) is not None


def test_a_memory_that_was_closed_goes_on_in_another_event_loop(redis_url: str) -> None:
    replay = RedisReplay(redis_url, namespace="receiver-1")

    async def reserve_many(turn: int) -> None:
        await replay.open()
        many = [Seen("agent", f"{turn}-{number}", "digest") for number in range(40)]
        assert None not in await asyncio.gather(*map(replay.reserve, many))
        await replay.close()

    for turn in range(2):
        asyncio.run(reserve_many(turn))
