"""Plays a scenario: sets up the cast, takes the steps, lets all faults end, and draws the sum."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import asyncpg

import pushkit.delivery.admin
import pushkit.net.guard
import receiver.admin
import receiver.callbacks.dispatcher
from pushkit import (
    KeyRing,
    PushSender,
    RetryPolicy,
    SenderOptions,
    StatusUpdate,
    TaskState,
    TaskStatus,
    wait_schedule,
)
from pushkit.errors import CommitUncertainError, PushkitError, StorageError
from pushkit.keys.jwk import SigningKey
from pushkit.storage.database import Database
from pushkit.storage.postgres import PostgresDatabase
from pushkit.storage.script import to_micros
from pushkit.work import stop_after_attempt
from receiver import Notification
from tests.simulation.cast import ReceivingUnit, SendingUnit
from tests.simulation.conduct import Conduct
from tests.simulation.disk import Disk, DiskDatabase
from tests.simulation.faults import Faults
from tests.simulation.loop import PROCESS, Process
from tests.simulation.network import Fate, SimulatedResolver
from tests.simulation.postgres import PostgresServer
from tests.simulation.promises import Notice, Promises
from tests.simulation.scenario import Scenario
from tests.simulation.strikes import Strikes
from tests.simulation.surroundings import Surroundings
from tests.simulation.webhook import Arrival, Mood, Webhook
from tests.simulation.world import EPOCH, Machine, Unit, World

__all__ = ["Outcome", "play"]

_TIMEOUT = timedelta(seconds=10)
_OPTIONS = SenderOptions(
    retry=RetryPolicy(wait=wait_schedule((1, 5, 20, 40)), stop=stop_after_attempt(8)),
    timeout=_TIMEOUT,
    poll_interval=timedelta(seconds=30),
    rate_per_origin=None,
)
_DRAIN = 2 * 3600.0  # seconds: the breaker's longest waits, times the tries
_AGENTS, _HOOKS, _KEYS = "198.51.100", "93.184.216", "93.184.217"
_RECEIVERS, _TWINS = "93.184.218", "93.184.219"
_CALLBACKS = (0.0, 0.01, 1.0, 5.0, 80.0)  # seconds that the client's own code takes

_MOODS: dict[str, Mood] = {
    "ok": Mood(),
    "slow": Mood(after=3.0),
    "late": Mood(after=12.0),
    "hang": Mood(status=None),
    "close": Mood(closes=True),
    "drip": Mood(status=200, drips=0.2),
    "500": Mood(status=500),
    "503": Mood(status=503, headers=(("Retry-After", "7"),)),
    "429": Mood(status=429, headers=(("Retry-After", "2"),)),
    "410": Mood(status=410),
    "400": Mood(status=400),
    "409": Mood(status=409),
    "404": Mood(status=404),
    "301": Mood(status=301, headers=(("Location", "https://hook0.example.com/elsewhere"),)),
    "garbage": Mood(status=200, headers=(("Content-Length", "abc"),), is_garbage=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a seed.

    Attributes:
        seed: Which.
        violations: Promises that were broken.
        trace: What happened, a line each.
        simulated: Seconds of virtual time.
        moves: How often a delivery went from one state to another, and by which error.
    """

    seed: int
    violations: tuple[str, ...]
    trace: tuple[str, ...]
    simulated: float
    moves: dict[str, int]


class _Keys:
    """The agents' keys, which a scenario may rotate."""

    def __init__(self, ring: KeyRing) -> None:
        self.current = ring

    def ring(self) -> KeyRing:
        return self.current


