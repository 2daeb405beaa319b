"""Receivers that lose their inbox, what their clients ask for after that, and what it brings.

An inbox is set back to an earlier copy, as when a backup is restored. Then an operator asks for the
gaps of the inbox, a client for all of its configs, or the receiver by itself, in a callback; again
and again until the agent has answered. What the outbox kept of an answered range, the inbox has at
the end, and has called back; in order, where one answer named it. A callback that ran before the
loss may run again only if the inbox that is back has no record of it.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from pushkit.bounded_json import JsonObject
from pushkit.errors import PushkitError
from pushkit.storage.script import to_micros
from receiver import Notification
from receiver.recovery import Recovery, RecoveryFailedError
from tests.verification.simulation.disk import Disk
from tests.verification.simulation.loop import Process
from tests.verification.simulation.postgres import PostgresServer
from tests.verification.simulation.programs import API_URL, ReceivingUnit, api_token
from tests.verification.simulation.promises import Promises
from tests.verification.simulation.world import EPOCH, Unit, World

__all__ = ["Losses"]

# Owner, task and config; the first and the last `seq`, None for the last one.
_Range: TypeAlias = "tuple[str, str, str, int, int | None]"
_GIVEN_UP = 40.0  # seconds after which a client asks anew
_AGAIN = 1.0  # seconds until it asks anew after an error
# Of an agent that will not answer otherwise: no such config, or it is disabled, or the day's bound.
_FOR_GOOD = ("-32001", "-32602")
_CALLBACKS = ("client", "audit")

_ACCEPTED = "SELECT delivery_id FROM pushkit_inbox UNION SELECT delivery_id FROM pushkit_forgotten"
_CALLED = (
    "SELECT c.callback, i.sender, i.delivery_id FROM pushkit_callbacks c JOIN pushkit_inbox i"
    " ON i.id = c.notification_id WHERE c.done = 1"
)
_NUMBERED = (
    "SELECT i.delivery_id, i.task_id, i.config_id FROM pushkit_inbox i JOIN pushkit_sequences s"
    " ON s.sender = i.sender AND s.task_id = i.task_id AND s.config_id = i.config_id"
    " WHERE i.seq IS NOT NULL"
)
_SEQUENCES = "SELECT task_id, config_id FROM pushkit_sequences"
_CONFIGS = (
    "SELECT DISTINCT task_id, owner, config_id FROM pushkit_subscriptions WHERE origin = ?"
    " ORDER BY task_id, owner, config_id"
)
# What is kept for the newest subscription of a config: the current one, or else the last one.
_KEPT = (
    "SELECT d.id, d.seq, d.state FROM pushkit_deliveries d WHERE d.subscription_id = (SELECT id"
    " FROM pushkit_subscriptions WHERE task_id = ?1 AND owner = ?2 AND config_id = ?3"
    " ORDER BY removed_at IS NOT NULL, id DESC LIMIT 1) AND d.seq BETWEEN ?4 AND ?5"
    " AND d.notified_at >= ?6 ORDER BY d.seq"
)
# Whether a newer subscription took the place of a delivery's own: what it has is asked for then.
_REPLACED = (
    "SELECT 1 FROM pushkit_deliveries d JOIN pushkit_subscriptions s ON s.id = d.subscription_id"
    " JOIN pushkit_subscriptions n ON n.task_id = s.task_id AND n.owner = s.owner"
    " AND n.config_id = s.config_id AND n.id > s.id WHERE d.id = ?"
)
_DELIVERY = "SELECT state, origin, redrives FROM pushkit_deliveries WHERE id = ?"
_IN_INBOX = (
    "SELECT state, task_id, sender, received_at FROM pushkit_inbox WHERE delivery_id = ?1"
    " UNION ALL SELECT 'forgotten', NULL, sender, 0 FROM pushkit_forgotten WHERE delivery_id = ?1"
)


@dataclass(slots=True)
class _Loss:
    """The last loss of an inbox, and what must have come back since."""

    # What the inbox had of each task and config that it still knows, but of refused ones: an
    # operator asks for that.
    had: dict[tuple[str, str], set[str]]
    expected: dict[str, float] = field(default_factory=dict)  # deliveries, and when asked for
    together: list[tuple[float, list[str]]] = field(default_factory=list)  # of one answer, by `seq`


@dataclass(frozen=True, slots=True)
class _Whom:
    """A client that asks."""

    host: str  # its receiver
    owner: str
    asked_at: float
    loss: _Loss | None  # the last one of its inbox, before it asked


class Losses:
    """The losses of one world; a step is a method `do_x`."""

    def __init__(
        self,
        world: World,
        units: Mapping[str, Unit],
        receivers: Mapping[str, ReceivingUnit],
        outbox: Disk | PostgresServer,
        promises: Promises,
        *,
        most: int | None,  # how many an owner may have sent again in a day
        hurries: Callable[[], object],  # called as deliveries are to be sent before their time
    ) -> None:
        self._world = world
        self._units = units
        self._receivers = receivers
        self._outbox = outbox
        self._promises = promises
        self._most = most
        self._hurries = hurries
        self._client = Process("client", "203.0.113.7")
        self._copies: dict[str, Any] = {}
        self._copied_at: dict[str, float] = {}
        self._losses: dict[str, _Loss] = {}
        self._asking = 0
        self._sent_again: Counter[tuple[str, int]] = Counter()

    # --- steps ----------------------------------------------------------------------------------

    def do_backup(self, host: str) -> None:
        """Copy an inbox, as a backup does."""
        self._copies[host] = self._promises.inboxes[host].copy()
        self._copied_at[host] = self._world.loop.time()

    def do_lose(self, host: str, down_for: float) -> None:
        """End the processes of a receiver, and set its inbox back to the copy."""
        if host not in self._copies:
            return
        inbox = self._promises.inboxes[host]
        before, known = _ids(inbox), [tuple(row) for row in inbox.select(_NUMBERED)]
        for unit in self._units.values():
            if unit.machine.disk is inbox:
                unit.crash(down_for=down_for)
        inbox.restore(self._copies[host])
        lost = before - _ids(inbox)
        self._world.trouble("loss", whom=host)
        self._world.note(f"{host} lost {len(lost)} of {len(before)}")
        numbered = {tuple(row) for row in inbox.select(_SEQUENCES)}
        had: dict[tuple[str, str], set[str]] = defaultdict(set)
        for delivery_id, *config in known:
            if delivery_id in lost and tuple(config) in numbered:
                had[config[0], config[1]].add(delivery_id)
        self._losses[host] = _Loss(had)
        called = {(callback, *one) for callback, *one in map(tuple, inbox.select(_CALLED))}
        for row in inbox.select("SELECT sender, delivery_id FROM pushkit_forgotten"):
            called |= {(callback, *row) for callback in _CALLBACKS}
        self._promises.lose(host, lost, called)

    def do_recover(self, host: str, how: str) -> None:
        """Ask for what a receiver lacks, again and again until that is answered.

        As `operator`, for the gaps of the inbox; as `client`, for every config of this receiver;
        `since` the backup, too. By `itself` a receiver does so from the beginning.
        """
        if how != "itself":
            self._asking += 1
            self._world.spawn(self._ask(host, how), None)

    async def _ask(self, host: str, how: str) -> None:
        asking = functools.partial(self._ask_once, host, how)
        while True:
            if how == "operator":
                asked = self._receivers[host].do(asking)
            else:
                asked = self._world.spawn(asking(), self._client)
            if asked is not None:
                await asyncio.wait([asked], timeout=_GIVEN_UP)
                if asked.done() and not asked.cancelled() and asked.result():
                    break
            await asyncio.sleep(_AGAIN)
        self._asking -= 1

    async def _ask_once(self, host: str, how: str) -> bool:
        """Ask for everything; return whether all of it was answered."""
        is_answered, loss = True, self._losses.get(host)
        try:
            ranges = await self._gaps(host) if how == "operator" else self._configs(host)
        except PushkitError as exc:
            self._world.note(f"not asked: {exc.code}")
            return False
        since = self._copied_at.get(host) if how == "since" else None
        for owner, task_id, config_id, first, last in ranges:
            async with aclosing(_Watched(self, host, owner, since)) as recovery:
                try:
                    await recovery.ask(task_id, config_id, from_seq=first, to_seq=last)
                except RecoveryFailedError as exc:
                    self._world.note(f"not recovered: {exc}")
                    self._world.secrets.check("an error", str(exc))
                    is_refused = any(code in str(exc) for code in _FOR_GOOD)
                    is_answered &= is_refused
                    if is_refused and loss is not None:
                        loss.had.pop((task_id, config_id), None)
        if is_answered and how == "operator" and loss is not None:
            # It has asked for all that the inbox had of the configs that it still knows.
            had = set[str]().union(*loss.had.values())
            self.expect(
                self.whom(host, ""),
                [each for each in had if not self._outbox.select(_REPLACED, each)],
            )
        return is_answered

    async def _gaps(self, host: str) -> list[_Range]:
        return [
            (_owner_of(gap.config_id), gap.task_id, gap.config_id, gap.from_seq, gap.to_seq)
            for gap in await self._receivers[host].gaps()
        ]

    def _configs(self, host: str) -> list[_Range]:
        rows = self._outbox.select(_CONFIGS, f"https://{host}.example.com:443")
        return [(row["owner"], row["task_id"], row["config_id"], 1, None) for row in rows]

    async def heed(self, host: str, notification: Notification) -> None:
        """Ask for what is missing before a notification, as its receiver's callback."""
        owner = _owner_of(notification.config_id or "")
        async with aclosing(_Watched(self, host, owner)) as recovery:
            await recovery.missing(notification)

    # --- what is asked and answered -------------------------------------------------------------

    def kept(self, whom: _Whom, asked: JsonObject) -> dict[str, Any]:
        """Return what the outbox keeps of a range: id, `seq` and state, by id."""
        values = [asked["taskId"], whom.owner, asked.get("id"), asked["fromSeq"]]
        since = asked.get("since")
        moment = 0 if since is None else to_micros(datetime.fromisoformat(str(since)))
        rows = self._outbox.select(_KEPT, *values, asked.get("toSeq", 2**62), moment)
        return {row["id"]: row for row in rows}

    def may_come(self, ids: Iterable[str]) -> None:
        """Note that deliveries may be sent again from now on."""
        self._promises.instructions.bring_back([*ids])
        self._hurries()

    def sent_again(
        self, whom: _Whom, asked: JsonObject, before: Mapping[str, Any], result: JsonObject
    ) -> None:
        """Note what an agent says that it sends again, of what it kept as it was asked."""
        seqs = result["seqs"]
        assert isinstance(seqs, list)
        self._world.note(f"sent again to {whom.host}: {whom.owner} {seqs}")
        self._count(whom.owner, len(seqs))
        ids = {row["seq"]: name for name, row in self.kept(whom, asked).items()}
        again = [ids[seq] for seq in seqs if seq in ids]
        self.may_come(again)
        self.expect(whom, again)
        if self._losses.get(whom.host) is whom.loss is not None:
            # What a worker has, or soon has, in memory goes first.
            finished = [
                each for each in again if each in before and before[each]["state"] != "pending"
            ]
            whom.loss.together.append((self._world.loop.time(), finished))

    def expect(self, whom: _Whom, ids: Iterable[str]) -> None:
        """Note what has to come back, unless it is lost once more."""
        if self._losses.get(whom.host) is whom.loss is not None:
            for delivery_id in ids:
                whom.loss.expected.setdefault(delivery_id, whom.asked_at)

    def whom(self, host: str, owner: str) -> _Whom:
        """Return who asks now."""
        return _Whom(host, owner, self._world.loop.time(), self._losses.get(host))

    def _count(self, owner: str, number: int) -> None:
        """An owner has no more sent again in a day than allowed."""
        day = int(self._world.loop.time() // 86400)
        self._sent_again[owner, day] += number
        was_set = self._world.had_trouble("clock", 0.0, self._world.loop.time())
        if self._sent_again[owner, day] > (self._most or 0) and not was_set:
            sent = f"{self._sent_again[owner, day]} notifications of {owner}"
            self._world.violated(f"sent again more than allowed: {sent}, expected {self._most}")

    # --- at the end -----------------------------------------------------------------------------

    def is_done(self) -> bool:
        """Return whether all that clients ask for is answered."""
        return not self._asking

    def check_end(self) -> None:
        """Check that what was asked for is back."""
        if self._asking:
            self._world.violated(f"not answered: {self._asking} clients still ask")
        for host, loss in self._losses.items():
            for delivery_id, asked_at in loss.expected.items():
                self._check_back(host, delivery_id, asked_at)
            for answered_at, ids in loss.together:
                self._check_order(host, ids, answered_at)

    def _check_back(self, host: str, delivery_id: str, asked_at: float) -> None:
        """What was sent again is in the inbox, and was called back; or a webhook has it instead."""
        rows = self._outbox.select(_DELIVERY, delivery_id)
        if not rows or rows[0]["state"] != "delivered" or f"//{host}." not in rows[0]["origin"]:
            return
        if any(
            each.at > asked_at and each.is_taken for each in self._promises.arrivals[delivery_id]
        ):
            return  # its subscription was changed meanwhile
        inboxes = {
            name: each.select(_IN_INBOX, delivery_id)
            for name, each in self._promises.inboxes.items()
        }
        if not any(inboxes.values()):
            self._world.violated(f"recovered, but not in the inbox of {host}: {delivery_id}")
        elif inboxes[host] and inboxes[host][0]["state"] == "done":
            for callback in _CALLBACKS:
                calls = self._promises.calls[host, callback, delivery_id]
                if not any(each.ended and not each.is_forgotten for each in calls):
                    self._world.violated(f"recovered, but not called back: {delivery_id}")

    def _check_order(self, host: str, ids: list[str], answered_at: float) -> None:
        """What one answer names is called back in the order of `seq`, if it is sent again once.

        What the new inbox had accepted before the answer was sent for the first time, in memory of
        a worker, while what came before it was in flight.
        """
        if self._world.had_trouble("clock", 0.0, self._world.loop.time()):
            return  # `received_at` says nothing
        answered = to_micros(EPOCH + timedelta(seconds=answered_at))
        newest: dict[str, tuple[float, str]] = {}  # by sender: each has queues of its own
        for delivery_id in ids:
            rows = self._outbox.select(_DELIVERY, delivery_id)
            found = self._promises.inboxes[host].select(_IN_INBOX, delivery_id)
            calls = self._promises.calls[host, "client", delivery_id]
            begun = [each.begun for each in calls if not each.is_forgotten]
            is_again = (
                bool(rows) and rows[0]["redrives"] == 1 and min(begun, default=0) > answered_at
            )
            if not is_again or not found or not found[0]["task_id"]:
                continue
            if found[0]["received_at"] < answered:
                continue
            last, name = newest.get(found[0]["sender"], (0.0, ""))
            if begun[0] < last:
                self._world.violated(f"recovered {delivery_id} before {name}: order of a config")
            newest[found[0]["sender"]] = max((last, name), (begun[0], delivery_id))


class _Watched(Recovery):
    """A client of the agents that reports what it asks for, and what they answer."""

    def __init__(self, losses: Losses, host: str, owner: str, since: float | None = None) -> None:
        super().__init__(API_URL, token=api_token(owner))
        self._losses = losses
        self._whom = losses.whom(host, owner)
        self._more: JsonObject = {}
        if since is not None:
            self._more["since"] = (EPOCH + timedelta(seconds=int(since))).isoformat()

    async def ask(
        self, task_id: str, config_id: str | None, *, from_seq: int, to_seq: int | None = None
    ) -> int:
        asked: JsonObject = {"taskId": task_id, "id": config_id, "fromSeq": from_seq, **self._more}
        asked |= {} if to_seq is None else {"toSeq": to_seq}
        before = self._losses.kept(self._whom, asked)
        self._losses.may_come(before)
        number = await super().ask(task_id, config_id, from_seq=from_seq, to_seq=to_seq)
        kept = self._losses.kept(self._whom, asked)
        self._losses.expect(self._whom, before.keys() & kept.keys())
        return number

    async def _call(self, params: JsonObject) -> JsonObject:
        asked = {**params, **self._more}
        before = self._losses.kept(self._whom, asked)
        result = await super()._call(asked)
        self._losses.sent_again(self._whom, asked, before, result)
        return result

    async def aclose(self) -> None:
        await self.close()


def _ids(inbox: Disk | PostgresServer) -> set[str]:
    return {row["delivery_id"] for row in inbox.select(_ACCEPTED)}


def _owner_of(config_id: str) -> str:
    return config_id.partition("-")[0]
