"""The steps of owners, agents and operators: a step of kind `x` is `Clients.do_x`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partialmethod
from pathlib import PurePosixPath
from typing import Any

import asyncpg

from pushkit import (
    Artifact,
    ArtifactUpdate,
    Authentication,
    Filter,
    KeyRing,
    Message,
    MessageUpdate,
    PushConfig,
    PushSender,
    Role,
    Signing,
    StatusUpdate,
    Subscription,
    Task,
    TaskState,
    TaskStatus,
    TaskUpdate,
    TextPart,
    UpdateKind,
    WireVersion,
)
from pushkit.a2a import TaskSnapshot
from pushkit.errors import (
    CommitUncertainError,
    NoSigningKeyError,
    PushkitError,
    SchemaError,
    StorageError,
)
from pushkit.keys.jwk import Algorithm, SigningKey, generate_key
from tests.verification.simulation.disk import Disk
from tests.verification.simulation.ledger import Instructions, Notice
from tests.verification.simulation.postgres import PostgresServer
from tests.verification.simulation.programs import SCHEMES, SendingUnit
from tests.verification.simulation.promises import Promises
from tests.verification.simulation.secrecy import CANARY
from tests.verification.simulation.world import EPOCH, World

__all__ = ["Clients", "Keys", "signing_of"]

_FILTERS: Mapping[str, Filter] = {
    "states": Filter(kinds=frozenset({UpdateKind.STATUS_UPDATE, UpdateKind.TASK})),
    "end": Filter(states=frozenset({TaskState.COMPLETED, TaskState.FAILED})),
    "chunks": Filter(last_chunk_only=True),
    "gathered": Filter(min_interval=timedelta(seconds=1)),
    "slowly": Filter(min_interval=timedelta(minutes=5)),
}
_AUTHENTICATION = {
    "basic": Authentication(schemes=("Basic",), credentials=f"{CANARY}-basic"),
    "bearer": Authentication(schemes=("Bearer",), credentials=f"{CANARY}-bearer"),
    "apikey": Authentication(schemes=("ApiKey",), credentials=f"{CANARY}-apikey"),
}
_CHOSEN = 5  # the most deliveries that an operator names at once


class Keys:
    """The agents' keys, which a scenario may rotate and revoke.

    Attributes:
        current: The ring.
        revoked: The revoked keys, each with its time.
    """

    def __init__(self, key: SigningKey) -> None:
        self.current = KeyRing.create(EPOCH, key=key)
        self.revoked: list[tuple[SigningKey, float]] = []

    def ring(self) -> KeyRing:
        return self.current

    def add_rsa_once(self) -> None:
        """Add a key for the samples' profile, published long ago."""
        if all(entry.algorithm is not Algorithm.RS256 for entry in self.current.keys):
            self.current = self.current.add(EPOCH - timedelta(days=1), key=_rsa_key())

    def revoke(self, now: datetime, moment: float) -> None:
        """Revoke the key that signs now, if there is one."""
        with contextlib.suppress(NoSigningKeyError):
            key = self.current.signing_key(now)
            self.current = self.current.revoke(key.kid, now)
            self.revoked.append((key, moment))


@functools.cache
def _rsa_key() -> SigningKey:
    return generate_key(Algorithm.RS256)


def signing_of(subscription: Subscription) -> Signing:
    """Return how a subscription's notifications are signed, by the last part of its URL."""
    return SCHEMES.get(PurePosixPath(subscription.config.url).name, SCHEMES["jwt"])


