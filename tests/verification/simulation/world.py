"""A simulated world: machines with clocks and disks, and the programs that run on them."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pushkit.errors import SchemaError
from tests.verification.simulation.coverage import RECENT
from tests.verification.simulation.disk import Disk
from tests.verification.simulation.loop import PROCESS, Process, SimulatedLoop
from tests.verification.simulation.network import Network
from tests.verification.simulation.postgres import PostgresServer
from tests.verification.simulation.secrecy import Secrets

__all__ = ["EPOCH", "Machine", "Unit", "World"]

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_DRAIN = 19.9  # seconds that programs have for a clean shutdown


@dataclass(slots=True)
class Trouble:
    """A fault that may excuse a repetition or a delay."""

    kind: str  # such as `death`, `disk`, `clock`, `network`, `freeze`
    whom: str  # the process or host that it affects; empty for all
    begin: float
    end: float


class World:
    """The world of one seed: its loop, its network, its trace, and its faults.

    Attributes:
        loop: The event loop of all processes.
        network: The network between them.
        trace: What happened, a line each, with virtual times; the same for the same seed.
        violations: The broken promises.
        troubles: The faults that struck, which may excuse a repetition.
        secrets: Searches log lines, events and errors for secrets.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.loop = SimulatedLoop(seed)
        self.network = Network(self.loop, seed)
        self.trace: list[str] = []
        self.violations: list[str] = []
        self.troubles: list[Trouble] = []
        self._faults: dict[str, float] = {}
        self.secrets = Secrets(self.violated)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.loop.on_thaw = self._end_freeze

    def note(self, what: str) -> None:
        process = PROCESS.get()
        self.trace.append(f"{self.loop.time():14.6f} {process.name if process else '-'}: {what}")

    def violated(self, what: str) -> None:
        self.note(f"VIOLATION {what}")
        self.violations.append(what)

    def trouble(self, kind: str, *, whom: str = "", lasts: float = 0.0) -> Trouble:
        """Note a fault that begins now, and lasts so many seconds."""
        now = self.loop.time()
        self.note(f"trouble: {kind} {whom} for {lasts:g} s")
        self.troubles.append(trouble := Trouble(kind, whom, now, now + lasts))
        return trouble

    def _end_freeze(self, process: Process) -> None:
        """End the excuse of a freeze when its process continues, maybe earlier than planned."""
        now = self.loop.time()
        for each in self.troubles:
            if each.kind in ("freeze", "disk") and each.whom == process.name:
                each.end = min(each.end, now)

    def note_fault(self, kind: str) -> None:
        """Note the time of a step that is a fault (see `coverage.FAULTS`)."""
        self._faults[kind] = self.loop.time()

    def recent_faults(self) -> tuple[str, ...]:
        """Return the kinds of faults of the last `coverage.RECENT` seconds."""
        if not self._faults:
            return ()
        since = self.loop.time() - RECENT
        return tuple(kind for kind, at in self._faults.items() if at >= since)

    def had_trouble(self, kind: str, begin: float, end: float, *, whom: str | None = None) -> bool:
        """Return whether a fault of a kind overlaps a period; `whom` restricts it to one target."""
        return any(
            each.kind == kind
            and each.begin <= end
            and each.end >= begin
            and whom in (None, each.whom)
            for each in self.troubles
        )

    def spawn(self, coro: Coroutine[Any, Any, Any], process: Process | None) -> asyncio.Task[Any]:
        """Start a task of a process, or of the world itself."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        task = context.run(self.loop.create_task, coro)
        self._tasks.add(task)
        return task


@dataclass(slots=True)
class Machine:
    """A computer with its own clock."""

    world: World
    address: str  # its address on the network
    offset: float = 0.0  # how many seconds its clock is ahead
    drift: float = 0.0  # how many seconds it gains in each second
    disk: Disk | PostgresServer | None = None  # its disk, or the database server of its programs

    def now(self) -> datetime:
        seconds = self.world.loop.time() * (1 + self.drift) + self.offset
        return EPOCH + timedelta(seconds=seconds)


@dataclass(eq=False)
class Unit:
    """A program that is started, stopped, killed and started again."""

    world: World
    name: str  # its name in the trace
    machine: Machine  # where it runs
    process: Process | None = field(default=None, init=False)
    is_new: bool = field(default=False, init=False)  # whether it starts as a later version
    starts: int = field(default=0, init=False)
    failures: int = field(default=0, init=False)
    _stopping: Process | None = field(default=None, init=False)

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        """Start it, unless it is running."""
        if self.is_up:
            return
        self.starts += 1
        self.process = Process(f"{self.name}.{self.starts}", self.machine.address)
        self.world.spawn(self._run(self.process), self.process)

    def crash(self, *, down_for: float | None = None, power: bool = False) -> None:
        """End its process as SIGKILL does, and start it again later.

        Args:
            down_for: Seconds until it is started again; None for the time when faults end.
            power: Whether the machine lost its power: peers then get no reset.
        """
        process = self.process
        if process is None:
            return
        self._die(process)
        self.world.network.drop(process, reset=not power)
        if down_for is not None:
            self.world.loop.call_later(down_for, self.start, context=contextvars.Context())

    def stop(self, down_for: float) -> None:
        """Stop it as SIGTERM does, and start it again after a while."""
        process = self.process
        if process is None or not process.alive or process is self._stopping:
            return
        self._stopping = process
        drained_by = self.world.loop.time() + _DRAIN

        async def stopping() -> None:
            try:
                await self.shut()
            except Exception as exc:  # noqa: BLE001  # every error is reported
                self.world.violated(f"{process.name} did not shut down cleanly: {exc!r}")
            self.world.note("stopped")
            self.world.loop.call_soon(gone, context=contextvars.Context())

        def is_late() -> None:  # what it has not settled by now, it gives up
            if process.alive:
                self.world.trouble("death", whom=process.name)

        def gone() -> None:
            was_ours = self.process is process
            # A process that ended in time has settled everything: its end excuses nothing.
            # A late one (it was frozen meanwhile) dies now, however long ago it gave up.
            self._die(process, is_excuse=self.world.loop.time() >= drained_by)
            self.world.network.drop(process)
            if was_ours:
                self.world.loop.call_later(down_for, self.start, context=contextvars.Context())

        self.world.trouble("stop", whom=process.name)
        self.world.loop.call_later(_DRAIN, is_late, context=contextvars.Context())
        self.world.spawn(stopping(), process)

    def freeze(self, seconds: float, *, takes_lock: bool = False) -> None:
        """Let its process stand still for so many seconds, as SIGSTOP does."""
        disk = self.machine.disk
        if self.process is not None:
            self.world.trouble("freeze", whom=self.process.name, lasts=seconds)
            if takes_lock or (disk is not None and disk.is_held_by(self.process)):
                self.world.trouble("disk", whom=self.process.name, lasts=seconds)
            self.world.loop.freeze(self.process, seconds)

    def do(self, coro: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any] | None:
        """Run something in its process; None if it is down."""
        if not self.is_up:
            return None
        return self.world.spawn(coro(), self.process)

    async def _run(self, process: Process) -> None:
        try:
            await self.main()
        except Exception as exc:  # as a supervisor sees a program that fails
            logging.getLogger("simulation").debug("%s ended", process.name, exc_info=exc)
            self.world.note(f"ended: {type(exc).__name__}: {exc}")
            self.world.secrets.check("an error", str(exc))
            self._die(process)
            self.world.network.drop(process)
            # An old program may refuse to start during an upgrade: that is no failure.
            self.failures += not isinstance(exc, SchemaError)
            if self.failures > 100:
                self.world.violated(f"{self.name} does not start: {type(exc).__name__}: {exc}")
                return
            # A supervisor restarts it.
            self.world.loop.call_later(1.0, self.start, context=contextvars.Context())

    def _die(self, process: Process, *, is_excuse: bool = True) -> None:
        if is_excuse:
            self.world.trouble("death", whom=process.name)
        self.world.loop.kill(process)
        if self.process is process:
            self.process = None
        if isinstance(self.machine.disk, PostgresServer):
            self.machine.disk.drop(process)

    async def main(self) -> None:
        """Run until stopped."""
        raise NotImplementedError

    async def shut(self) -> None:
        """Close what `main` opened."""
        raise NotImplementedError
