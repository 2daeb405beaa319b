"""Connections: kept alive, shared within bounds, and no request gets another's answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import timedelta

import pytest

from pushkit.errors import AnswerTimeoutError, TransportError
from pushkit.net.connection import Connection, HttpAnswer, HttpRequest, write_requests
from pushkit.net.failures import BrokenAnswerError, ClosedEarlyError, Probe
from pushkit.net.transport import Transport
from pushkit.scheduling.event_loop import Deadlines, IterationBatches
from tests.eventually import PATIENT, eventually
from tests.unit.pushkit.net.conftest import LOOPBACK, MakeTransport
from tests.unit.pushkit.net.test_transport import (
    HEAD,
    OK,
    answers_all,
    keeps_silent,
    post,
    says,
    serving,
)
from tests.verification.soak.fuzz_answers import FuzzFailedError, Wire, fuzz, hear

# --- one connection, byte by byte ----------------------------------------------------------------


def new_connection() -> Connection:
    return Connection(Deadlines(), IterationBatches(write_requests), lambda _: None, lambda _: None)


def connected(wire: Wire) -> Connection:
    connection = new_connection()
    connection.connection_made(wire)
    return connection


async def asked(connection: Connection, wire: Wire) -> asyncio.Task[HttpAnswer]:
    until = asyncio.get_running_loop().time() + 1000
    request = HttpRequest(b"POST / HTTP/1.1\r\n\r\n", b"{}", until, 1000, 64)
    if connection.requests_sent == 0:
        connection.connection_made(wire)
    task = asyncio.create_task(connection.send(request, Probe()))
    await asyncio.sleep(0)
    return task


async def outcome(pieces: list[bytes], *, then_closes: bool) -> object:
    """Return the answer that a connection reads from pieces, and whether it is reusable."""
    wire, connection = Wire(), new_connection()
    task = await asked(connection, wire)
    for piece in pieces:
        if not wire.is_aborted:
            hear(connection, piece)
    if then_closes and not wire.is_aborted:
        connection.connection_lost(None)
    await asyncio.sleep(0)
    if not task.done():
        task.cancel()
        return "waits"
    try:
        answer = task.result()
    except (BrokenAnswerError, ClosedEarlyError) as exc:
        return type(exc)
    return (
        answer.status,
        list(answer.headers),
        answer.body,
        answer.complete,
        connection.is_reusable(),
    )


async def test_requests_that_begin_in_one_round_are_written_together_at_its_end() -> None:
    writes, wires = IterationBatches(write_requests), [Wire() for _ in range(4)]
    for wire in wires:
        writes.add((connected(wire), (b"head", b"body")))
    assert [bytes(wire.written) for wire in wires] == [b"headbody", b"", b"", b""]
    wires[2].abort()  # closed before the end of the round
    await asyncio.sleep(0)
    assert [bytes(wire.written) for wire in wires] == [b"headbody", b"headbody", b"", b"headbody"]


async def test_a_connection_that_cannot_be_written_to_ends_no_other_request() -> None:
    class BrokenWire(Wire):
        def write(self, data: bytes | bytearray | memoryview) -> None:  # noqa: ARG002
            raise RuntimeError("unable to write")

    writes, wires = IterationBatches(write_requests), [Wire(), BrokenWire(), Wire()]
    for wire in wires:
        writes.add((connected(wire), (b"request",)))
    await asyncio.sleep(0)
    assert [(bytes(wire.written), wire.is_aborted) for wire in wires] == [
        (b"request", False),
        (b"", True),
        (b"request", False),
    ]


async def test_bytes_that_arrive_before_the_request_is_written_are_no_answer_to_it() -> None:
    writes, wires, loop = (
        IterationBatches(write_requests),
        [Wire(), Wire()],
        asyncio.get_running_loop(),
    )
    request = HttpRequest(b"POST / HTTP/1.1\r\n\r\n", b"{}", loop.time() + 1000)
    connections = [Connection(Deadlines(), writes, lambda _: None, lambda _: None) for _ in wires]
    for connection, wire in zip(connections, wires, strict=True):
        connection.connection_made(wire)
    first, second = (asyncio.create_task(each.send(request, Probe())) for each in connections)

    def read_the_socket() -> None:  # within the round, as uvloop does
        assert connections[1].requests_sent == 1
        assert not wires[1].written
        hear(connections[1], b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    loop.call_soon(read_the_socket)
    await asyncio.sleep(0)
    connections[1].connection_lost(None)
    with pytest.raises(ClosedEarlyError):
        await second
    assert not connections[1].has_received  # so it is sent again, over a new connection
    assert not wires[1].written
    first.cancel()


LENGTH = HEAD + b"Content-Length: 5\r\nX: y\r\n\r\nhello"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;a=b\r\nlo\r\n0\r\nX: y\r\n\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
ANSWERS = [
    pytest.param(LENGTH, False, (200, b"hello", True, True), id="a length"),
    pytest.param(CHUNKED, False, (200, b"hello", True, True), id="chunks and a trailer"),
    pytest.param(HINTS * 3 + LENGTH, False, (200, b"hello", True, True), id="after hints"),
    pytest.param(HEAD + b"\r\nhello", True, (200, b"hello", True, False), id="until it closes"),
    pytest.param(LENGTH[:-1], True, (200, b"hell", False, False), id="cut short"),
    pytest.param(CHUNKED[:-12], True, (200, b"hello", False, False), id="chunks cut short"),
    pytest.param(b"HTTP/1.1 204 No\r\n\r\n", False, (204, b"", True, True), id="204"),
    pytest.param(
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        False,
        (200, b"ok", True, False),
        id="1.0",
    ),
    pytest.param(
        HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nok",
        False,
        (200, b"ok", True, False),
        id="says that it closes",
    ),
    pytest.param(
        HEAD + b"Content-Length: 99\r\n\r\n" + b"x" * 99,
        False,
        (200, b"x" * 64, False, False),
        id="longer than is read",
    ),
]


@pytest.mark.parametrize(("answer", "then_closes", "expected"), ANSWERS)
async def test_an_answer_is_the_same_wherever_it_is_split(
    answer: bytes, *, then_closes: bool, expected: tuple[object, ...]
) -> None:
    whole = await outcome([answer], then_closes=then_closes)
    assert isinstance(whole, tuple)
    assert (whole[0], *whole[2:]) == expected
    for at in range(1, len(answer)):
        split = await outcome([answer[:at], answer[at:]], then_closes=then_closes)
        assert split == whole, f"split after {at} bytes"
    single = [answer[at : at + 1] for at in range(len(answer))]
    assert await outcome(single, then_closes=then_closes) == whole


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/2 200 OK\r\n\r\n", id="another version"),
        pytest.param(b"ICY 200 OK\r\n\r\n", id="another protocol"),
        pytest.param(b"HTTP/1.1 20 OK\r\n\r\n", id="a status of two digits"),
        pytest.param(b"HTTP/1.1 099 OK\r\n\r\n", id="a status below 100"),
        pytest.param(b"HTTP/1.1 200 OK\r\nA : b\r\nB: c\r\n", id="a broken head that does not end"),
        pytest.param(b"\0" * 100, id="zeros"),
        pytest.param(HINTS * 17 + LENGTH, id="more interim answers than anybody needs"),
        pytest.param(b"HTTP/1.1 101 Go\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", id="101"),
    ],
)
async def test_without_a_sound_status_line_there_is_no_answer_wherever_it_is_split(
    answer: bytes,
) -> None:
    for at in range(len(answer)):
        found = await outcome([answer[:at], answer[at:]], then_closes=True)
        assert found in {BrokenAnswerError, ClosedEarlyError}, f"split after {at} bytes"


FOLDED = HEAD + b"X: a\r\n b\r\nContent-Length: 5\r\n\r\nhello"
BARE = b"HTTP/1.1 200 OK\nX: a b\nContent-Length: 5\n\nhello"


@pytest.mark.parametrize(
    ("answer", "defect"),
    [
        pytest.param(FOLDED, "folded_header", id="a folded line"),
        pytest.param(HINTS + FOLDED, "folded_header", id="a folded line, after hints"),
        pytest.param(BARE, "bare_line_feed", id="bare line feeds"),
        pytest.param(
            FOLDED.replace(b"\r\n b", b" b").replace(b"5\r\n", b"5\n"),
            "bare_line_feed",
            id="one bare line feed",
        ),
    ],
)
async def test_a_head_that_others_read_is_read_wherever_it_is_split(
    answer: bytes, defect: str
) -> None:
    for at in range(len(answer)):
        connection = new_connection()
        task = await asked(connection, Wire())
        hear(connection, answer[:at])
        hear(connection, answer[at:])
        found = await task
        assert (found.status, found.body, found.complete) == (200, b"hello", True)
        assert found.headers.one("X") == "a b"
        assert found.defect == defect, f"split after {at} bytes"
        assert not connection.is_reusable()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok!", id="two lengths"),
        pytest.param(
            HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            id="a length and chunks",
        ),
        pytest.param(HEAD + b"Content-Length: 2, 2\r\n\r\nok", id="a list of lengths"),
        pytest.param(HEAD + b"Content-Length: +2\r\n\r\nok", id="a signed length"),
        pytest.param(HEAD + b"Content-Length: " + b"9" * 30 + b"\r\n\r\nok", id="a huge length"),
        pytest.param(HEAD + b"A : b\r\n\r\n", id="a blank before the colon"),
        pytest.param(HEAD + b"A\x01: b\r\n\r\n", id="a control character in a name"),
        pytest.param(HEAD + b"A: b\x00\r\n\r\n", id="a zero in a value"),
    ],
)
@pytest.mark.parametrize("status", [200, 410])
async def test_of_a_malformed_head_the_status_counts_wherever_it_is_split(
    answer: bytes, status: int
) -> None:
    answer = answer.replace(b"200", str(status).encode(), 1)
    for at in range(len(answer)):
        wire, connection = Wire(), new_connection()
        task = await asked(connection, wire)
        hear(connection, answer[:at])
        if not wire.is_aborted:
            hear(connection, answer[at:])
        connection.connection_lost(None)
        found = await task
        assert (found.status, found.body, found.defect) == (status, b"", "malformed_header")
        assert not connection.is_reusable(), f"split after {at} bytes"


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param(b"z\r\nok\r\n0\r\n\r\n", id="no number"),
        pytest.param(b"f" * 17 + b"\r\nok\r\n0\r\n\r\n", id="a number that overflows"),
        pytest.param(b"2\r\nokay\r\n0\r\n\r\n", id="more than it says"),
        pytest.param(b"-2\r\nok\r\n0\r\n\r\n", id="a negative number"),
    ],
)
async def test_a_broken_body_leaves_the_status_and_closes_the_connection(chunks: bytes) -> None:
    answer = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks
    found = await outcome([answer], then_closes=True)
    assert isinstance(found, tuple)
    assert (found[0], *found[3:]) == (200, False, False)


@pytest.mark.parametrize("more", [OK, b"garbage", b"\r\n", b"HTTP/1.1 500 No\r\n", b"\0"], ids=repr)
@pytest.mark.parametrize("answer", [LENGTH, CHUNKED, b"HTTP/1.1 204 No\r\n\r\n"])
async def test_bytes_after_an_answer_close_the_connection(answer: bytes, more: bytes) -> None:
    for pieces in ([answer + more], [answer, more]):
        connection = new_connection()
        task = await asked(connection, Wire())
        for piece in pieces:
            hear(connection, piece)
        found = await task
        assert found.complete
        assert b"No" not in found.body
        # llhttp skips empty lines between answers, as RFC 9112 §2.2 allows.
        assert not connection.is_reusable() or more == b"\r\n"


@pytest.mark.parametrize(("heard", "is_kept"), [(LENGTH, True), (LENGTH[:-1], False)])
async def test_a_cancellation_after_the_whole_answer_keeps_the_connection(
    heard: bytes, *, is_kept: bool
) -> None:
    wire, connection = Wire(), new_connection()
    task = await asked(connection, wire)
    hear(connection, heard)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (connection.is_reusable(), wire.is_aborted) == (is_kept, not is_kept)


async def test_nothing_is_sent_once_the_deadline_is_over() -> None:
    wire, connection = Wire(), new_connection()
    connection.connection_made(wire)
    with pytest.raises(TimeoutError):
        await connection.send(HttpRequest(b"POST", b"", asyncio.get_running_loop().time()), Probe())
    assert not wire.written
    assert wire.is_aborted


@pytest.mark.slow
async def test_no_answer_goes_to_another_request() -> None:
    seen = await fuzz(seed=7, cases=1500)
    errors = {"BrokenAnswerError", "ClosedEarlyError", "TimeoutError", "ConnectionResetError"}
    assert set(seen) == {"whole", "broke off", "asked again", *errors}
    assert all(number > 5 for number in seen.values())


async def test_the_fuzzer_sees_a_connection_that_does_not_look_before_it_asks() -> None:
    class Careless(Connection):
        def is_reusable(self) -> bool:
            self._poll = None
            return super().is_reusable()

    with pytest.raises(FuzzFailedError, match=r"another's bytes|right answer"):
        await fuzz(seed=7, cases=1500, kind=Careless)


# --- connections over sockets --------------------------------------------------------------------


@pytest.mark.slow
async def test_no_request_is_answered_by_anothers_bytes(transport: Transport) -> None:
    """A webhook that answers too much, too little, twice, late, or not with HTTP."""
    chance = random.Random(7)  # noqa: S311  # no secret
    tricks: list[Callable[[bytes], bytes]] = [
        lambda answer: answer,
        lambda answer: answer + answer,
        lambda answer: answer + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nwrong!",
        lambda answer: answer + b"junk",
        lambda answer: answer[: len(answer) - 3],
        lambda answer: answer[:5],
        lambda answer: HINTS + answer,
        lambda answer: answer.replace(b"Content-Length: ", b"Content-Length: 1"),
        lambda _: b"",
    ]

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            number = await reader.readexactly(6)
            answer = HEAD + b"Content-Length: 6\r\n\r\n" + number
            writer.write(chance.choice(tricks)(answer))
            if chance.random() < 0.3:
                return
            await reader.readuntil(b"\r\n\r\n")

    async def one(url: str, number: int, within: timedelta) -> bool:
        said = b"%06d" % number
        try:
            answer = await post(transport, url, said, within=within)
        except TransportError:
            return False
        assert said.startswith(answer.body) or answer.body == b""
        return answer.complete

    async def many(begin: int, within: timedelta) -> int:
        answered = 0
        async with serving(talk) as server:
            for first in range(begin, begin + 80, 8):
                numbers = range(first, first + 8)
                posts = (one(server.url, n, within) for n in numbers)
                answered += sum(await asyncio.gather(*posts))
        return answered

    # Half of the answers never come: five servers at once, and a timeout in which most others do.
    for within in (timedelta(seconds=0.2), timedelta(seconds=1), timedelta(seconds=10)):
        all_of_them = (many(begin, within) for begin in range(0, 400, 80))
        if sum(await asyncio.gather(*all_of_them)) > 150:
            return
    raise AssertionError("hardly anything was answered")


async def test_a_connection_that_was_closed_while_idle_costs_no_attempt(
    transport: Transport,
) -> None:
    async def answers_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(2)
        writer.write(OK)

    async with serving(answers_one) as server:
        for _ in range(5):
            assert (await post(transport, server.url)).status == 200
    assert len(server.requests) == 5


async def test_a_connection_that_closes_instead_of_an_answer_is_replaced_once(
    transport: Transport,
) -> None:
    async def then_closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(2)
        if server.connections == 1:
            writer.write(OK)
            server.requests.append(await reader.readuntil(b"\r\n\r\n"))

    async with serving(then_closes) as server:
        assert (await post(transport, server.url)).status == 200
        with pytest.raises(TransportError):
            await post(transport, server.url)
    assert (server.connections, len(server.requests)) == (2, 3)


async def test_the_one_reconnect_goes_over_no_connection_that_was_kept(
    make_transport: MakeTransport,
) -> None:
    transport = make_transport(LOOPBACK, max_connections_per_host=1)

    async def answers_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(2)
        writer.write(OK)
        await reader.readuntil(b"\r\n\r\n")

    async with serving(answers_one) as server:
        assert (await post(transport, server.url)).status == 200
        answers = await asyncio.gather(post(transport, server.url), post(transport, server.url))
    assert [answer.status for answer in answers] == [200, 200]
    assert server.connections == 3


async def test_a_request_is_not_sent_again_once_a_byte_of_an_answer_came(
    transport: Transport,
) -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(2)
        writer.write(OK)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 2")

    async with serving(half) as server:
        assert (await post(transport, server.url)).status == 200
        with pytest.raises(TransportError):
            await post(transport, server.url)
    assert server.connections == 1


async def test_no_more_connections_to_one_host_than_it_may_have(
    make_transport: MakeTransport,
) -> None:
    transport = make_transport(LOOPBACK, max_connections_per_host=3)
    inside, most = 0, 0

    async def counts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal inside, most
        while True:
            await reader.readexactly(2)
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.01)
            inside -= 1
            writer.write(OK)
            await reader.readuntil(b"\r\n\r\n")

    async with serving(counts) as server:
        answers = await asyncio.gather(*(post(transport, server.url) for _ in range(20)))
        assert [answer.status for answer in answers] == [200] * 20
    assert (server.connections, most) == (3, 3)


async def test_an_idle_connection_makes_room_for_another_host(
    make_transport: MakeTransport,
) -> None:
    transport = make_transport(LOOPBACK, max_connections=2)
    async with serving(answers_all) as one, serving(answers_all) as two, serving(says(OK)) as three:
        for server in (one, two, three, one, two):
            assert (await post(transport, server.url)).status == 200


async def test_a_connection_that_becomes_idle_makes_room_for_a_waiting_request(
    make_transport: MakeTransport,
) -> None:
    transport = make_transport(LOOPBACK, max_connections=1)
    may_answer = asyncio.Event()

    async def when_it_may(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await may_answer.wait()
        writer.write(OK)
        await reader.read()

    async with serving(when_it_may) as slow, serving(says(OK)) as other:
        holder = asyncio.create_task(post(transport, slow.url))
        await eventually(slow.is_asked)
        waiting = asyncio.create_task(post(transport, other.url))
        await asyncio.sleep(0)
        assert other.connections == 0
        may_answer.set()
        assert [(await each).status for each in (holder, waiting)] == [200, 200]


async def test_a_request_that_waits_for_a_connection_times_out_and_blocks_no_other(
    make_transport: MakeTransport,
) -> None:
    transport = make_transport(LOOPBACK, max_connections_per_host=1)
    async with serving(keeps_silent) as server:
        holder = asyncio.create_task(post(transport, server.url))
        await eventually(server.is_asked)
        with pytest.raises(AnswerTimeoutError):
            await post(transport, server.url, within=timedelta(milliseconds=100))
        server.talk = says(OK)
        next_one = asyncio.create_task(post(transport, server.url))
        await asyncio.sleep(0)
        holder.cancel()
        assert (await next_one).status == 200
        with pytest.raises(asyncio.CancelledError):
            await holder


async def test_a_header_that_would_end_its_line_is_not_sent(transport: Transport) -> None:
    async with serving(says(OK)) as server:
        destination = transport.policy.check(server.url)
        for value in ("a\r\nX-Evil: 1", "a\nb", "a\rb", "a\0b"):
            with pytest.raises(TransportError, match="line break or a zero"):
                await transport.post(destination, [("X", value)], b"{}", timeout=PATIENT)
    assert server.requests == []


# --- deadlines -----------------------------------------------------------------------------------


class Owner:
    """Has a deadline, and records how late it expired."""

    def __init__(self, deadlines: Deadlines, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._when = self._loop.time() + seconds
        self.late: list[float] = []
        deadlines.set(self, self._when)

    def expire(self) -> None:
        self.late.append(self._loop.time() - self._when)

    async def has_expired(self) -> bool:
        return bool(self.late)


async def test_a_deadline_never_comes_early_and_comes_once() -> None:
    deadlines = Deadlines()
    owners = [Owner(deadlines, seconds) for seconds in (0.03, 0.005, 0.15, 0.02)]
    for owner in owners:
        await eventually(owner.has_expired)
    last = Owner(deadlines, 0.06)
    await eventually(last.has_expired)
    assert [len(owner.late) for owner in [*owners, last]] == [1] * 5
    assert all(owner.late[0] >= 0 for owner in owners)


async def test_a_deadline_that_was_called_off_or_moved_does_not_come() -> None:
    deadlines = Deadlines()
    off, moved, on = (Owner(deadlines, seconds) for seconds in (0.01, 0.01, 0.03))
    deadlines.clear(off)
    deadlines.clear(off)
    deadlines.set(moved, asyncio.get_running_loop().time() + 1000)
    await eventually(on.has_expired)
    assert (off.late, moved.late) == ([], [])
    deadlines.close()
