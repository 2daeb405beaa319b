"""Plays a scenario: starts the programs, takes the steps, ends all faults, checks the result."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import inf
from typing import Any

import asyncpg
from tenacity import stop_after_attempt

import pushkit.delivery.attempt
import pushkit.delivery.signatures
import pushkit.keys.jwks
import pushkit.net.guard
import pushkit.net.jwks_client
import pushkit.outbox.clients
import pushkit.outbox.schema
import pushkit.queue.runner
import pushkit.scheduling.event_loop
import pushkit.signing.http_message_signatures
import pushkit.signing.jose
import pushkit.signing.notification_jwt
import pushkit.signing.standard_webhooks
import receiver.admin
import receiver.callbacks.dispatcher
import receiver.mailbox.service
from pushkit import RetryPolicy, SenderOptions, wait_schedule
from pushkit.bounded_json import JsonObject
from pushkit.errors import StorageError
from pushkit.keys import primitives
from pushkit.keys.jwk import SigningKey, public_jwk
from pushkit.keys.jwks import parse_jwks
from pushkit.secrets.sealing import SecretKey, SecretKeys, is_sealed
from pushkit.secrets.vault import SecretsAdmin
from pushkit.storage.database import Database
from pushkit.storage.migrations import Migration
from pushkit.storage.postgres import PostgresDatabase
from pushkit.storage.script import to_micros
from receiver import Limits, Notification
from tests.verification.simulation import cheap
from tests.verification.simulation.attacks import Attacker
from tests.verification.simulation.bounds import check_bounds
from tests.verification.simulation.clients import Clients, Keys, signing_of
from tests.verification.simulation.coverage import FAULTS
from tests.verification.simulation.disk import Disk, DiskDatabase, QueueRow
from tests.verification.simulation.fairness import SELDOM
from tests.verification.simulation.faults import Faults
from tests.verification.simulation.loop import PROCESS, Process
from tests.verification.simulation.losses import Losses
from tests.verification.simulation.mailboxes import Handling
from tests.verification.simulation.network import ConnectionFaults, SimulatedResolver
from tests.verification.simulation.pacing import Pacing
from tests.verification.simulation.postgres import PostgresServer
from tests.verification.simulation.programs import (
    CALLBACK_TIMEOUT,
    ClientMistakeError,
    ReaderUnit,
    ReceivingUnit,
    SendingUnit,
)
from tests.verification.simulation.promises import Promises
from tests.verification.simulation.scenario import Scenario
from tests.verification.simulation.secrecy import CANARY
from tests.verification.simulation.surroundings import Surroundings
from tests.verification.simulation.triggers import Triggers
from tests.verification.simulation.webhook import Arrival, Webhook, behaviour_of
from tests.verification.simulation.world import EPOCH, Machine, Trouble, Unit, World

__all__ = ["Outcome", "play"]

_TIMEOUT = timedelta(seconds=10)
_OPTIONS = SenderOptions(
    retry=RetryPolicy(wait=wait_schedule((1, 5, 20, 40)), stop=stop_after_attempt(8)),
    timeout=_TIMEOUT,
    poll_interval=timedelta(minutes=2),
    rate_per_origin=None,
    max_body_bytes=4096,
    signing=signing_of,
    keep_answers="all",
)
# Low limits, so that few deliveries reach them.
_CROWDED = replace(
    _OPTIONS,
    concurrency=16,
    concurrency_per_host=8,
    poll_interval=timedelta(seconds=1),
    max_backlog_per_subscription=8,
    max_backlog_per_owner=40,
    max_subscriptions_per_owner=12,
)
_SLOW = replace(
    _OPTIONS,
    retry=RetryPolicy(wait=wait_schedule((60, 1800, 7200, 28800)), stop=stop_after_attempt(8)),
    poll_interval=timedelta(hours=2),
)
# How often there is housekeeping, by whether the scenario is slow.
_HOUSEKEEPING = {False: timedelta(minutes=10), True: timedelta(hours=2)}
# Refused addresses are retried after minutes: hours would be simulated for nothing.
_AFTER_REFUSALS = RetryPolicy(wait=wait_schedule((90, 180)), stop=stop_after_attempt(3))
_INBOX_QUOTA = 20  # unfinished notifications of one sender in a crowded scenario
_COMMAND_TIMEOUT = 30.0  # seconds: of a statement on PostgreSQL
_AFTER_DAYS = RetryPolicy(wait=wait_schedule((3600, 7200)), stop=stop_after_attempt(3))
_DRAIN = 4 * 3600.0  # seconds that deliveries may take after the last fault
_PATIENCE = 5.0  # seconds
_CUT_OFF = CALLBACK_TIMEOUT.total_seconds() - 1  # seconds after which a callback is cut off
_LOOKS_FOR_WORK = "WHERE q.due_at IS NOT NULL AND q.lease_worker IS NULL"
_LEASED_BY = (
    "SELECT q.lease_worker FROM pushkit_subscriptions q JOIN pushkit_deliveries d"
    " ON d.subscription_id = q.id WHERE d.id = ?"
)
_AGENTS, _HOOKS, _KEYS = "198.51.100", "93.184.216", "93.184.217"
_RECEIVERS, _TWINS, _READERS = "93.184.218", "93.184.219", "198.51.101"
_CALLS = (0.0, 0.01, 1.0, 5.0, 80.0)  # seconds that a callback takes
_FETCHING = ("one_by_one", "several", "one_by_one", "stream")  # how clients do, in turn
_LOOK_SECONDS = 5.0  # between looks into a mailbox for what another process kept

# Forbidden addresses of a name, and whether the host's own addresses are there, too.
_FORBIDDEN = {
    "private": (True, "10.0.0.7"),
    "alone": (False, "192.168.1.1"),
    "link-local": (False, "169.254.169.254"),
    "loopback": (True, "127.0.0.1"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a scenario."""

    seed: int
    violations: tuple[str, ...]  # the broken promises
    trace: tuple[str, ...]  # what happened, a line each
    simulated: float  # seconds of virtual time
    moves: dict[str, int]  # how often each change of state happened (see `coverage.key_of`)


