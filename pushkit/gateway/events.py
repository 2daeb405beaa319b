"""What agents say of a task: in streams of server-sent events, and as a whole, in digests."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, NamedTuple, TypeVar

import aiohttp

from pushkit.a2a import (
    AnyUpdate,
    Artifact,
    ArtifactUpdate,
    StatusUpdate,
    Task,
    TaskSnapshot,
    TaskState,
    TaskStatus,
    TaskUpdate,
    TextPart,
)
from pushkit.errors import MalformedJsonError, UnrecognisedBodyError
from pushkit.gateway.calls import Place, read_answer, read_update
from pushkit.logs import RepeatedLog
from pushkit.outbox.model import update_digest
from pushkit.scheduling.event_loop import cancelled

T = TypeVar("T")

_MOST_WAITING: Final = 16 * 2**20  # bytes of events that wait for the outbox
_MOST_UNSENT: Final = 4 * 2**20  # bytes that wait for a client that reads slowly
_MOST_KEPT: Final = 4 * 2**20  # characters of artifacts that are kept for clients of 0.3


class EventLines:
    """Cuts a stream into the data of its events (HTML Living Standard §9.2.5, §9.2.6)."""

    def __init__(self, max_event_bytes: int) -> None:
        self._most = max_event_bytes
        self._ahead = b"\xef\xbb\xbf"  # may precede the next line: a byte order mark, at the start
        self._line = bytearray()  # that has not ended
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take in a chunk; return the data of the events that it completes.

        Raises:
            MalformedJsonError: An event is longer than the bound.
        """
        if self._after_cr and chunk[:1] == b"\n":
            chunk = chunk[1:]
            self._after_cr = False
        if not chunk:
            return []
        self._after_cr = chunk[-1:] == b"\r"
        *lines, rest = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        found: list[bytes] = []
        for line in lines:
            self._line += line
            self._take(bytes(self._line).removeprefix(self._ahead), found)
            self._line.clear()
            self._ahead = b""
        self._line += rest
        if self._size + len(self._line) > self._most:
            raise MalformedJsonError(f"an event is longer than {self._most} bytes")
        return found

    def _take(self, line: bytes, found: list[bytes]) -> None:
        if not line:
            if self._data:
                found.append(b"\n".join(self._data))
            self._data, self._size = [], 0
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(line)


class StreamEvent(NamedTuple):
    """One event of a stream about a task."""

    data: bytes  # as the agent wrote it
    update: TaskUpdate | None  # None for an error, and for what could not be read


class Waiting(Generic[T]):
    """What was read of a stream, and waits for one reader.

    Attributes:
        lost: Whether the reader does not get all of it.
        has_ended: Whether no more is added.
    """

    def __init__(self, most: int) -> None:  # bytes
        self.lost = False
        self.has_ended = False
        self._most = most
        self._size = 0
        self._items: deque[tuple[T, int]] = deque()
        self._news = asyncio.Event()
        self.on_drop: Callable[[], object] | None = None

    def put(self, item: T, size: int) -> None:
        """Add an item, unless nobody reads any more, or too much waits."""
        if self.has_ended:
            return
        if self._size + size > self._most:
            self.lost = True
            return
        self._items.append((item, size))
        self._size += size
        self._news.set()

    def end(self) -> None:
        """Add no more."""
        self.has_ended = True
        self._news.set()

    def skip(self) -> None:
        """Keep nothing of what waits."""
        self._items.clear()
        self._size = 0

    def drop(self) -> None:
        """Keep nothing, and add no more: the reader is gone, or too slow."""
        self.lost = True
        self.skip()
        self.end()
        if self.on_drop is not None:
            self.on_drop()

    async def items(
        self, quiet: Callable[[], Awaitable[None]] | None = None, after: float | None = None
    ) -> AsyncIterator[T]:
        """Yield the items, until the end; call `quiet` whenever none comes for some seconds."""
        while True:
            while self._items:
                item, size = self._items.popleft()
                self._size -= size
                yield item
            if self.has_ended:
                return
            self._news.clear()
            try:
                async with asyncio.timeout(after):
                    await self._news.wait()
            except TimeoutError:
                if quiet is not None:
                    await quiet()