@dataclass
class Clients:
    """Makes the calls of owners, agents and operators; a `PushkitError` is only noted."""

    _world: World
    _agents: Mapping[str, SendingUnit]  # the agents, by name
    _keys: Keys
    _outbox: Disk | PostgresServer  # the senders' database, from which operators choose deliveries
    _promises: Promises  # checks and records the results
    # The agents' task store: the markers of each task's changes, which are stored before they are
    # notified.
    _stored: dict[str, list[str]] = field(default_factory=dict)

    @property
    def _wishes(self) -> Instructions:
        return self._promises.instructions

    def _ask(self, number: int, call: Callable[[PushSender], Awaitable[object]]) -> None:
        """Make a call in an agent's process, if it is up."""
        unit = self._agents[f"agent{number}"]
        sender = unit.sender if unit.is_up else None
        if sender is None:
            return

        async def ask() -> None:
            try:
                await call(sender)
            except PushkitError as exc:
                self._world.note(f"refused: {exc.code}")
                self._world.secrets.check("an error", str(exc))
            except Exception as exc:  # noqa: BLE001  # every error is reported
                self._world.violated(f"an unexpected error was raised to an agent: {exc!r}")

        unit.do(ask)

    # --- subscriptions --------------------------------------------------------------------------

    def do_subscribe(
        self,
        agent: int,  # the number of the agent
        task: str,
        owner: str,
        host: str,  # the webhook's host
        version: str,  # the webhook's version of A2A
        how: str = "jwt",  # how notifications are signed: the path of the webhook
        # A filter; a scheme of authentication; `again` for a new token; `copy3` for one more config
        # of the same owner and task.
        more: str = "",
    ) -> None:
        """Subscribe an owner's webhook to a task, or change what it wants."""
        if how == "samples":
            self._keys.add_rsa_once()
        self._ask(agent, self._subscribing(task, owner, host, version, how, more))

    def _subscribing(
        self, task: str, owner: str, host: str, version: str, how: str = "jwt", more: str = ""
    ) -> Callable[[PushSender], Awaitable[None]]:
        config = PushConfig(
            id=f"{owner}-{task}" + (f"-{more}" if more.startswith("copy") else ""),
            url=f"https://{host}.example.com/{how}",
            token=f"{CANARY}-{owner}" + ("-again" if more == "again" else ""),
            authentication=_AUTHENTICATION.get(more),
        )
        wanted = _FILTERS.get(more, Filter())
        if wanted.min_interval is not None:
            self._wishes.gather(task, owner, wanted.min_interval.total_seconds())

        async def subscribe(sender: PushSender) -> None:
            with self._wishes.record(task, owner):
                await sender.subscribe(
                    task,
                    config,
                    version=WireVersion.parse(version),
                    owner=owner,
                    profile="a2a-samples" if how == "samples" else "standard",
                    filter=wanted,
                )

        return subscribe

    def do_join(self, agent: int, task: str, owner: str, host: str) -> None:
        """Subscribe an owner to a task that may have begun long ago, with a snapshot."""
        config = PushConfig(
            id=f"{owner}-{task}", url=f"https://{host}.example.com/jwt", token=f"{CANARY}-{owner}"
        )

        async def read(_owner: str) -> Task:
            await asyncio.sleep(0.001)
            stored = [*self._stored.get(task, ())]
            await asyncio.sleep(0.001)
            status = TaskStatus(state=TaskState.WORKING)
            return Task(id=task, context_id="context", status=status, metadata={"stored": stored})

        async def join(sender: PushSender) -> None:
            with self._wishes.record(task, owner):
                found = await sender.subscribe(
                    task, config, version="1.0", owner=owner, snapshot=read
                )
                self._promises.joined(found)

        self._ask(agent, join)

    def _of_owner(self, verb: str, agent: int, task: str, owner: str, **also: Any) -> None:
        self._ask(agent, self._changing(verb, task, owner, **also))

    def _changing(
        self, verb: str, task: str, owner: str, **also: Any
    ) -> Callable[[PushSender], Awaitable[None]]:
        async def change(sender: PushSender) -> None:
            with self._wishes.record(task, owner, verb) as found:
                found.append(await getattr(sender, verb)(task, owner=owner, **also))
                self._world.note(f"{verb} {task} {owner}: {found}")

        return change

    do_pause = partialmethod(_of_owner, "pause")
    do_resume = partialmethod(_of_owner, "resume")
    do_unsubscribe = partialmethod(_of_owner, "unsubscribe")
    do_disable = partialmethod(_of_owner, "disable")
    do_test = partialmethod(_of_owner, "send_test")

    def do_enable(self, agent: int, task: str, owner: str, resend: bool) -> None:
        if resend:
            of_both = "task_id = ? AND owner = ? AND state = 'cancelled'"
            self._wishes.bring_back(self._chosen(of_both, task, owner))
        self._of_owner("enable", agent, task, owner, resend=resend)

    def do_rival(self, agent: int, task: str, owner: str, host: str, rounds: int) -> None:
        """Set a config, notify an update and remove the config, again and again.

        Several of these at once replace and remove each other's config.
        """

        async def rival(sender: PushSender) -> None:
            for _ in range(rounds):
                await self._subscribing(task, owner, host, "1.0")(sender)
                marker = f"{task}?{agent} rival {len(self._promises.notices)}"
                await self._notifying(task, marker, "status", key=None)(sender)
                await self._changing("unsubscribe", task, owner)(sender)

        self._ask(agent, rival)

    # --- updates --------------------------------------------------------------------------------

    def do_notify(self, agent: int, task: str, number: int, shape: str = "status") -> None:
        """Notify an update: see `_update` for the shapes; `big` ones may be refused.

        `mute` ones say nothing but that the task is working: newer statuses may replace them.
        """
        self._notify(agent, task, f"{task}#{number}", shape)

    def do_finish(self, agent: int, task: str, state: str = "completed") -> None:
        self._notify(agent, task, f"{task}#end", state)

    def do_burst(self, agent: int, task: str, count: int) -> None:
        """Notify many updates at once."""
        for number in range(count):
            self._notify(agent, task, f"{task}!{number}", "status")

    def do_shout(self, agent: int, task: str, count: int) -> None:
        """Notify many updates at once, without idempotency keys: none is retried."""
        for number in range(count):
            marker = f"{task}?{agent} {self._world.loop.time():.6f} {number}"
            self._notify(agent, task, marker, "status", key=None)

    def _notify(self, agent: int, task: str, marker: str, shape: str, key: str | None = "") -> None:
        self._ask(agent, self._notifying(task, marker, shape, key))

    def _notifying(
        self, task: str, marker: str, shape: str, key: str | None = ""
    ) -> Callable[[PushSender], Awaitable[None]]:
        key = marker if key == "" else None
        notice = Notice(marker, self._world.loop.time(), task, shape)
        self._promises.notices.append(notice)
        update = _update(task, marker, shape)
        whole = _task(task, TaskStatus(state=TaskState.WORKING), marker)

        async def ask_for_task(_owner: str) -> Task:
            return whole

        async def notify(sender: PushSender) -> None:
            self._stored.setdefault(task, []).append(marker)
            wanting = self._promises.wanting(task)
            snapshot = None if shape == "bare" else ask_for_task if marker[-1] in "13" else whole
            left = 2 if key and key[-1] == "2" else 1  # the same key again must change nothing
            uncertain = False
            for _ in range(4):
                notice.not_stored = False  # unknown until this call returns
                try:
                    result = await sender.notify(update, snapshot=snapshot, idempotency_key=key)
                except StorageError as exc:
                    self._world.secrets.check("an error", str(exc))
                    uncertain |= isinstance(exc, CommitUncertainError)
                    self._check_refusal(exc)
                    notice.not_stored = not (uncertain or notice.ids)
                    if uncertain and key is None:
                        return
                    await asyncio.sleep(1)
                    continue
                self._promises.acknowledged(notice, result, wanting)
                left -= 1
                if not left:
                    return

        return notify

    def do_enlist(self, agent: int, task: str, number: int, seconds: float, commits: bool) -> None:
        """Notify an update in a transaction of the agent's own, and commit it or not."""
        marker = f"{task}#enlisted{number}"
        notice = Notice(marker, self._world.loop.time(), task, "status")
        self._promises.notices.append(notice)
        whole = _task(task, TaskStatus(state=TaskState.WORKING), marker)

        async def enlist(sender: PushSender) -> None:
            wanting = self._promises.wanting(task)
            connection: asyncpg.Connection | None = None
            try:
                connection = await asyncpg.connect("the agent's own")
                async with connection.transaction():
                    result = await sender.notify(
                        _update(task, marker, "status"),
                        snapshot=whole,
                        idempotency_key=marker,
                        connection=connection,
                    )
                    await asyncio.sleep(seconds)
                    assert commits
            except AssertionError:  # it has changed its mind, and rolled back
                notice.not_stored = True
            except (StorageError, asyncpg.PostgresError, OSError, TimeoutError) as exc:
                self._world.note(f"not notified in a transaction: {exc!r}")
            else:
                self._promises.acknowledged(notice, result, wanting)
            finally:
                if connection is not None:
                    await connection.close()

        self._ask(agent, enlist)

    def _check_refusal(self, exc: StorageError) -> None:
        """Check that a fault explains a storage error."""
        now, had_trouble = self._world.loop.time(), self._world.had_trouble
        reasons = ("disk", "blip", "death", "freeze")
        is_closed = "not open" in str(exc)  # the agent is stopping
        if isinstance(exc, SchemaError) and had_trouble("upgrade", 0.0, now):
            return  # an old program, during an upgrade
        if not is_closed and not any(had_trouble(each, now - 40, now) for each in reasons):
            self._world.violated(f"a storage error without a fault: {exc}")

    # --- operators ------------------------------------------------------------------------------

    def _chosen(self, where: str, *values: Any) -> list[str]:
        rows = self._outbox.select(
            f"SELECT id FROM pushkit_deliveries WHERE {where} ORDER BY id", *values
        )
        return [row["id"] for row in rows]

    def _bring_back(self, where: str) -> list[str]:
        chosen = self._chosen(where)[:_CHOSEN]
        self._wishes.bring_back(chosen)
        return chosen

    def do_redrive(self, agent: int) -> None:
        if wanted := self._bring_back("state = 'dead'"):
            self._ask(agent, lambda sender: sender.outbox.redrive(wanted))

    def do_resend(self, agent: int) -> None:
        if wanted := self._bring_back("state IN ('delivered', 'cancelled')"):
            self._ask(agent, lambda sender: sender.outbox.resend(wanted))

    def do_retry_now(self, agent: int) -> None:
        if wanted := self._chosen("state = 'pending'")[:_CHOSEN]:
            self._ask(agent, lambda sender: sender.outbox.retry_now(wanted))

    def do_cancel(self, agent: int, task: str) -> None:
        found = self._chosen("state = 'pending' AND task_id = ?", task)
        if wanted := (found[:-1] or found)[:_CHOSEN]:  # what is behind them is sent
            self._wishes.may_be_cancelled |= set(wanted)
            self._ask(agent, lambda sender: sender.outbox.cancel(wanted))

    def do_purge(self, agent: int, seconds: float) -> None:
        self._wishes.is_purged = True
        age = timedelta(seconds=seconds)
        self._ask(agent, lambda sender: sender.outbox.purge(older_than=age))

    def do_erase(self, agent: int, task: str) -> None:
        self._wishes.erase(task)
        self._ask(agent, lambda sender: sender.outbox.erase(task))

    def do_rotate(self, _agent: int, how: str = "planned") -> None:
        moment = self._world.loop.time()
        ring, now = self._keys.current, EPOCH + timedelta(seconds=moment)
        if how == "planned":
            self._keys.current = ring.rotate(now)
            return
        # The next key signs at once, though it may not have been announced.
        self._world.trouble("hasty key")
        if how == "at once":
            self._keys.current = ring.rotate(now, activate_now=True, force=True)
        else:
            self._keys.revoke(now, moment)