class _Play:
    """One scenario while it is played. A step of kind `x` is the method `do_x`."""

    def __init__(self, scenario: Scenario, key: SigningKey) -> None:
        self.scenario = scenario
        self.world = World(scenario.seed)
        self._rolling: dict[Disk | PostgresServer, bool] = {}
        self.faults = Faults(self.world, is_postgres=scenario.postgres)
        self.keys = Keys(key)
        self.outbox = self._new_disk()
        self.machine = Machine(self.world, f"{_AGENTS}.1", disk=self.outbox)
        options = _CROWDED if scenario.crowded else _SLOW if scenario.slow else _OPTIONS
        if scenario.coalesces:
            options = replace(options, coalesce=True, max_backlog_per_subscription=3)
        if scenario.most is not None:
            options = replace(
                options,
                max_subscriptions_per_owner=scenario.most,
                max_backlog_per_owner=scenario.most * _CROWDED.max_backlog_per_subscription,
            )
        if scenario.recovered is not None:
            options = replace(options, max_recovered_per_owner=scenario.recovered)
        self.senders = {
            name: SendingUnit(
                self.world,
                name,
                self.machine,
                keys=self.keys,
                options=options,
                delivers=delivers,
                keys_at=keys_at,
                on_published=self._published,
                crowded=scenario.crowded,
                has_api=scenario.recovered is not None,
                keys_for=36_000 if scenario.slow else 60 if scenario.seed % 4 == 0 else 600,
            )
            for name, delivers, keys_at in self._roles()
        }
        self.webhooks: dict[str, Webhook] = {}
        self._sealing = [0]  # the numbers of the keys in use; the newest first
        if scenario.sealed:
            for unit in self.senders.values():
                unit.secrets = SecretKeys([_sealing_key(0)])
        self.receivers: dict[str, ReceivingUnit] = {}
        self.twins: dict[str, ReceivingUnit] = {}
        self.hosts: dict[str, Machine] = {}
        self.addresses: dict[str, list[str]] = {}
        self.faulty_hosts: set[str] = set()  # hosts that ever had a fault
        self._callback_behaviours: dict[str, str] = {}
        self.world.network.on_violation = self.world.violated
        for number in range(scenario.webhooks):
            self._add_webhook(f"hook{number}", Machine(self.world, f"{_HOOKS}.{number + 1}"))
        for number in range(scenario.receivers):
            machine = Machine(self.world, f"{_RECEIVERS}.{number + 1}", disk=self._new_disk())
            self._add_receiver(number, machine)
        self.readers = {
            name: ReaderUnit(
                self.world,
                name,
                Machine(self.world, f"{_READERS}.{number + 1}"),
                host=f"recv{number // scenario.readers}",
                fetches=_FETCHING[number % len(_FETCHING)],
                handle=self._handled,
                answered=self._settled,
            )
            for number in range(scenario.receivers * scenario.readers)
            for name in (f"reader{number}",)
        }
        self._handlings: list[Handling] = []  # of all clients of mailboxes
        self._fetching_behaviours: dict[str, str] = {}
        self.units: dict[str, Unit] = {
            **self.senders,
            **self.receivers,
            **self.twins,
            **self.readers,
        }
        inboxes = {name: _disk_of(unit.machine) for name, unit in self.receivers.items()}
        self.promises = Promises(
            self.world,
            self.outbox,
            inboxes,
            timeout=_TIMEOUT.total_seconds(),
            worker_of=self._worker_of,
            faulty_hosts=self.faulty_hosts,
            coalesces=scenario.coalesces,
            served_at=self._served_at if scenario.readers else None,
        )
        self.clients = Clients(self.world, self.senders, self.keys, self.outbox, self.promises)
        self.attacker = Attacker(
            self.world,
            self._signing_key,
            self.promises.inboxes,
            self.promises.instructions,
            self.receivers,
            # Processes that share an inbox each count by themselves, once a second.
            quota=_INBOX_QUOTA * (2 if scenario.twins else 1),
        )
        self.losses = Losses(
            self.world,
            self.units,
            self.receivers,
            self.outbox,
            self.promises,
            most=scenario.recovered,
            hurries=lambda: self.pacing.step("recover"),
        )
        if any(step.kind in ("replay", "alter", "reuse") for step in scenario.steps):
            for name in self.receivers:
                for address in self.addresses[name]:
                    tap = functools.partial(self.attacker.overhear, name)
                    self.world.network.taps[address].append(tap)
        self._actions: dict[str, Callable[..., None]] = {
            name.removeprefix("do_"): getattr(each, name)
            for each in (self, self.clients, self.attacker, self.losses)
            for name in dir(each)
            if name.startswith("do_")
        }
        self.triggers = Triggers(self.world, self.units, self._ask_about)
        for each in (*self.receivers.values(), *self.twins.values()):
            tap = functools.partial(self._comes_in, each)
            self.world.network.taps[each.machine.address].append(tap)
        self.pacing = Pacing(self.world, self.outbox, inboxes, slots=options.concurrency)
        self._is_healed = False
        self._served_from = 0.0  # when the last server that was away was back
        # The new processes of databases to which old programs may no longer write.
        self._strict: dict[Disk, set[Process]] = {}

    def _roles(self) -> list[tuple[str, bool, str | None]]:
        scenario = self.scenario
        delivering = 0 if scenario.workers else max(scenario.agents - scenario.mute, 1)
        return [
            (f"agent{n}", n < delivering, f"{_KEYS}.{n + 1}") for n in range(scenario.agents)
        ] + [(f"worker{n}", True, None) for n in range(scenario.workers)]

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
        self.pacing.arrived(arrival)
        self.promises.arrived(arrival)
        if self.triggers.moment("request", arrival.process, arrival.delivery_id):
            self.webhooks[_host_of(f"https://{arrival.host}")].next_behaviours.insert(
                0, behaviour_of("slow")
            )

    def _served_at(self, unit: str) -> Sequence[float]:
        found = self.receivers.get(unit) or self.twins.get(unit)
        return () if found is None else found.served_at

    def _comes_in(self, unit: Unit, port: int, piece: bytes) -> None:
        if piece.startswith(b"POST"):
            self.triggers.moment("intake", unit.process, f"{unit.name} {port}")

    def _add_receiver(self, number: int, machine: Machine) -> None:
        name, twin = f"recv{number}", f"twin{number}"
        self.hosts[name] = machine
        steps = self.scenario.steps
        hows = {step.args[5] for step in steps if step.kind == "subscribe" and len(step.args) > 5}
        asked = {(step.kind, step.args) for step in steps if step.kind == "recover"}
        hows |= {"renewed" for step in steps if step.kind == "renew"}
        new = functools.partial(
            ReceivingUnit, self.world, host=name, callback=self._called_back, hows=hows
        )
        heed = self._heed if ("recover", (name, "itself")) in asked else None
        new = functools.partial(new, has_mailbox=self.scenario.readers > 0, heed=heed)
        limits = Limits(max_backlog_per_sender=_INBOX_QUOTA) if self.scenario.crowded else Limits()
        self.receivers[name] = new(name=name, machine=machine, limits=limits)
        self.addresses[name] = [machine.address]
        if self.scenario.twins:
            other = Machine(self.world, f"{_TWINS}.{number + 1}", disk=machine.disk)
            self.twins[twin] = new(name=twin, machine=other, limits=limits)
            self.addresses[name].append(other.address)
        self.world.network.names[f"{name}.example.com"] = self.addresses[name]

    def _new_disk(self) -> Disk | PostgresServer:
        world = self.world
        if self.scenario.postgres:
            begin = to_micros(EPOCH)
            server = PostgresServer(world.loop, lambda: begin + int(world.loop.time() * 1_000_000))
            server.fault = self.faults.before
            server.on_move = self._moved
            server.on_queue = functools.partial(self._queue_changed, server)
            server.dawdles = True
            server.on_wait = self._waits
            server.on_deadlock = lambda: world.violated("two transactions waited for each other")
            return server
        disk = Disk(world.loop)
        disk.fault = self.faults.before
        disk.on_move = self._moved
        disk.on_queue = functools.partial(self._queue_changed, disk)
        return disk

    def _moved(self, table: str, before: str | None, after: str | None, error: str | None) -> None:
        self.promises.moved(table, before, after, error)
        self.pacing.moved(table, before, after)
        for disk, new in self._strict.items():
            writer = disk.running
            if disk.is_upgraded and writer is not None and writer not in new:
                self.world.violated(f"{writer.name} writes beside an upgrade that may not roll")

    def _queue_changed(
        self,
        disk: Disk | PostgresServer,
        before: QueueRow | None,
        after: QueueRow | None,
        process: Process | None,
    ) -> None:
        inbox = None if disk is self.outbox else disk
        self.promises.queue_changed(before, after, process, inbox=inbox)

    def _waits(self, sql: str) -> None:
        if sql.startswith("SELECT q.id") and _LOOKS_FOR_WORK in sql:
            self.world.violated(f"a claim waits for a row: {sql[:60]}")

    def _published(self, document: bytes) -> None:
        """Check that a published key set has no revoked key."""
        was_set = self.world.had_trouble("clock", 0.0, self.world.loop.time())
        for key, _ in self.keys.revoked:
            if key.kid.encode() in document and not was_set:
                self.world.violated(f"a revoked key is published: {key.kid}")

    def _signing_key(self) -> SigningKey:
        return self.keys.current.signing_key(EPOCH + timedelta(seconds=self.world.loop.time()))

    def _worker_of(self, process: Process) -> str | None:
        for unit in self.senders.values():
            if unit.process is process and unit.sender is not None:
                return unit.sender.worker.name
        for each in (*self.receivers.values(), *self.twins.values()):
            if each.process is process:
                return each.worker
        return None

    # --- the course -----------------------------------------------------------------------------

    def run(self) -> Outcome:
        loop = self.world.loop
        try:
            with self.world.secrets:
                loop.run_until_complete(self._run_steps())
        except Exception as exc:  # noqa: BLE001  # every error is reported
            self.world.violated(f"the simulation failed: {type(exc).__name__}: {exc}")
        for exception in loop.unretrieved_exceptions():
            self.world.violated(f"an exception of a task was not retrieved: {exception!r}")
        for error in loop.errors:
            self.world.violated(f"unhandled: {error.get('message')} {error.get('exception')!r}")
        for disk in dict.fromkeys(unit.machine.disk for unit in self.units.values()):
            if disk is not None:
                disk.recycle()
        return Outcome(
            seed=self.scenario.seed,
            violations=tuple(self.world.violations),
            trace=tuple(self.world.trace),
            simulated=loop.time(),
            moves=dict(self.promises.moves),
        )

    async def _run_steps(self) -> None:
        agents = range(self.scenario.agents)
        self.world.network.names["agent.example.com"] = [f"{_KEYS}.{n + 1}" for n in agents]
        for webhook in self.webhooks.values():
            webhook.open()
        for unit in self.units.values():
            unit.start()
            if self.scenario.crowded and unit is self.senders["agent0"]:
                # Receivers then find its keys at once: refusals without keys would look unfair.
                while self.senders["agent0"].sender is None:
                    await asyncio.sleep(0.01)
        for step in self.scenario.steps:
            await self._until(step.at)
            self.world.note(f"step {step}")
            self.pacing.step(step.kind)
            if step.kind in FAULTS:
                self.world.note_fault(step.kind)
            self._actions[step.kind](*step.args)
        await self._until(self.scenario.ends)
        await self._heal()
        ends = self.world.loop.time() + _DRAIN * (24 if self.scenario.slow else 1)
        await self._until(self._served_from)
        await asyncio.sleep(_PATIENCE)  # for the agents' last notify calls
        while self.world.loop.time() < ends and not self._is_over():
            self._resume()
            await asyncio.sleep(300 if self.scenario.slow else 5)
        await asyncio.sleep(1)
        await self._check_slots()
        self.promises.check_end(_host_of)
        self.losses.check_end()
        self.pacing.check_end(self.promises.deaths)
        if self.scenario.sealed:
            self._check_sealed()
        check_bounds(
            self.world,
            self.outbox,
            self.promises.inboxes,
            claims=self.promises.claims,
            hosts=len(self.hosts),
            callbacks=2 if self.scenario.recovered is None and not self.readers else 3,
        )
        if self.scenario.crowded:
            self.promises.check_fairness()

    def _is_over(self) -> bool:
        return self.promises.is_drained() and self.losses.is_done()

    async def _heed(self, host: str, notification: Notification) -> None:
        await self.losses.heed(host, notification)

    async def _check_slots(self) -> None:
        """Check that every slot is free once everything is delivered."""
        units: list[SendingUnit | ReceivingUnit] = [*self.senders.values()]
        units += [*self.receivers.values(), *self.twins.values()]
        for unit in units:
            # Long enough for a claim in progress, and for a statement that a partition swallowed,
            # and the one after it, to time out.
            looks = int(2 * (_COMMAND_TIMEOUT + _PATIENCE) / 0.13)
            while unit.slots_taken and (looks := looks - 1):
                await asyncio.sleep(0.13)
            now = self.world.loop.time()
            # A worker that an upgrade left behind keeps trying to settle for a time.
            is_left_behind = self.world.had_trouble("upgrade", now, now)
            if (taken := unit.slots_taken) and not is_left_behind:
                self.world.violated(f"{unit.name}: {taken} slots of its worker are lost")

    async def _until(self, moment: float) -> None:
        await asyncio.sleep(max(moment - self.world.loop.time(), 0))

    async def _heal(self) -> None:
        """End all faults, and start the programs that are down."""
        self.world.note("healed")
        self._is_healed = True
        self.faults.heal()
        self.world.network.cut_off.clear()
        self.triggers.clear()
        for unit in self.units.values():
            if unit.process is not None:
                unit.process.spare()
                if unit.process.frozen is not None:
                    self.world.loop.thaw(unit.process)
        for webhook in self.webhooks.values():
            webhook.behaviour = behaviour_of("ok")
            webhook.next_behaviours.clear()
        for host, receiving in self.receivers.items():
            if receiving.trust != "all":
                self.do_reload(host, "all")
        for name, machine in self.hosts.items():
            self._set_faults(name, "none", 0)
            self.world.network.link(machine.address).cut = False
            self.do_names(name, "back")
        for unit in self.units.values():
            unit.start()
        if self.machine.offset:
            self.do_clock(-self.machine.offset)
        while self.senders["agent0"].sender is None and self.senders["agent0"].failures < 100:
            await asyncio.sleep(1)

    def _resume(self) -> None:
        """Resume what is paused; repeated, for an outage may refuse it."""
        for row in self.outbox.select("SELECT * FROM pushkit_subscriptions WHERE paused = 1"):
            self.clients.do_resume(0, row["task_id"], row["owner"])

    # --- receivers ------------------------------------------------------------------------------

    async def _called_back(self, host: str, callback: str, notification: Notification) -> None:
        """Run as the client's callback, and behave as `_behave` says."""
        process = PROCESS.get()
        assert process is not None
        self.pacing.calls_back(host, notification.id)
        call = self.promises.begin_call(host, callback, notification, process)
        self.triggers.moment("callback", process, f"{host} {callback} {notification.delivery_id}")
        self.world.note(f"called back {callback} {notification.delivery_id}")
        behaviour = "quick" if callback == "audit" else self._callback_behaviours.get(host, "mixed")
        if self.scenario.crowded:  # the flood of the other sender takes as long as it may
            behaviour = "hanging" if notification.sender == "other" else "quick"
        try:
            await self._behave("quick" if self._is_healed else behaviour)
        except asyncio.CancelledError:  # by its time-out, or by the end of its process
            call.failed = self.world.loop.time() - call.begun > _CUT_OFF
            raise
        except RuntimeError:
            call.failed = True
            raise
        call.ended = self.world.loop.time()

    async def _behave(self, behaviour: str) -> None:
        chance = self.world.loop.random
        if behaviour == "quick":
            await asyncio.sleep(0.01)
            return
        await asyncio.sleep(chance.uniform(1, 80) if behaviour == "slow" else chance.choice(_CALLS))
        drawn = chance.random()
        if behaviour == "hanging" or drawn < 0.02:
            await asyncio.Event().wait()
        if drawn < (0.6 if behaviour == "failing" else 0.2):
            raise RuntimeError("the client's own mistake")

    async def _handled(self, host: str, notification: Notification) -> bool:
        """Run as a client of a mailbox that has fetched a notification."""
        process, mailboxes = PROCESS.get(), self.promises.mailboxes
        assert process is not None
        assert mailboxes is not None
        self.world.note(f"handles {notification.delivery_id}")
        handling = mailboxes.begin(host, notification, process)
        self._handlings.append(handling)
        self.triggers.moment("mailbox", process, f"{host} mailbox {notification.delivery_id}")
        chance, behaviour = self.world.loop.random, self._fetching_behaviours.get(host, "mixed")
        quick = self._is_healed or behaviour == "quick"
        drawn, takes = chance.random(), chance.choice(_CALLS)
        if behaviour in ("slow", "hanging"):  # some or all longer than a lease
            takes = chance.uniform(1, 40) if behaviour == "slow" else 80.0
        try:
            await asyncio.sleep(0.01 if quick else takes)
        except asyncio.CancelledError:
            handling.failed = True
            raise
        if drawn < (0.6 if behaviour == "failing" else 0.1) and not quick:
            handling.failed = True
            raise ClientMistakeError
        handling.ended = self.world.loop.time()
        self.triggers.moment("settling", process, f"{host} mailbox {notification.delivery_id}")
        return quick or drawn < 0.9  # else it fetches no more, and begins anew

    def _settled(
        self, host: str, verb: str, notification: Notification, status: int, asked_at: float
    ) -> None:
        mailboxes = self.promises.mailboxes
        assert mailboxes is not None
        for handling in self._handlings:
            if handling.notification is notification:  # else it is renewed before it is handled
                mailboxes.settled(host, handling, verb, status, asked_at)

    def do_fetching(self, host: str, behaviour: str) -> None:
        self._fetching_behaviours[host] = behaviour

    def do_callbacks(self, host: str, behaviour: str) -> None:
        self._callback_behaviours[host] = behaviour

    def do_reload(self, host: str, trust: str) -> None:
        self.world.trouble("trust", whom=host)
        self.receivers[host].reload(trust)
        if twin := self.twins.get(host.replace("recv", "twin")):
            twin.reload(trust)

    def _ask_about(self, kind: str, delivery_id: str) -> None:
        """Let an owner or an operator do something while a delivery is being attempted."""
        self.pacing.step(kind)
        if kind == "blip":
            self.do_disk(self.triggers.blip(), 1.0)
            return
        if kind == "lose":
            self._lose_unsettled(*delivery_id.split())
            return
        found = self.outbox.select(
            "SELECT task_id, owner FROM pushkit_deliveries WHERE id = ?", delivery_id
        )
        of_owner = [(row["task_id"], row["owner"]) for row in found]
        for whom in of_owner if kind in ("pause", "unsubscribe") else [()]:
            self._actions[kind](0, *whom)

    def _lose_unsettled(self, host: str, _callback: str, delivery_id: str) -> None:
        """Let an inbox be lost while it calls back, and whoever delivered that stand still.

        Its client notices at once.
        """
        rows = self.outbox.select(_LEASED_BY, delivery_id)
        for unit in self.senders.values():
            if rows and unit.sender and unit.sender.worker.name == rows[0]["lease_worker"]:
                unit.freeze(self.world.loop.random.choice((0.0, 1.0, 20.0)))
        self.losses.do_lose(host, 0.1)
        self.losses.do_recover(host, "client")

    # --- faults ---------------------------------------------------------------------------------

    def do_behaviour(self, host: str, behaviour: str) -> None:
        self.webhooks[host].behaviour = behaviour_of(behaviour)
        if behaviour != "ok":
            self.faulty_hosts.add(host)

    def do_next_answer(self, host: str, behaviour: str) -> None:
        """Let only the next answer follow another behaviour."""
        self.webhooks[host].next_behaviours.append(behaviour_of(behaviour))
        self.faulty_hosts.add(host)

    def do_network(self, host: str, fault: str, number: int, lasts: float) -> None:
        self.faulty_hosts.add(host)
        self.world.trouble("network", whom=host, lasts=lasts)
        self._set_faults(host, fault, number)
        self.world.loop.call_later(lasts, self._set_faults, host, "none", 0)

    def _set_faults(self, host: str, fault: str, number: int) -> None:
        network = self.world.network
        network.link(self.hosts[host].address).faults = functools.partial(
            _connection_faults, network.random, fault, number
        )

    def do_cut(self, host: str, lasts: float) -> None:
        if host in self.readers:
            address, cut_off = self.readers[host].machine.address, self.world.network.cut_off
            cut_off.add(address)
            self.world.trouble("network", whom=host, lasts=lasts)
            self.world.loop.call_later(lasts, cut_off.discard, address)
            return
        link = self.world.network.link(self.hosts[host].address)
        link.cut = True
        self.faulty_hosts.add(host)
        self.world.trouble("network", whom=host, lasts=lasts)
        self.world.loop.call_later(lasts, setattr, link, "cut", False)

    def do_names(self, host: str, how: str) -> None:
        self.faulty_hosts.add(host)
        for trouble in self.world.troubles:
            if trouble.kind == "names" and trouble.whom == host:
                trouble.end = min(trouble.end, self.world.loop.time())
        if how != "back":
            self.world.trouble("names", whom=host, lasts=inf)
        name, names = f"{host}.example.com", self.world.network.names
        own = self.addresses[host]
        if how == "none":
            names.pop(name, None)
        elif how == "rebinding":  # at every second lookup
            answers = itertools.cycle((own, ["10.0.0.7"]))
            names[name] = lambda: next(answers)
        elif how in _FORBIDDEN:
            is_added, address = _FORBIDDEN[how]
            names[name] = [*own, address] if is_added else [address]
        else:
            names[name] = own

    def do_crash(self, unit: str, down_for: float) -> None:
        self.units[unit].crash(down_for=down_for)

    def do_freeze(self, unit: str, seconds: float) -> None:
        self.units[unit].freeze(seconds)

    def do_trigger(self, what: str, where: str, number: int, seconds: float) -> None:
        self.triggers.add(what, where, number, seconds)

    def do_stop(self, unit: str, down_for: float) -> None:
        self.units[unit].stop(down_for)

    def do_statement(self, unit: str, number: int, down_for: float) -> None:
        """Let a process end at its n-th statement from now, before it or after its commit."""
        process = self.units[unit].process
        if process is not None:
            end = functools.partial(self.units[unit].crash, down_for=down_for)
            self.faults.end_at(process, number, end)

    def do_doze(self, unit: str, number: int, seconds: float) -> None:
        """Let a process freeze in the middle of its n-th statement from now."""
        process = self.units[unit].process
        if process is not None:
            self.faults.doze_at(
                process, number, functools.partial(self._freeze, self.units[unit], process, seconds)
            )

    def _freeze(self, unit: Unit, process: Process, seconds: float, statement: str) -> None:
        if unit.process is process:
            unit.freeze(seconds, takes_lock=statement == "BEGIN IMMEDIATE")

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
        """Let a machine lose its power: all its processes end, and peers get no reset."""
        machine = self.units[unit].machine
        disk = machine.disk if isinstance(machine.disk, Disk) else None
        for each in self.units.values():
            # The processes that share a file are on one machine, though they have two addresses.
            if each.machine is machine or (disk is not None and each.machine.disk is disk):
                each.crash(down_for=down_for, power=True)
        if disk is not None:
            disk.lose_power()

    def do_upgrade(self, unit: str, apart: float, may_roll: bool) -> None:
        """Replace the programs that share a database by a later version, one after another.

        It has one more migration. An old program may not start again, and one that is down starts
        as the new version. Whether old programs may still write depends on the migration.
        """
        disk = _disk_of(self.units[unit].machine)
        may_roll = self._rolling.setdefault(disk, may_roll)  # one later version of each database
        others = [name for name, each in self.units.items() if each.machine.disk is disk]
        # Old programs may be unable to settle what they had begun.
        left_behind = 0.0 if may_roll else len(others) * apart + _COMMAND_TIMEOUT
        trouble = self.world.trouble("rolling" if may_roll else "upgrade", lasts=left_behind)
        for number, name in enumerate(sorted(others, key=lambda name: name != unit)):
            self.world.loop.call_later(number * apart, self._upgrade, self.units[name], trouble)

    def _upgrade(self, unit: Unit, trouble: Trouble) -> None:
        self.world.note(f"{unit.name} is a later version from its next start on")
        unit.is_new = True
        if trouble.kind == "upgrade" and unit.process is not None:
            self._await_end(unit.process, trouble)
        unit.stop(0.5)

    def _await_end(self, old: Process, trouble: Trouble) -> None:
        """Extend the trouble of an upgrade while an old program runs: it may be frozen."""
        if old.alive:
            trouble.end = max(trouble.end, self.world.loop.time() + _COMMAND_TIMEOUT)
            self.world.loop.call_later(1.0, self._await_end, old, trouble)

    def do_reseal(self, apart: float) -> None:
        """Change the secret key, as operators do: first all programs can open with the new one."""
        self._sealing.insert(0, new := max(self._sealing) + 1)
        one, *others = map(_sealing_key, self._sealing)
        self._deploy(SecretKeys([*others, one]))
        self.world.loop.call_later(apart, self._deploy, both := SecretKeys([one, *others]))
        self.world.loop.call_later(2 * apart, self._seal_again, both, new, apart)

    def _deploy(self, secrets: SecretKeys) -> None:
        for unit in self.senders.values():
            unit.secrets = secrets
            unit.stop(0.5)

    def _seal_again(self, secrets: SecretKeys, new: int, apart: float) -> None:
        """Reseal all secrets with the new key, and remove the old keys."""
        for unit in self.senders.values():
            if unit.secrets is not secrets:
                return  # the next change of keys has begun
        if all(unit.running_secrets is secrets for unit in self.senders.values()):
            self.world.spawn(self._seal(secrets, new), self.senders["agent0"].process)
        else:
            self.world.loop.call_later(apart, self._seal_again, secrets, new, apart)

    async def _seal(self, secrets: SecretKeys, new: int) -> None:
        sender = self.senders["agent0"].sender
        if sender is None:
            return
        try:
            rotated = await SecretsAdmin(sender._database).rotate(secrets)
        except StorageError as exc:
            self.world.note(f"not sealed again: {exc.code}")
            return
        self.world.note(f"sealed again: {rotated.secrets}")
        if rotated.unopened:
            self.world.violated(f"no key opens {rotated.unopened}")
        elif not rotated.held and all(each.secrets is secrets for each in self.senders.values()):
            self._sealing = [new]
            self._deploy(SecretKeys([_sealing_key(new)]))

    def _check_sealed(self) -> None:
        """Check that no table holds a secret in plaintext."""
        for row in self.outbox.select("SELECT id, token, credentials FROM pushkit_subscriptions"):
            if CANARY in f"{row['token']} {row['credentials']}":
                self.world.violated(f"a secret is stored in plaintext: {row['id']}")
        for row in self.outbox.select("SELECT delivery_id, answer FROM pushkit_attempts"):
            if row["answer"] is not None and not is_sealed(bytes(row["answer"])):
                self.world.violated(f"an answer is stored in plaintext: {row['delivery_id']}")

    def do_disk(self, error: str, lasts: float) -> None:
        # A short error is retried, and excuses no repetition.
        self.world.trouble("disk" if lasts > _PATIENCE else "blip", lasts=lasts)
        self.faults.fail(error, lasts=lasts)

    def do_partition(self, unit: str, lasts: float, resets: bool) -> None:
        """Let nothing pass between a unit and its PostgreSQL server."""
        server = _disk_of(self.units[unit].machine)
        if isinstance(server, PostgresServer):
            # A statement that hangs ends some time after the partition.
            self.world.trouble("disk", lasts=lasts + _COMMAND_TIMEOUT)
            server.cut(unit)
            self._served_from = max(self._served_from, self.world.loop.time() + lasts)
            self.world.loop.call_later(lasts, lambda: server.mend(unit, resets=resets))

    def do_server(self, unit: str, how: str, lasts: float) -> None:
        """Let a unit's PostgreSQL server restart, refuse connections, or lose its power."""
        server = _disk_of(self.units[unit].machine)
        if not isinstance(server, PostgresServer):
            return
        self.world.trouble("disk", lasts=lasts + _COMMAND_TIMEOUT)
        self._served_from = max(self._served_from, self.world.loop.time() + lasts)
        if how == "power":
            server.lose_power()
            self.world.loop.call_later(lasts, lambda: server.mend("*", resets=True))
            return
        server.restart()
        if how == "away":
            server.is_away = True
            self.world.loop.call_later(lasts, setattr, server, "is_away", False)

    def do_clock(self, seconds: float) -> None:
        self.world.trouble("clock")
        self.machine.offset += seconds

    # --- called by the code under test ----------------------------------------------------------

    def disk_of_process(self) -> tuple[Process, Disk | PostgresServer]:
        process = PROCESS.get()
        assert process is not None
        return process, _disk_of(self.units[process.name.partition(".")[0]].machine)

    def open_location(
        self, _location: object, *, component: str, migrations: Any, clock: Callable[[], datetime]
    ) -> Database:
        process, disk = self.disk_of_process()
        # In one of eight worlds the programs create their tables; in the others they exist.
        behind = self.scenario.behind
        if behind or self.scenario.seed % 8:
            disk.begin_with(component, migrations[: len(migrations) - behind])
        if self.units[process.name.partition(".")[0]].is_new:
            migrations = (*migrations, _next_migration(component, migrations, self._rolling[disk]))
            if not self._rolling[disk] and isinstance(disk, Disk):
                self._strict.setdefault(disk, set()).add(process)
        if isinstance(disk, PostgresServer):
            dsn = f"postgresql://pushkit:{CANARY}@database.example.com/{process.name}"
            return PostgresDatabase(dsn, component=component, migrations=migrations)
        return DiskDatabase(disk, process, component=component, migrations=migrations, clock=clock)

    def server(self) -> PostgresServer:
        _, disk = self.disk_of_process()
        assert isinstance(disk, PostgresServer)
        return disk