@dataclass(slots=True, kw_only=True, eq=False)
class EventStream:
    """An agent's stream, read once, as fast as it comes, for all who need it.

    A client gets its bytes; the watcher its events. Neither delays the other: a client that reads
    too slowly is cut off, and a watcher that is late compares the task instead.
    """

    answer: aiohttp.ClientResponse  # the agent's
    place: Place  # how the agent was asked
    lines: EventLines
    on_end: Callable[[EventStream], None]  # called at its end
    faults: RepeatedLog  # logs what is wrong with it
    # Whether the gateway subscribed to it: an agent may stop a message's task when nobody reads the
    # message's stream, but not when nobody reads this one.
    is_own: bool
    # The first event that says something; if there is none, one that could not be read, or None.
    first: asyncio.Future[StreamEvent | None] = field(init=False, default_factory=asyncio.Future)
    # Done once the task ended or waits for its client, or the stream ended.
    settled: asyncio.Future[None] = field(init=False, default_factory=asyncio.Future)
    # Those that wait for the watcher.
    events: Waiting[StreamEvent] = field(init=False, default_factory=lambda: Waiting(_MOST_WAITING))
    # Whether the last event said that the task ended, or waits for its client.
    is_at_rest: bool = field(init=False, default=False)
    heard_at: float = field(init=False)  # when its last event came, in the event loop's time
    _is_over: bool = field(init=False, default=False)
    _is_whole: bool = field(init=False, default=False)  # whether it was read to its end
    _unread: StreamEvent | None = field(init=False, default=None)
    _client: Waiting[bytes] | None = field(init=False, default=None)
    _reading: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        self._reading = asyncio.create_task(self._read(), name="pushkit-gateway-stream")
        self._reading.add_done_callback(self._end)  # also of a task that is cancelled unbegun

    def for_client(self) -> Waiting[bytes]:
        """Return the bytes for a client: call it before anything else is awaited."""
        self._client = Waiting[bytes](_MOST_UNSENT)
        return self._client

    async def close(self) -> None:
        """Read no further."""
        await cancelled(self._reading)

    def unwatch(self) -> None:
        """Keep no events; read the stream on only if somebody needs that."""
        self.events.drop()
        if self._client is None and (self.is_own or self._is_over):
            self._reading.cancel()

    async def _read(self) -> None:
        await asyncio.sleep(0)  # an eager task would read before `for_client` is called
        try:
            async for chunk in self.answer.content.iter_any():
                if self._client is not None:
                    self._client.put(chunk, len(chunk))
                    if self._client.lost:
                        self._client.drop()
                for data in self.lines.feed(chunk):
                    self._take(data)
            self._is_whole = True
        except (aiohttp.ClientError, TimeoutError, OSError, MalformedJsonError) as exc:
            self.faults.log(str(type(exc)), logging.WARNING, "a stream of the agent broke: %s", exc)

    def _end(self, _reading: asyncio.Task[None]) -> None:
        self.answer.close()
        self.on_end(self)
        self.events.end()
        if self._client is not None:
            self._client.lost = self._client.lost or not self._is_whole
            self._client.end()
        if not self.first.done():
            self.first.set_result(self._unread)
        if not self.settled.done():
            self.settled.set_result(None)

    def _take(self, data: bytes) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        update = None
        try:
            result = read_answer(data, self.place.binding).result
            update = read_update(result, self.place.version) if result is not None else None
        except (MalformedJsonError, UnrecognisedBodyError) as exc:
            self.faults.log(str(type(exc)), logging.WARNING, "an event of the agent: %s", exc)
            # A sign of life, perhaps, ahead of what it is about.
            self._unread = self._unread or (StreamEvent(data, None) if data else None)
        else:
            if not self.first.done():
                self.first.set_result(StreamEvent(data, update))
        state = update.state if update is not None else None
        self._is_over = self._is_over or (state is not None and state.terminal)
        self.is_at_rest = self._is_over or (state is not None and state.interrupted)
        if self.is_at_rest and not self.settled.done():
            self.settled.set_result(None)
        self.events.put(StreamEvent(data, update), len(data))