def _marked(marker: str) -> dict[str, Any]:
    return {"marker": marker}


def _task(task: str, status: TaskStatus, marker: str) -> Task:
    return Task(id=task, context_id="context", status=status, metadata=_marked(marker))


def _update(task: str, marker: str, shape: str) -> TaskUpdate:
    text = TextPart(text=f"{CANARY} {marker} " + ('"' * 3000 if shape == "big" else ""))
    message = Message(message_id=marker, role=Role.AGENT, parts=(text,), task_id=task)
    if shape in ("artifact", "chunk", "last"):
        return ArtifactUpdate(
            task_id=task,
            context_id="context",
            artifact=Artifact(artifact_id="artifact", parts=(text,)),
            append=shape != "artifact",
            last_chunk=shape != "chunk",
            metadata=_marked(marker),
        )
    if shape == "message":
        return MessageUpdate(
            message=Message(
                message_id=marker,
                role=Role.AGENT,
                parts=(text,),
                task_id=task,
                metadata=_marked(marker),
            )
        )
    if shape == "task":
        status = TaskStatus(state=TaskState.WORKING, message=message)
        return TaskSnapshot(task=_task(task, status, marker))
    is_working = shape in ("status", "bare", "said", "big", "mute")
    state = TaskState.WORKING if is_working else TaskState(shape)
    said = message if shape in ("said", "big") else None
    return StatusUpdate(
        task_id=task,
        context_id="context",
        status=TaskStatus(state=state, message=said),
        metadata={} if shape == "mute" else _marked(marker),
    )