def _connection_faults(chance: Any, fault: str, number: int) -> ConnectionFaults:
    latency = 0.0005 + chance.random() * 0.004
    if fault == "none" or chance.random() < 0.3:
        return ConnectionFaults(latency=latency)
    return ConnectionFaults(
        latency=latency,
        refused=fault == "refused",
        silent=fault == "silent",
        reset_after=number if fault == "reset" else None,
        reset_answer_after=number % 40 if fault == "reset_answer" else None,
        stall_after=number % 40 if fault == "stall" else None,
        drip=0.3 if fault == "drip" else None,
        bad_certificate=fault == "certificate",
    )


def _next_migration(component: str, migrations: Sequence[Migration], may_roll: bool) -> Migration:
    """Return the migration of a later version."""
    table = {"outbox": "pushkit_deliveries", "inbox": "pushkit_inbox"}[component]
    statements = (
        f"ALTER TABLE {table} ADD COLUMN later TEXT",
        f"CREATE INDEX {table}_later ON {table} (later)",
    )
    return Migration(migrations[-1].version + 1, statements, may_roll=may_roll)


def _sealing_key(number: int) -> SecretKey:
    return SecretKey.of(bytes([number]) * 32)


def _disk_of(machine: Machine) -> Disk | PostgresServer:
    assert machine.disk is not None
    return machine.disk


