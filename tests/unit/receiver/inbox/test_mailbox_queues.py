"""The queues of mailboxes, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from tenacity import stop_after_attempt

from pushkit.scheduling.retry import RetryPolicy, wait_schedule
from pushkit.storage.database import Database
from pushkit.storage.quota import Quota
from pushkit.storage.script import Row, Script, Statement
from receiver.admin import InboxAdmin
from receiver.inbox.mailboxes import (
    Deposit,
    HandedOutNotification,
    MailboxChange,
    MailboxLeaseLostError,
    MailboxQueues,
    Receipt,
    ReceiptResult,
    UnknownReceiptError,
    Verb,
    count_pending,
)
from tests.unit.receiver import storing

BODY = b'{"statusUpdate":{"taskId":"t","status":{"state":"TASK_STATE_WORKING"}}}'
LEASE = timedelta(minutes=1)
AT_ONCE = RetryPolicy(wait=wait_schedule((0.001,), jitter=0), stop=stop_after_attempt(100))


ONCE = RetryPolicy(wait=wait_schedule((1,)), stop=stop_after_attempt(1))


@dataclass
class Boxes:
    """Mailboxes, and the inbox behind them."""

    database: Database
    queues: MailboxQueues

    async def keep(self, *numbers: int, task: str = "t") -> int:
        """Store notifications in the inbox and keep them; return the id of the last."""
        for number in numbers:
            await self.database.write(storing.store(task, number, body=BODY, now=datetime.now(UTC)))
            rows = await self.database.read(rows_of("SELECT MAX(id) AS id FROM pushkit_inbox"))
            assert await self.keep_again(rows[0]["id"], task=task)
        return int(rows[0]["id"])

    async def keep_again(
        self, number: int, *, task: str = "t", box: str = "laptop", limit: int = 100
    ) -> bool:
        quota = Quota[str](limit, count_pending)
        deposit = Deposit(box, quota, f"{box}\nagent\n{task}", number, len(BODY))
        return await self.database.write_together(self.queues.keeping, deposit) is True

    async def claim(self, most: int = 9, box: str = "laptop") -> list[HandedOutNotification]:
        return (await self.database.write(self.queues.claim(box, most, LEASE)))[0]

    async def settle(
        self,
        receipt: Receipt,
        verb: Verb = Verb.ACK,
        *,
        box: str = "laptop",
        pause: timedelta | None = None,
    ) -> ReceiptResult:
        settle = self.queues.settle(box, receipt, verb, lease=LEASE, pause=pause)
        return await self.database.write(settle)


def rows_of(sql: str) -> Script[Sequence[Row]]:
    return (yield Statement(sql))


@pytest.fixture
def boxes(database: Database) -> Boxes:
    return Boxes(database, MailboxQueues(database, AT_ONCE))


async def test_one_is_kept_once_whatever_became_of_it(boxes: Boxes) -> None:
    number = await boxes.keep(1)
    assert await boxes.keep_again(number)
    [first] = await boxes.claim()
    await boxes.settle(first.receipt)

    assert await boxes.keep_again(number)
    assert await boxes.claim() == []


async def test_what_was_purged_before_a_process_woke_up_to_keep_it_blocks_nothing(
    boxes: Boxes,
) -> None:
    """It was suspended within its call, and another process kept the notification meanwhile."""
    number = await boxes.keep(1)
    [only] = await boxes.claim()
    await boxes.settle(only.receipt)
    await boxes.database.write(rows_of("UPDATE pushkit_inbox SET state = 'done', finished_at = 1"))
    assert await InboxAdmin(boxes.database).purge(older_than=timedelta(0)) == 1

    assert await boxes.keep_again(number)
    await boxes.keep(2, task="another")

    assert [each.notification.task_id for each in await boxes.claim()] == ["another"]


async def test_a_full_mailbox_keeps_no_more(boxes: Boxes) -> None:
    first, second = await boxes.keep(1), await boxes.keep(2)

    assert await boxes.keep_again(first, box="small", limit=1)
    assert not await boxes.keep_again(second, box="small", limit=1)
    assert await boxes.keep_again(second, box="another", limit=1)


async def test_claims_at_once_never_hand_out_a_task_twice(boxes: Boxes) -> None:
    for number in range(8):
        await boxes.keep(1, task=f"t{number}")

    found = await asyncio.gather(*(boxes.claim(3) for _ in range(8)))
    while more := await boxes.claim():
        found.append(more)

    tasks = [each.queue_id for some in found for each in some]
    assert len(tasks) == len(set(tasks)) == 8


async def test_mailboxes_are_apart(boxes: Boxes) -> None:
    number = await boxes.keep(1)
    assert await boxes.keep_again(number, box="another")
    [ours], [theirs] = await boxes.claim(), await boxes.claim(box="another")
    assert ours.notification == theirs.notification

    with pytest.raises(UnknownReceiptError):
        await boxes.settle(theirs.receipt)
    await boxes.settle(ours.receipt)
    await boxes.settle(theirs.receipt, box="another")


async def test_a_receipt_counts_under_its_own_lease(boxes: Boxes) -> None:
    await boxes.keep(1)
    [first] = await boxes.claim()
    nacked = await boxes.settle(first.receipt, Verb.NACK, pause=timedelta(0))
    assert nacked.state == "pending"
    [second] = await boxes.claim()
    assert second.attempt == 2

    for receipt in (first.receipt, Receipt(second.receipt.id, second.receipt.epoch + 1)):
        with pytest.raises(MailboxLeaseLostError):
            await boxes.settle(receipt)
    await boxes.settle(second.receipt)
    await boxes.settle(second.receipt)


async def test_what_a_mailbox_still_has_stays_in_the_inbox(boxes: Boxes) -> None:
    await boxes.keep(1)
    await boxes.database.write(rows_of("UPDATE pushkit_inbox SET state = 'done', finished_at = 1"))
    admin = InboxAdmin(boxes.database)
    assert await admin.purge(older_than=timedelta(0)) == 0
    [only] = await boxes.claim()
    await boxes.settle(only.receipt)

    assert await admin.purge(older_than=timedelta(0)) == 1
    left = "SELECT id FROM pushkit_mailbox_queues UNION ALL SELECT queue_id FROM pushkit_mailbox"
    assert await boxes.database.read(rows_of(left)) == []


async def test_operators_count_redrive_and_drop(boxes: Boxes) -> None:
    boxes.queues = MailboxQueues(boxes.database, ONCE)
    await boxes.keep(1, 2)
    [first] = await boxes.claim()
    settled = await boxes.settle(first.receipt, Verb.NACK)
    assert (settled.state, settled.dead) == ("dead", first.notification)
    admin = InboxAdmin(boxes.database)
    [second] = await boxes.claim()
    [state] = await admin.mailboxes()

    assert (state.mailbox, state.pending, state.handed_out, state.dead) == ("laptop", 1, 1, 1)
    assert await admin.change_mailbox("laptop", MailboxChange.REDRIVE) == 1
    await boxes.settle(second.receipt)
    assert [each.notification for each in await boxes.claim()] == [first.notification]
    assert await admin.change_mailbox("laptop", MailboxChange.DROP_DEAD) == 0
    assert await admin.change_mailbox("laptop", MailboxChange.DROP_ALL) == 1
    assert await admin.mailboxes() == []


async def test_a_drop_of_what_is_handed_out_ends_its_lease(boxes: Boxes) -> None:
    await boxes.keep(1)
    [dropped] = await boxes.claim()
    await InboxAdmin(boxes.database).change_mailbox("laptop", MailboxChange.DROP_ALL)

    await boxes.keep(2)
    [second] = await boxes.claim()

    assert second.notification.seq == 2
    assert (await boxes.settle(dropped.receipt)).state == "done"
    assert await boxes.claim() == []
