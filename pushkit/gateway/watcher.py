"""Watches tasks of the agent, and stores each of their updates, once and in order.

A task has one source at a time: the stream of the message that began it, a stream that the gateway
subscribed to, or, where the agent gives none, the task itself, asked for again and again. After a
break the task is compared with what its webhooks were told last: its last state is never missed.

What was told is a chain of digests, and the link of an update is its idempotency key. So a gateway
that takes over and finds what the dead one had stored stores it under the same key, which changes
nothing. The end of a task has one key, and is stored again once the task is forgotten: that tells
it a config that was set in between, and no other one twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Final, TypeVar

from pushkit.a2a import (
    ArtifactUpdate,
    MessageUpdate,
    StatusUpdate,
    Task,
    TaskSnapshot,
    TaskUpdate,
    WireVersion,
)
from pushkit.clock import utc_now
from pushkit.delivery.sender import PushSender
from pushkit.delivery.snapshots import shorter
from pushkit.delivery.watches import LEASE, WatchRow
from pushkit.errors import (
    BacklogFullError,
    InvalidUpdateError,
    PayloadTooLargeError,
    PushkitError,
    SealedSecretError,
    StorageError,
)
from pushkit.gateway.calls import Binding, Place
from pushkit.gateway.events import EventStream, StreamEvent, TaskView, chain, with_chunk
from pushkit.gateway.options import GatewayOptions
from pushkit.gateway.upstream import TaskRefusedError, Upstream, UpstreamError
from pushkit.logs import RepeatedLog, printable
from pushkit.outbox.model import IdempotencyKey
from pushkit.scheduling.event_loop import cancelled
from pushkit.storage.script import from_micros, to_micros

_log: Final = logging.getLogger("pushkit.gateway")
T = TypeVar("T")
Key = TypeVar("Key")

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds between two looks at a task
_PAUSE_OF_CLIENT: Final = 15.0  # while a task waits for its client
_JOINED_WITHIN: Final = 10.0  # seconds; after them the task is looked at, too
_SILENT: Final = 30.0  # seconds after the last event of a stream, which may be dead
_QUIET: Final = 300.0  # seconds between two looks at a task whose stream says nothing
_PER_EVENT: Final = 1.0  # at most one look in this time, where events only say that it changed
_UNSEEN: Final = timedelta(minutes=10)  # how long a task may be missing
_UNWANTED: Final = timedelta(minutes=1)  # how long a task is watched without a config
_RENEWED_EVERY: Final = LEASE.total_seconds() / 3
_MARGIN: Final = 3.0  # seconds before the end of a lease in which nothing is stored any more
_CLAIMED_EVERY: Final = 1.0
_UNSENDABLE: Final = frozenset({PayloadTooLargeError.code, InvalidUpdateError.code})
_SHOWN_WITHIN: Final = 30.0  # seconds for a whole task; then clients of 0.3 get its status alone
_PAUSES_OF_SNAPSHOT: Final = (0.2, 1.0, 0.0)  # seconds between attempts to ask for a whole task


class LeaseLostError(PushkitError, code="watch_lost"):
    """Another gateway watches the task."""


class Watcher:
    """The tasks that this gateway watches: the sender, which is open, stores their updates."""

    def __init__(self, sender: PushSender, upstream: Upstream, options: GatewayOptions) -> None:
        self.sender = sender
        self.upstream = upstream
        self.options = options
        self.store = sender.watches()
        self.faults = RepeatedLog(_log)
        self._tasks: dict[tuple[str, str], WatchedTask] = {}
        self._unstored: dict[tuple[str, str], str] = {}  # credentials, without keys to seal them
        self._adding = Counter[tuple[str, str]]()
        # Of which a message is under way: what it brings is left to its stream.
        self.expected = Counter[tuple[str, str]]()
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to take tasks that nobody watches."""
        self._running = asyncio.create_task(self._run(), name="pushkit-gateway-watcher")

    async def stop(self) -> None:
        """Hand all tasks over to other gateways, or the next start."""
        if self._running is not None:
            await cancelled(self._running)
        await asyncio.gather(*[cancelled(each.running) for each in self._tasks.values()])
        self._tasks.clear()
        with contextlib.suppress(StorageError):
            await self.store.release()

    def get(self, tenant: str, task_id: str) -> WatchedTask | None:
        """Return a task that this gateway watches."""
        return self._tasks.get((tenant, task_id))

    def __len__(self) -> int:
        """Return how many tasks this gateway watches."""
        return len(self._tasks)

    async def add(
        self,
        place: Place,
        task_id: str,
        credentials: list[tuple[str, str]],
        *,
        known: Task | None = None,
        seen: Task | None = None,
        stream: EventStream | None = None,
    ) -> bool:
        """Watch a task whose config is stored; return whether this gateway reads the stream.

        Args:
            place: How the agent is asked.
            task_id: The task.
            credentials: What the agent is asked with.
            known: The task, if its webhooks need not be told what it is now.
            seen: The task, if its webhooks are to be told.
            stream: Its events, from the first one on.

        Raises:
            StorageError: The database is out of reach: it is not watched.
        """
        key = (place.tenant, task_id)
        there = self._tasks.get(key)
        if there is not None and there.is_over:
            await asyncio.wait([there.running])  # it forgets the task: the row is free then
        elif there is not None:
            return there.attach(stream, credentials)
        written = "" if self.options.upstream_authorization else json.dumps(credentials)
        row = WatchRow(
            tenant=place.tenant,
            task_id=task_id,
            version=place.version.value,
            binding=place.binding.value,
            path=place.path,
            credentials=written or None,
            told=secrets.token_hex(16),  # a watch that begins anew repeats no key
            view="" if known is None else TaskView.of(known).digest(),
            created_at=to_micros(utc_now()),
        )
        if len(self._tasks) >= self.options.max_watches:
            if await self.store.add(row, hold=False):
                self._keep_unsealed(key, written)
            return False
        with counted(self._adding, key):
            until = asyncio.get_running_loop().time() + LEASE.total_seconds()
            if await self.store.add(row, hold=True):
                self._keep_unsealed(key, written)
                self._begin(row, until, stream=stream, seen=seen)
                return stream is not None
        there = self._tasks.get(key)
        return there is not None and there.attach(stream, credentials)

    async def keep_credentials(self, row: WatchRow, credentials: list[tuple[str, str]]) -> None:
        """Keep what the agent is asked with about a task, for whoever takes it over.

        Raises:
            StorageError: The database is out of reach.
        """
        written = json.dumps(credentials)
        if self.store.seals:
            await self.store.set_credentials(row.tenant, row.task_id, written)
        self._keep_unsealed((row.tenant, row.task_id), written)

    def _keep_unsealed(self, key: tuple[str, str], credentials: str) -> None:
        self._unstored.pop(key, None)
        if self.store.seals or credentials in {"", "[]"}:
            return
        self._unstored[key] = credentials
        if len(self._unstored) > 2 * self.options.max_watches:  # another gateway's have ended
            del self._unstored[next(each for each in self._unstored if each not in self._tasks)]
        self.faults.log(
            "unsealed",
            logging.WARNING,
            "callers' credentials are kept in memory alone, since there are no secret keys to"
            " seal them: after a restart the agent is asked without; set PUSHKIT_SECRET_KEYS,"
            " or --upstream-authorization-env",
        )

    def _begin(
        self,
        row: WatchRow,
        until: float,
        *,
        stream: EventStream | None = None,
        seen: Task | None = None,
    ) -> None:
        key = (row.tenant, row.task_id)
        if own := self.options.upstream_authorization:
            credentials = [("Authorization", own)]
        else:
            credentials = json.loads(row.credentials or self._unstored.get(key) or "[]")
        watched = WatchedTask(self, row, credentials, leased_until=until, stream=stream, seen=seen)
        self._tasks[key] = watched
        watched.running.add_done_callback(lambda _: self._forget(key, watched))

    def _forget(self, key: tuple[str, str], watched: WatchedTask) -> None:
        if self._tasks.get(key) is watched:
            del self._tasks[key]
        if watched.is_over or watched.is_lost:
            self._unstored.pop(key, None)

    async def _run(self) -> None:
        renewed = 0.0
        loop = asyncio.get_running_loop()
        while True:
            try:
                if loop.time() - renewed >= _RENEWED_EVERY:
                    renewed = loop.time()
                    await self._renew(renewed + LEASE.total_seconds())
                room = self.options.max_watches - len(self._tasks)
                if room <= 0:
                    full = "%d tasks are watched, as many as may be: others wait (max_watches)"
                    self.faults.log("full", logging.WARNING, full, len(self._tasks))
                until = loop.time() + LEASE.total_seconds()
                for row in await self.store.claim(min(room, 100)) if room > 0 else ():
                    if self.get(row.tenant, row.task_id) is None:
                        self._resume(row, until)
            except Exception as exc:  # noqa: BLE001  # the top of a worker loop
                trace = not isinstance(exc, StorageError)
                why = "no task can be taken: %s"
                self.faults.log("claim", logging.ERROR, why, exc, exc_info=trace)
            await asyncio.sleep(_CLAIMED_EVERY)

    def _resume(self, row: WatchRow, until: float) -> None:
        """Watch a task that was claimed, unless its row cannot be read here.

        To a caller without credentials the agent may not know the task, which would be its end. The
        row is given back at the next renewal: another gateway may have the key, or know its version
        of A2A.
        """
        try:
            row = row if self.options.upstream_authorization else self.store.opened(row)
            self._begin(row, until)
        except (SealedSecretError, ValueError) as exc:
            cause = ("row", type(exc))
            self.faults.log(cause, logging.ERROR, "a task cannot be watched here: %s", exc)

    async def _renew(self, until: float) -> None:
        before, adding = dict(self._tasks), set(self._adding)
        held = await self.store.renew()
        for key, watched in before.items():
            if key in held:
                watched.leased_until = until
            elif self._tasks.get(key) is watched and not watched.is_over:
                _log.warning("task %s is watched by another gateway", printable(key[1]))
                watched.is_lost = True
                await cancelled(watched.running)
        # Those whose watching failed here.
        if failed := held.difference(before, self._tasks, adding, self._adding):
            await self.store.give_back(failed)