class _Play:
    """One scenario on stage. A step of kind `x` is the method `do_x`."""

    def __init__(self, scenario: Scenario, key: SigningKey) -> None:
        self.scenario = scenario
        self.world = World(scenario.seed)
        self.faults = Faults(self.world, is_postgres=scenario.postgres)
        self.keys = _Keys(KeyRing.create(EPOCH, key=key))
        self.outbox = self._new_disk()
        self.machine = Machine(self.world, f"{_AGENTS}.1", disk=self.outbox)
        self.senders = {
            name: SendingUnit(
                self.world,
                name,
                self.machine,
                keys=self.keys,
                options=_OPTIONS,
                delivers=delivers,
                keys_at=keys_at,
            )
            for name, delivers, keys_at in self._roles()
        }
        self.webhooks: dict[str, Webhook] = {}
        self.receivers: dict[str, ReceivingUnit] = {}
        self.twins: dict[str, ReceivingUnit] = {}
        self.hosts: dict[str, Machine] = {}
        self.addresses: dict[str, list[str]] = {}
        self.world.network.on_violation = self.world.violated
        for number in range(scenario.webhooks):
            self._add_webhook(f"hook{number}", Machine(self.world, f"{_HOOKS}.{number + 1}"))
        for number in range(scenario.receivers):
            machine = Machine(self.world, f"{_RECEIVERS}.{number + 1}", disk=self._new_disk())
            self._add_receiver(number, machine)
        self.units: dict[str, Unit] = {**self.senders, **self.receivers, **self.twins}
        self.promises = Promises(
            self.world,
            self.outbox,
            {name: _disk_of(unit.machine) for name, unit in self.receivers.items()},
            timeout=_TIMEOUT.total_seconds(),
        )
        self.strikes = Strikes(self.world, self.units)
        self.conduct = Conduct(
            self.world,
            self.outbox,
            {name: _disk_of(unit.machine) for name, unit in self.receivers.items()},
        )
        self._is_healed = False

    def _roles(self) -> list[tuple[str, bool, str | None]]:
        delivers = not self.scenario.workers
        return [
            (f"agent{n}", delivers, f"{_KEYS}.{n + 1}") for n in range(self.scenario.agents)
        ] + [(f"worker{n}", True, None) for n in range(self.scenario.workers)]

    def _add_webhook(self, name: str, machine: Machine) -> None:
        self.hosts[name] = machine
        self.webhooks[name] = Webhook(
            self.world,
            f"{name}.example.com",
            machine,
            self._arrived,
        )
        self.addresses[name] = [machine.address]

    def _arrived(self, arrival: Arrival) -> None:
        self.conduct.arrived(arrival)
        self.promises.arrived(arrival)
        self.strikes.moment("request", arrival.process, arrival.delivery_id)

    def _add_receiver(self, number: int, machine: Machine) -> None:
        name, twin = f"recv{number}", f"twin{number}"
        self.hosts[name] = machine
        self.receivers[name] = ReceivingUnit(self.world, name, machine, self._called_back, name)
        self.addresses[name] = [machine.address]
        if self.scenario.twins:
            other = Machine(self.world, f"{_TWINS}.{number + 1}", disk=machine.disk)
            self.twins[twin] = ReceivingUnit(self.world, twin, other, self._called_back, name)
            self.addresses[name].append(other.address)
        self.world.network.names[f"{name}.example.com"] = self.addresses[name]

    def _new_disk(self) -> Disk | PostgresServer:
        world = self.world
        if self.scenario.postgres:
            begin = to_micros(EPOCH)
            server = PostgresServer(world.loop, lambda: begin + int(world.loop.time() * 1_000_000))
            server.fault = self.faults.before
            server.on_move = self._moved
            server.on_deadlock = lambda: world.violated("two transactions waited for each other")
            return server
        disk = Disk(world.loop)
        disk.fault = self.faults.before
        disk.on_move = self._moved
        return disk

    def _moved(self, before: str | None, after: str, error: str | None) -> None:
        self.promises.moved(before, after, error)

    # --- the course -----------------------------------------------------------------------------

    def run(self) -> Outcome:
        loop = self.world.loop
        try:
            loop.run_until_complete(self._course())
        except Exception as exc:  # noqa: BLE001  # whatever it was, it is reported
            self.world.violated(f"the world ended: {type(exc).__name__}: {exc}")
        for exception in loop.unheard():
            self.world.violated(f"a task failed, and nobody heard: {exception!r}")
        for error in loop.errors:
            self.world.violated(f"unhandled: {error.get('message')} {error.get('exception')!r}")
        return Outcome(
            seed=self.scenario.seed,
            violations=tuple(self.world.violations),
            trace=tuple(self.world.trace),
            simulated=loop.time(),
            moves=dict(self.promises.moves),
        )

    async def _course(self) -> None:
        agents = range(self.scenario.agents)
        self.world.network.names["agent.example.com"] = [f"{_KEYS}.{n + 1}" for n in agents]
        for webhook in self.webhooks.values():
            webhook.open()
        for unit in self.units.values():
            unit.start()
        for step in self.scenario.steps:
            await self._until(step.at)
            self.world.note(f"step {step}")
            self.conduct.step(step.kind)
            getattr(self, f"do_{step.kind}")(*step.args)
        await self._until(self.scenario.ends)
        await self._heal()
        ends = self.world.loop.time() + _DRAIN
        while self.world.loop.time() < ends and not self.promises.is_drained():
            await asyncio.sleep(5)
        self.promises.check_end(_host_of)
        self.conduct.check_end()

    async def _until(self, moment: float) -> None:
        await asyncio.sleep(max(moment - self.world.loop.time(), 0))

    async def _heal(self) -> None:
        """Let all faults end, and start what is down."""
        self.world.note("healed")
        self._is_healed = True
        self.faults.heal()
        self.strikes.clear()
        for webhook in self.webhooks.values():
            webhook.mood = _MOODS["ok"]
        for name, machine in self.hosts.items():
            self._set_fate(name, "none", 0)
            self.world.network.link(machine.address).cut = False
            self.world.network.names[f"{name}.example.com"] = self.addresses[name]
        for unit in self.units.values():
            unit.start()
        while self.senders["agent0"].sender is None and self.senders["agent0"].failures < 100:
            await asyncio.sleep(1)
        for row in self.outbox.select("SELECT * FROM pushkit_subscriptions WHERE paused = 1"):
            self.do_resume(0, row["task_id"], row["owner"])

    # --- clients, agents, operators -------------------------------------------------------------

    def _ask(self, number: int, call: Callable[[PushSender], Awaitable[object]]) -> None:
        """Let an agent do something, if it is up; what it is refused is its own affair."""
        unit = self.senders[f"agent{number}"]
        sender = unit.sender if unit.is_up else None
        if sender is None:
            return

        async def ask() -> None:
            try:
                await call(sender)
            except PushkitError as exc:
                self.world.note(f"refused: {exc.code}")
            except Exception as exc:  # noqa: BLE001  # whatever it was, it is reported
                self.world.violated(f"raised to an agent: {exc!r}")

        unit.do(ask)

    def do_subscribe(self, agent: int, task: str, owner: str, host: str, version: str) -> None:
        config = {
            "id": f"{owner}-{task}",
            "url": f"https://{host}.example.com/hook",
            "token": f"SECRET-{owner}",
        }
        self._ask(agent, lambda each: each.subscribe(task, config, version=version, owner=owner))

    def do_notify(self, agent: int, task: str, number: int) -> None:
        self._notify(agent, task, f"{task}#{number}", TaskState.WORKING)

    def do_finish(self, agent: int, task: str) -> None:
        self._notify(agent, task, f"{task}#end", TaskState.COMPLETED)

    def _notify(self, agent: int, task: str, marker: str, state: TaskState) -> None:
        notice = Notice(marker, self.world.loop.time())
        self.promises.notices.append(notice)
        update = StatusUpdate(
            task_id=task,
            context_id="context",
            status=TaskStatus(state=state),
            metadata={"marker": marker},
        )

        async def notify(sender: PushSender) -> None:
            try:
                result = await sender.notify(update, idempotency_key=marker)
            except StorageError as exc:
                notice.not_stored = not isinstance(exc, CommitUncertainError)
                raise
            notice.ids = list(result.ids)
            self.world.note(f"acknowledged {marker} {notice.ids}")

        self._ask(agent, notify)

    def do_pause(self, agent: int, task: str, owner: str) -> None:
        self._ask(agent, lambda sender: sender.pause(task, owner=owner))

    def do_resume(self, agent: int, task: str, owner: str) -> None:
        self._ask(agent, lambda sender: sender.resume(task, owner=owner))

    def do_unsubscribe(self, agent: int, task: str, owner: str) -> None:
        self._ask(agent, lambda sender: sender.unsubscribe(task, owner=owner))

    def do_redrive(self, agent: int) -> None:
        dead = self.outbox.select("SELECT id FROM pushkit_deliveries WHERE state = 'dead'")
        self.promises.brought_back |= {row["id"] for row in dead}
        if dead:
            wanted = [row["id"] for row in dead]
            self._ask(agent, lambda sender: sender.outbox.redrive(wanted))

    def do_rotate(self, _agent: int) -> None:
        self.keys.current = self.keys.current.rotate(self.machine.now())

    async def _called_back(self, host: str, callback: str, notification: Notification) -> None:
        """Be the client's own code: quick, slow, failing, or hanging."""
        process = PROCESS.get()
        assert process is not None
        self.conduct.calls_back(host, notification.delivery_id)
        call = self.promises.begin_call(host, callback, notification.delivery_id, process)
        self.strikes.moment("callback", process, f"{host} {callback} {notification.delivery_id}")
        self.world.note(f"called back {callback} {notification.delivery_id}")
        chance = self.world.loop.random
        mood = 1.0 if self._is_healed or callback == "audit" else chance.random()
        try:
            await asyncio.sleep(0.01 if mood == 1.0 else chance.choice(_CALLBACKS))
            if mood < 0.02:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            call.failed = True
            raise
        if mood < 0.2:
            call.failed = True
            raise RuntimeError("the client's own mistake")
        call.ended = self.world.loop.time()

    # --- faults ---------------------------------------------------------------------------------

    def do_mood(self, host: str, mood: str) -> None:
        self.webhooks[host].mood = _MOODS[mood]

    def do_fate(self, host: str, fate: str, number: int, lasts: float) -> None:
        self.world.trouble("network", whom=host, lasts=lasts)
        self._set_fate(host, fate, number)
        self.world.loop.call_later(lasts, self._set_fate, host, "none", 0)

    def _set_fate(self, host: str, fate: str, number: int) -> None:
        network = self.world.network
        network.link(self.hosts[host].address).fates = functools.partial(
            _fate, network.random, fate, number
        )

    def do_cut(self, host: str, lasts: float) -> None:
        link = self.world.network.link(self.hosts[host].address)
        link.cut = True
        self.world.trouble("network", whom=host, lasts=lasts)
        self.world.loop.call_later(lasts, setattr, link, "cut", False)

    def do_names(self, host: str, how: str) -> None:
        name, names = f"{host}.example.com", self.world.network.names
        names.pop(name, None)
        if how != "none":
            own = self.addresses[host]
            names[name] = [*own, "10.0.0.7"] if how == "private" else own

    def do_crash(self, unit: str, down_for: float) -> None:
        self.units[unit].crash(down_for=down_for)

    def do_freeze(self, unit: str, seconds: float) -> None:
        self.units[unit].freeze(seconds)

    def do_strike(self, what: str, where: str, number: int, seconds: float) -> None:
        self.strikes.add(what, where, number, seconds)

    def do_stop(self, unit: str, down_for: float) -> None:
        self.units[unit].stop(down_for)

    def do_statement(self, unit: str, number: int, down_for: float) -> None:
        """Let a process end at its n-th statement from now: before it, or after a commit."""
        process = self.units[unit].process
        if process is not None:
            end = functools.partial(self.units[unit].crash, down_for=down_for)
            self.faults.end_at(process, number, end)

    def do_await(self, unit: str, number: int, down_for: float) -> None:
        """Let a process end at its n-th `await` from now."""
        process = self.units[unit].process
        if process is not None:
            process.end_after(number, functools.partial(self.units[unit].crash, down_for=down_for))

    def do_flap(self, unit: str, number: int, times: int) -> None:
        """Let a process end soon after every start."""
        self.do_await(unit, number, 0.5)
        if times and not self._is_healed:
            self.world.loop.call_later(2.0, self.do_flap, unit, number * 2, times - 1)

    def do_power(self, unit: str, down_for: float) -> None:
        """Let a machine lose its power: all its processes end, and nobody is told."""
        machine = self.units[unit].machine
        for each in self.units.values():
            if each.machine is machine:
                each.crash(down_for=down_for, power=True)
        if isinstance(machine.disk, Disk):
            machine.disk.lose_power()

    def do_disk(self, error: str, lasts: float) -> None:
        self.world.trouble("disk", lasts=lasts)
        self.faults.fail(error, lasts=lasts)

    def do_clock(self, seconds: float) -> None:
        self.world.trouble("clock")
        self.machine.offset += seconds

    # --- where the code under test asks for what is simulated -----------------------------------

    def disk_of_process(self) -> tuple[Process, Disk | PostgresServer]:
        process = PROCESS.get()
        assert process is not None
        return process, _disk_of(self.units[process.name.partition(".")[0]].machine)

    def open_location(
        self, _location: object, *, component: str, migrations: Any, clock: Callable[[], datetime]
    ) -> Database:
        process, disk = self.disk_of_process()
        if isinstance(disk, PostgresServer):
            return PostgresDatabase(process.name, component=component, migrations=migrations)
        return DiskDatabase(disk, process, component=component, migrations=migrations, clock=clock)

    def server(self) -> PostgresServer:
        _, disk = self.disk_of_process()
        assert isinstance(disk, PostgresServer)
        return disk