# --- a task --------------------------------------------------------------------------------------


class TaskView:
    """What updates have said of a task, in digests: do its webhooks know what the agent says now?

    Texts of an artifact count as one, however they were cut into chunks, and neither ids of
    messages nor times count: agents write them anew.
    """

    def __init__(self) -> None:
        # That was told last: a task of which nothing was told counts as working.
        self.status = TaskStatus(state=TaskState.WORKING)
        self._status = ""
        self._artifacts: dict[str, Any] = {}  # by id, the running hash

    @classmethod
    def of(cls, task: Task) -> TaskView:
        """Return the view of a whole task."""
        view = cls()
        view.apply(TaskSnapshot(task=task))
        return view

    def apply(self, update: AnyUpdate) -> None:
        """Take in an update, in its order."""
        match update:
            case TaskSnapshot(task=task):
                self._set_status(task.status)
                self._artifacts = {}
                for artifact in task.artifacts:
                    self._add(artifact, append=False)
            case StatusUpdate(status=status):
                self._set_status(status)
            case ArtifactUpdate(artifact=artifact, append=append):
                self._add(artifact, append=append)
            case _:  # a message changes no task
                pass

    def digest(self) -> str:
        """Return a digest of it all."""
        whole = hashlib.sha256(self._status.encode())
        for artifact_id in sorted(self._artifacts):
            digest = self._artifacts[artifact_id].digest()
            whole.update(artifact_id.encode("utf-8", "surrogatepass") + b"\0" + digest)
        return whole.hexdigest()

    def without_what_follows(self, task: Task) -> Task:
        """Return a task that is ahead of the updates, without its end and other artifacts."""
        if self.status.state.terminal:
            return task
        return replace(
            task,
            status=self.status if task.status.state.terminal else task.status,
            artifacts=tuple(each for each in task.artifacts if each.artifact_id in self._artifacts),
        )

    def _set_status(self, status: TaskStatus) -> None:
        self.status = status
        parts = status.message.parts if status.message else ()
        self._status = f"{status.state.value} {_digest_of(parts)}"

    def _add(self, artifact: Artifact, *, append: bool) -> None:
        running = self._artifacts.get(artifact.artifact_id) if append else None
        if running is None:
            running = self._artifacts[artifact.artifact_id] = hashlib.sha256()
        for part in artifact.parts:
            if isinstance(part, TextPart):
                running.update(part.text.encode("utf-8", "surrogatepass"))
            else:
                running.update(f"\0{_digest_of((part,))}\0".encode())


def _digest_of(parts: tuple[Any, ...]) -> str:
    return update_digest(parts) if parts else ""  # type: ignore[arg-type]


def chain(told: str, view: str, message_id: str = "") -> str:
    """Return the digest of all that was told, from the one before and what is new."""
    return hashlib.sha256(f"{told} {view} {message_id}".encode()).hexdigest()


def with_chunk(task: Task | None, update: TaskUpdate) -> Task | None:
    """Return a task after an update; None if the agent has to be asked for it."""
    if task is None or not isinstance(update, ArtifactUpdate):
        return None  # a status moves messages into the history: the agent knows how
    artifacts = {each.artifact_id: each for each in task.artifacts}
    before = artifacts.get(update.artifact.artifact_id) if update.append else None
    after: Artifact = update.artifact
    if before is not None:
        after = replace(before, parts=(*before.parts, *update.artifact.parts))
    artifacts[after.artifact_id] = after
    size = sum(len(getattr(part, "text", "")) for each in artifacts.values() for part in each.parts)
    return None if size > _MOST_KEPT else replace(task, artifacts=tuple(artifacts.values()))