def _host_of(origin: str) -> str:
    return origin.removeprefix("https://").partition(".")[0]


_SIGNING = (
    pushkit.signing.jose,
    pushkit.signing.standard_webhooks,
    pushkit.delivery.signatures,
)
_VERIFYING = (
    pushkit.signing.jose,
    pushkit.signing.standard_webhooks,
    pushkit.signing.http_message_signatures,
    pushkit.signing.notification_jwt,
)
_parse_jwks = functools.cache(parse_jwks)
_known_jwks: dict[str, JsonObject] = {}


def _public_jwk(key: SigningKey) -> JsonObject:
    """Return the JWK of a key, whose kid is its thumbprint."""
    if key.kid not in _known_jwks:
        _known_jwks[key.kid] = public_jwk(key)
    return _known_jwks[key.kid]


# Finished worlds are kept until the process ends: collecting them would run `finally` blocks.
_played: list[_Play] = []


def play(scenario: Scenario, surroundings: Surroundings, key: SigningKey) -> Outcome:
    """Play a scenario to its end, with the simulated parts patched into the code under test."""
    run, slow = _Play(scenario, key), scenario.slow
    signing = primitives if scenario.seed % 4 == 0 else cheap
    _played.append(run)
    surroundings.begin(scenario.seed, run.world.loop.time)
    for module, name, simulated in (
        (pushkit.outbox.schema, "open_location", run.open_location),
        (receiver.admin, "open_location", run.open_location),
        (
            receiver.callbacks.dispatcher,
            "POLL_INTERVAL",
            timedelta(hours=2) if slow else timedelta(minutes=2),
        ),
        (receiver.mailbox.service, "_LOOK_SECONDS", _LOOK_SECONDS),
        (pushkit.queue.runner, "_MIN_PAUSE", timedelta(seconds=60 if slow else SELDOM)),
        (pushkit.scheduling.event_loop, "HOUSEKEEPING_INTERVAL", _HOUSEKEEPING[slow]),
        (pushkit.delivery.attempt, "_AFTER_REFUSALS", _AFTER_DAYS if slow else _AFTER_REFUSALS),
        (pushkit.outbox.clients, "_MOST_AT_ONCE", 4),
        (pushkit.net.guard, "SystemResolver", SimulatedResolver),
        *((module, "sign_bytes", signing.sign_bytes) for module in _SIGNING),
        *((module, "signature_holds", signing.signature_holds) for module in _VERIFYING),
        # Cached: the same keys are published and read again and again.
        (pushkit.keys.jwks, "public_jwk", _public_jwk),
        (pushkit.net.jwks_client, "parse_jwks", _parse_jwks),
        (asyncpg, "create_pool", lambda *args, **also: run.server().create_pool(*args, **also)),
        (asyncpg, "connect", lambda *args, **also: run.server().connect(*args, **also)),
    ):
        assert hasattr(module, name), f"{module} has no {name}: what is simulated has moved"
        setattr(module, name, simulated)
    return run.run()