def _fate(chance: Any, fate: str, number: int) -> Fate:
    latency = 0.0005 + chance.random() * 0.004
    if fate == "none" or chance.random() < 0.3:
        return Fate(latency=latency)
    return Fate(
        latency=latency,
        refused=fate == "refused",
        silent=fate == "silent",
        reset_after=number if fate == "reset" else None,
        reset_answer_after=number % 40 if fate == "reset_answer" else None,
        stall_after=number % 40 if fate == "stall" else None,
        drip=0.3 if fate == "drip" else None,
        bad_certificate=fate == "certificate",
    )


def _disk_of(machine: Machine) -> Disk | PostgresServer:
    assert machine.disk is not None
    return machine.disk


def _host_of(origin: str) -> str:
    return origin.removeprefix("https://").partition(".")[0]


def play(scenario: Scenario, surroundings: Surroundings, key: SigningKey) -> Outcome:
    """Play a scenario to its end."""
    staged = _Play(scenario, key)
    surroundings.begin(scenario.seed, staged.world.loop.time)
    for module, name, simulated in (
        (pushkit.delivery.admin, "open_location", staged.open_location),
        (receiver.admin, "open_location", staged.open_location),
        (receiver.callbacks.dispatcher, "POLL_INTERVAL", timedelta(seconds=30)),
        (pushkit.net.guard, "AsyncResolver", SimulatedResolver),
        (asyncpg, "create_pool", lambda *args, **also: staged.server().create_pool(*args, **also)),
        (asyncpg, "connect", lambda *args, **also: staged.server().connect(*args, **also)),
    ):
        setattr(module, name, simulated)
    return staged.run()