@contextlib.contextmanager
def counted(keys: Counter[Key], key: Key) -> Iterator[None]:
    """Keep a key among others, for as long as anybody needs it."""
    keys[key] += 1
    try:
        yield
    finally:
        keys[key] -= 1
        if not keys[key]:
            del keys[key]


class WatchedTask:
    """One task.

    Attributes:
        is_over: Whether nothing is told of it any more.
        is_lost: Whether another gateway watches it.
        leased_until: When its lease ends, in the event loop's time.
        running: Watches it; if it is cancelled, the row stays.
    """

    def __init__(
        self,
        watcher: Watcher,
        row: WatchRow,
        credentials: list[tuple[str, str]],
        *,
        leased_until: float,
        stream: EventStream | None,
        seen: Task | None,
    ) -> None:
        self._watcher = watcher
        self._row = row  # as it is stored, but for the credentials
        self._key = (row.tenant, row.task_id)
        self._credentials = credentials
        # What a later caller proved to be allowed with, should the agent refuse the former one's.
        self._newer: list[tuple[str, str]] | None = None
        self._place = Place(WireVersion(row.version), Binding(row.binding), row.path, row.tenant)
        self._view = TaskView()
        self._stream: EventStream | None = None  # that is read
        self._next = stream  # from its beginning, which nobody has read
        self._seen = seen
        self._news = asyncio.Event()
        self._whole: Task | None = None  # for clients of 0.3: exactly what was told until now
        self._is_ahead = False  # whether clients of 0.3 were told more than the stream has
        self._context_id: str | None = None
        self._unseen_since: float | None = None
        self._looked_at = 0.0
        self._asking: asyncio.Task[Task] | None = None
        self._quiet_until = 0.0
        self._tell_again: Callable[[], Awaitable[None]] | None = None
        self._tell_end: Callable[[], Awaitable[None]] | None = None
        self._is_unwanted = False
        self.is_over = False
        self.is_lost = False
        self.leased_until = leased_until
        self.running = asyncio.create_task(self._run(), name="pushkit-gateway-task")

    def attach(
        self, stream: EventStream | None, credentials: list[tuple[str, str]] | None = None
    ) -> bool:
        """Read a further stream of the task after the one that ends; return whether it is read.

        A stream has ended if it says no more of a task that waits for its client, too. With
        `credentials` a caller who set a config proved that it may see the task.
        """
        if credentials is not None and credentials != self._credentials:
            self._newer = credentials
        self._news.set()
        if stream is None or self.is_over or self._next is not None:
            return False
        if self._stream is not None:
            silence = asyncio.get_running_loop().time() - self._stream.heard_at
            if not self._stream.is_at_rest and silence < _SILENT:
                return False
            self._stream.events.end()  # it is read on, or the agent might stop
        self._next = stream
        if self._asking is not None:
            self._asking.cancel()  # the stream tells more, and the answer may never come
        return True

    async def _run(self) -> None:
        try:
            await self._watch()
            await self._patiently(functools.partial(self._watcher.store.remove, *self._key))
            # The caller of a config that was set since the end was told found the task watched.
            if self._tell_end is not None and await self._is_subscribed():
                await self._patiently(self._tell_end)
            # So did that of one that was set, at another gateway, once nobody wanted the task.
            if self._is_unwanted and await self._is_subscribed():
                await self._patiently(self._add_again)
        except LeaseLostError as exc:
            _log.warning("task %s: %s", printable(self._row.task_id), exc)
        except Exception:  # noqa: BLE001  # the row is given back, and taken again
            _log.exception("task %s is watched no longer here", printable(self._row.task_id))
        finally:
            for stream in filter(None, (self._stream, self._next)):
                stream.unwatch()

    async def _add_again(self) -> None:
        """Let whichever gateway is first watch the task on from here."""
        is_own = self._watcher.options.upstream_authorization
        credentials = None if is_own else json.dumps(self._credentials)
        await self._watcher.store.add(replace(self._row, credentials=credentials), hold=False)
        self.is_over = False

    async def _watch(self) -> None:
        pause, loop = _FIRST_PAUSE, asyncio.get_running_loop()
        if self._seen is not None:
            await self._compare(self._seen)
            self._seen = None
        while not self.is_over:
            resumed = self._next is None
            stream = await self._joined() if self._next is None else None
            if self._next is not None:  # perhaps meanwhile
                if stream is not None:
                    stream.unwatch()
                stream, self._next, resumed = self._next, None, False
            if stream is not None:
                began, told, self._stream = loop.time(), self._row.told, stream
                await self._follow(stream, resumed=resumed)
                stream.unwatch()
                self._stream = None
                # Some agents refuse with a stream of one event: it is no reason to ask sooner.
                if self._row.told != told or loop.time() - began > _LONGEST_PAUSE:
                    pause = _FIRST_PAUSE
            if self.is_over or self._next is not None:
                continue
            await self._look()
            if not self.is_over and not await self._is_wanted() and not self._news.is_set():
                self.is_over = True
            if not self.is_over:
                pause = await self._wait(pause)

    async def _wait(self, pause: float) -> float:
        """Wait for a stream, or a while; return how long to wait the next time."""
        waits_for_client = self._view.status.state.interrupted
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PAUSE_OF_CLIENT if waits_for_client else pause):
                await self._news.wait()
        is_woken = self._news.is_set()
        self._news.clear()
        return _FIRST_PAUSE if is_woken else min(pause * 2, _LONGEST_PAUSE)

    async def _joined(self) -> EventStream | None:
        """Return the task's stream; None if the agent gives none, or another one comes first.

        Some agents begin to answer with the next event: until then they are as without streams.
        """
        joining = asyncio.create_task(self._subscribed(), name="pushkit-gateway-join")
        stream: EventStream | None = None
        try:
            await asyncio.wait([joining], timeout=_JOINED_WITHIN)
            if not joining.done():
                joining.add_done_callback(lambda _: self._news.set())
            pause = _FIRST_PAUSE
            while not (joining.done() or self.is_over or self._next is not None):
                await self._look()
                pause = await self._wait(pause)
            stream = joining.result() if joining.done() else None
            return stream
        finally:
            if stream is None:
                joining.add_done_callback(_unwatch)
                joining.cancel()

    async def _subscribed(self) -> EventStream | None:
        if self._view.status.state.interrupted:
            return None  # its stream would end at once
        try:
            return await self._watcher.upstream.subscribe(
                self._place, self._row.task_id, self._credentials
            )
        except UpstreamError as exc:
            self._watcher.faults.log(("subscribe", str(exc)), logging.WARNING, "%s", exc)
            return None

    async def _follow(self, stream: EventStream, *, resumed: bool) -> None:
        """Store the events of a stream, until it ends, or the task does.

        A stream that the gateway subscribed to may begin with the task as it is (A2A 1.0 §3.1.6):
        then what follows is new. Otherwise nobody knows which of its events the task held already,
        so that each only says: look at the task. So does one of 0.3, whose webhooks get whole
        tasks: an agent is ahead of its events, and a quick task's end would be told for each.
        """
        loop = asyncio.get_running_loop()
        is_live, is_first = not resumed, True
        in_wholes = self._place.version is WireVersion.V0_3
        await asyncio.wait([stream.first], timeout=_PER_EVENT)
        if not stream.first.done():  # it does not begin with the task, or does so late
            stream.first.add_done_callback(self._give_way)
            await self._look_until_shown(stream, or_begun=True)
        if self.is_over:
            await stream.close()
            return
        self._quiet_until = loop.time() + _QUIET
        quiet = functools.partial(self._while_quiet, stream)
        async for event in stream.events.items(quiet, _LONGEST_PAUSE):
            update = event.update
            is_others = update is not None and update.task_id not in (None, self._row.task_id)
            # What nobody can read may be ahead of the first one that says something.
            if is_others or (update is None and is_first and stream.first.done()):
                continue
            if stream.events.lost:
                stream.events.lost, is_live = False, False
            if isinstance(update, TaskSnapshot) and self._is_ahead:
                is_live, is_first = False, False  # clients of 0.3 may know more than it says
            if isinstance(update, TaskSnapshot) and (is_first or (is_live and not in_wholes)):
                is_live = True
                await self._compare(update.task)
            elif is_live and not in_wholes:
                if update is not None:  # and not an error, or what nobody can read
                    await self._store(update)
            else:
                if not is_live or isinstance(update, ArtifactUpdate):
                    await self._until_next_look(stream)
                stream.events.skip()  # the task holds what came until now
                await self._look_until_shown(stream)
            is_first = False
            if self.is_over:
                return

    async def _until_next_look(self, stream: EventStream) -> None:
        pause = max(self._looked_at + _PER_EVENT - asyncio.get_running_loop().time(), 0)
        if not stream.settled.done():
            await asyncio.wait([stream.settled], timeout=pause)
        elif not (stream.is_at_rest or stream.events.has_ended):
            await asyncio.sleep(pause)  # it went on after it had waited for its client

    async def _while_quiet(self, stream: EventStream) -> None:
        """Tell what there was no room for; see whether the task rests, which no event said.

        An agent of several processes may have joined a stream to one that does not run the task.
        What it says of a task that goes on may be ahead of the stream, or behind it: no matter.
        """
        if self._tell_again is not None:
            await self._patiently(self._tell_again)
        if (now := asyncio.get_running_loop().time()) < self._quiet_until:
            return
        self._quiet_until = now + _QUIET
        try:
            task = await self._asked_unless_told()
        except (TaskRefusedError, UpstreamError):
            return  # the stream is there
        if task is None or self.is_over:
            return
        state = task.status.state
        waits = state.interrupted and TaskView.of(task).digest() != self._row.view
        if state.terminal or (waits and not stream.is_at_rest):
            stream.events.drop()
            await self._compare(task)

    async def _look_until_shown(self, stream: EventStream, *, or_begun: bool = False) -> None:
        """Ask for the task until the agent shows it: a stream may be quiet for long."""
        pause = _FIRST_PAUSE
        while not (await self._look() or self.is_over or stream.events.has_ended):
            if or_begun and _is_task(stream.first):
                return
            pause = await self._wait(pause)

    def _give_way(self, first: asyncio.Future[StreamEvent | None]) -> None:
        """Look no longer at a task with which its stream begins."""
        if _is_task(first):
            self._news.set()
            if self._asking is not None:
                self._asking.cancel()

    async def _look(self) -> bool:
        """Ask for the task, store it if its webhooks do not know it; return if it was shown."""
        loop = asyncio.get_running_loop()
        self._looked_at = loop.time()
        try:
            task = await self._asked_unless_told()
            if task is None:
                return False
        except TaskRefusedError as exc:
            if await self._asks_as_later_caller():
                return False
            if exc.status != 404:
                self._unseen_since = None
            elif self._unseen_since is None:
                self._unseen_since = loop.time()
            elif loop.time() - self._unseen_since > _UNSEEN.total_seconds():
                _log.warning(
                    "task %s: the agent knows it no longer: its webhooks do not learn its end",
                    printable(self._row.task_id),
                )
                self.is_over = True
                return False
            self._watcher.faults.log(("task", exc.status), logging.WARNING, "%s", exc)
        except UpstreamError as exc:
            self._watcher.faults.log(("task", str(exc)), logging.WARNING, "%s", exc)
        else:
            self._unseen_since = None
            # A stream that begins tells it from its beginning on: that may be older than this.
            is_free = self._stream is None or self._stream.is_at_rest
            is_expected = is_free and self._key in self._watcher.expected
            if self._next is None and not is_expected:
                self._is_ahead = False
                await self._compare(task)
            return True
        return False

    async def _asks_as_later_caller(self) -> bool:
        """Change to the credentials of a later caller, if there are any: a token may expire."""
        if self._newer is None or self._watcher.options.upstream_authorization:
            return False
        self._credentials, self._newer = self._newer, None
        keep = functools.partial(self._watcher.keep_credentials, self._row, self._credentials)
        await self._patiently(keep)
        self._news.set()
        return True

    async def _asked_unless_told(self) -> Task | None:
        """Ask for the task; None if a stream comes first. Raises as `_asked`."""
        self._asking = asking = asyncio.create_task(self._asked(), name="pushkit-gateway-look")
        try:
            await asyncio.wait([asking])
            return None if asking.cancelled() else asking.result()
        finally:
            self._asking = None
            asking.cancel()

    async def _asked(self) -> Task:
        """Ask for the task. Raises TaskRefusedError, UpstreamError."""
        shown = await self._watcher.upstream.task(self._place, self._row.task_id, self._credentials)
        return shown.task

    async def _compare(self, task: Task) -> None:
        view = TaskView.of(task)
        # An end that was told is stored again, for a config that was set since: see `_run`.
        if view.digest() == self._row.view and not task.status.state.terminal:
            self._view = view
            self._context_id = task.context_id
            if self._tell_again is not None:
                await self._patiently(self._tell_again)
        else:
            await self._store(TaskSnapshot(task=task, origin=self._place.version))

    async def _store(self, update: TaskUpdate) -> None:
        """Store an update for all who want it, and note that they were told."""
        self._unseen_since = None  # the agent knows the task
        if not isinstance(update, TaskSnapshot | MessageUpdate) and update.context_id is None:
            # Some agents say it with the task alone; receivers expect it everywhere.
            update = replace(update, context_id=self._context_id)
        self._context_id = update.context_id or self._context_id
        self._view.apply(update)
        self._whole = with_chunk(self._whole, update)
        view = self._view.digest()
        ends = self._view.status.state.terminal
        message_id = update.message.message_id if isinstance(update, MessageUpdate) else ""
        told = chain(self._row.told, view, message_id)
        # Without a digest: another gateway may have stored it as an event, or in the whole task.
        name = f"gateway-end-{view}" if ends else f"gateway-{told}"
        tell = functools.partial(self._tell, update, name)
        try:
            await self._patiently(tell)
        except LeaseLostError:
            raise
        except PushkitError as exc:  # nobody can have it; what comes after it, they can
            kind = update.kind.value
            self._watcher.faults.log(
                ("update", exc.code), logging.ERROR, "a %s of the agent is lost: %s", kind, exc
            )
        set_told = functools.partial(self._watcher.store.set_told, *self._key, told=told, view=view)
        if not await self._patiently(set_told):
            self.is_lost = True
            raise LeaseLostError("another gateway watches it")
        self._row = replace(self._row, told=told, view=view)
        self._tell_end = tell if ends else None
        self.is_over = ends

    async def _tell(self, update: TaskUpdate, name: str) -> None:
        """Store an update for all who want it, by the name of its key.

        Whoever cannot have it, because it is too large, gets what it says of the task's state.
        """
        self._tell_again = None
        for each in (update, *_shorter(update)):
            result = await self._watcher.sender.notify(
                each,
                tenant=self._row.tenant,
                snapshot=self._snapshot,
                idempotency_key=IdempotencyKey(key=name, update_sha256="", is_new=False),
            )
            codes = {refused.code for refused in result.refused}
            if BacklogFullError.code in codes:  # it may have room later, and nothing may follow
                self._tell_again = functools.partial(self._tell, update, name)
            if _UNSENDABLE.isdisjoint(codes):
                return

    async def _patiently(self, store: Callable[[], Awaitable[T]]) -> T:
        """Store something, as soon as the database can be reached, while the lease lasts.

        Raises:
            LeaseLostError: The lease is about to end.
        """
        pause = 0.1
        while True:
            if asyncio.get_running_loop().time() > self.leased_until - _MARGIN:
                raise LeaseLostError("its lease could not be renewed")
            try:
                return await store()
            except StorageError as exc:
                self._watcher.faults.log("store", logging.ERROR, "no update can be stored: %s", exc)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)

    async def _snapshot(self, _owner: str) -> Task | None:
        """Return the whole task, for clients of 0.3.

        The agent may be ahead of the update that is told: then its task is not what chunks that
        come are added to, and what follows is left for the updates that tell it.
        """
        for pause in _PAUSES_OF_SNAPSHOT:
            if self._whole is not None:
                break
            try:
                async with asyncio.timeout(_SHOWN_WITHIN):  # all webhooks of the task wait for it
                    task = await self._asked()
            except TimeoutError:
                return None
            except TaskRefusedError:
                if not await self._asks_as_later_caller():
                    return None
                continue
            except UpstreamError:
                await asyncio.sleep(pause)
                continue
            if TaskView.of(task).digest() != self._view.digest():
                self._is_ahead = True
                return self._view.without_what_follows(task)
            self._whole = task
        return self._whole

    async def _is_wanted(self) -> bool:
        """Return whether anybody gets its updates; a config may come a moment after its task."""
        age = utc_now() - from_micros(self._row.created_at)
        if age > self._watcher.options.watch_for:
            _log.warning("task %s was watched for too long", printable(self._row.task_id))
            return False
        self._is_unwanted = age >= _UNWANTED and not await self._is_subscribed()
        return not self._is_unwanted

    async def _is_subscribed(self) -> bool:
        try:
            return bool(
                await self._watcher.sender.subscribers(self._row.task_id, tenant=self._row.tenant)
            )
        except StorageError:
            return True


def _shorter(update: TaskUpdate) -> Iterator[TaskUpdate]:
    """Yield an update again with less in it, and its state at last."""
    if isinstance(update, TaskSnapshot):
        for task in shorter(update.task):
            yield replace(update, task=task)
    elif isinstance(update, StatusUpdate):
        yield replace(update, status=replace(update.status, message=None))


def _is_task(first: asyncio.Future[StreamEvent | None]) -> bool:
    event = first.result() if first.done() else None
    return event is not None and isinstance(event.update, TaskSnapshot)


def _unwatch(joining: asyncio.Task[EventStream | None]) -> None:
    """Read no stream that came as nobody waited for it any more."""
    if not joining.cancelled() and joining.exception() is None and (stream := joining.result()):
        stream.unwatch()
