"""Updates of an SDK are encoded directly in their own version, and decoded only for others."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from pushkit import ArtifactUpdate, DeliveryState, Filter, PushSender, TaskUpdate, WireVersion
from pushkit.a2a import NativeUpdate, encode_update
from pushkit.errors import IdempotencyConflictError, InvalidUpdateError
from pushkit.record import record
from tests.unit.pushkit.delivery.conftest import ARTIFACT, HOOK, Senders, enqueue, status, task
from tests.unit.pushkit.delivery.sides import read

V1_0 = WireVersion.V1_0


@dataclass
class Counts:
    """How often an update was encoded directly, and how often it was decoded."""

    written: int = 0
    read: int = 0

    def native(self, update: TaskUpdate, *, refused: str = "") -> NativeUpdate:
        return Counted(
            kind=update.kind,
            task_id=update.task_id or "",
            state=update.state,
            is_partial=update.is_partial,
            is_bare=update.is_bare,
            version=V1_0,
            counts=self,
            update=update,
            refused=refused,
        )


@record(frozen=False, slots=True, kw_only=True, eq=False)
class Counted(NativeUpdate):
    """An update that counts its encodings and decodings."""

    counts: Counts
    update: TaskUpdate
    refused: str  # why it cannot be written; empty if it can

    def write(self) -> bytes:
        self.counts.written += 1
        if self.refused:
            raise InvalidUpdateError(self.refused)
        return encode_update(self.update, V1_0)

    def read(self) -> TaskUpdate:
        self.counts.read += 1
        return self.update


@pytest.fixture
def counts() -> Counts:
    return Counts()


async def test_nothing_is_encoded_for_a_task_without_subscriptions(
    sender: PushSender, counts: Counts
) -> None:
    await enqueue(sender, task_id="task-2")
    assert (await sender.notify(counts.native(status()))).for_nobody
    assert (await sender.notify(counts.native(status()), tenant="other")).for_nobody
    assert counts == Counts()


async def test_nothing_is_encoded_after_the_last_subscription_of_a_task_is_removed(
    sender: PushSender, counts: Counts
) -> None:
    await enqueue(sender)
    await sender.unsubscribe("task-1")
    await sender.notify(status())
    await sender.notify(counts.native(status()))
    assert counts == Counts()


async def test_an_update_in_its_own_version_is_encoded_once_and_never_converted(
    sender: PushSender, counts: Counts
) -> None:
    for owner in ("alice", "bob"):
        await sender.subscribe("task-1", HOOK, version="1.0", owner=owner)
    for number in range(1, 3):
        update = counts.native(status())
        assert len((await sender.notify(update)).ids) == 2
        assert counts == Counts(written=number)
    stored = {each.body for each in await sender.deliveries("task-1")}
    assert stored == {encode_update(status(), V1_0)}


async def test_other_versions_are_encoded_from_one_decoding(
    sender: PushSender, counts: Counts
) -> None:
    for version in ("0.1", "0.3", "1.0"):
        await sender.subscribe("task-1", HOOK, version=version, owner=version)
    vault = {"webhookUrl": HOOK["url"]}
    await sender.subscribe("task-1", vault, version="agentvault-0.2", owner="vault")
    for _ in range(2):
        counts.read = 0
        assert len((await sender.notify(counts.native(status()), snapshot=task())).ids) == 4
        assert counts.read == 1
    straight = {each.owner: each.body for each in await sender.deliveries("task-1")}
    await sender.notify(status(), snapshot=task())
    assert {each.owner: each.body for each in await sender.deliveries("task-1")} == straight


async def test_filters_do_not_decode_a_native_update(sender: PushSender, counts: Counts) -> None:
    wanted = Filter(last_chunk_only=True)
    await sender.subscribe("task-1", HOOK, version="1.0", filter=wanted)
    chunk: ArtifactUpdate = replace(ARTIFACT, task_id="task-1")
    assert not (await sender.notify(counts.native(chunk))).ids
    assert counts == Counts()
    for update in (replace(chunk, last_chunk=True), status()):
        assert (await sender.notify(counts.native(update))).ids
    assert counts == Counts(written=2)


async def test_superseded_native_updates_are_dropped_like_neutral_ones(
    senders: Senders, counts: Counts
) -> None:
    sender = await senders.open(max_backlog_per_subscription=2, coalesce=True)
    await sender.subscribe("task-1", HOOK, version="1.0")
    for _ in range(4):
        assert (await sender.notify(counts.native(status()))).ids
    states = [each.state for each in await sender.deliveries("task-1")]
    assert states.count(DeliveryState.PENDING) <= 2 < len(states)
    assert counts.read == 0


async def test_an_idempotency_key_matches_native_and_neutral_updates(
    sender: PushSender, counts: Counts
) -> None:
    await sender.subscribe("task-1", HOOK, version="1.0")
    first = await sender.notify(status(), idempotency_key="neutral first")
    again = counts.native(status())
    assert await sender.notify(again, idempotency_key="neutral first") == first
    first = await sender.notify(counts.native(status()), idempotency_key="native first")
    assert await sender.notify(status(), idempotency_key="native first") == first
    for key in ("neutral first", "native first"):
        with pytest.raises(IdempotencyConflictError):
            await sender.notify(counts.native(status("completed")), idempotency_key=key)
    digests = await read(sender, "SELECT DISTINCT update_sha256 FROM pushkit_deliveries")
    assert len(digests) == 1


async def test_an_update_that_cannot_be_encoded_is_refused_for_each_recipient(
    sender: PushSender, counts: Counts
) -> None:
    await sender.subscribe("task-1", HOOK, version="1.0", owner="alice")
    await sender.subscribe("task-1", HOOK, version="0.1", owner="bob")
    update = counts.native(status(), refused="statusUpdate.status: expected, but missing")
    result = await sender.notify(update)
    assert [each.owner for each in result.deliveries] == ["bob"]
    [refused] = result.refused
    assert (refused.owner, refused.code) == ("alice", "invalid_update")
    assert "statusUpdate.status" in refused.message
