"""The queues of mailboxes, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from tenacity import stop_after_attempt

from pushkit.scheduling.retry import RetryPolicy, wait_schedule
from pushkit.storage.database import Database
from pushkit.storage.quota import Quota
from pushkit.storage.script import Script, Statement
from receiver.admin import InboxAdmin, open_inbox
from receiver.inbox.mailboxes import (
    Deposit,
    HandedOutNotification,
    MailboxChange,
    MailboxLeaseLostError,
    MailboxQueues,
    Receipt,
    UnknownReceiptError,
    Verb,
    count_pending,
)
from tests.unit.receiver import storing

BODY = b'{"statusUpdate":{"taskId":"t","status":{"state":"TASK_STATE_WORKING"}}}'
LEASE = timedelta(minutes=1)
AT_ONCE = RetryPolicy(wait=wait_schedule((0.001,), jitter=0), stop=stop_after_attempt(100))


@pytest.fixture
async def database(location: str) -> AsyncIterator[Database]:
    database = open_inbox(location)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
def queues(database: Database) -> MailboxQueues:
    return MailboxQueues(database, AT_ONCE)


async def kept(
    database: Database, queues: MailboxQueues, *numbers: int, task: str = "t", box: str = "laptop"
) -> list[bool]:
    """Store notifications in the inbox and keep them; return whether each was."""
    found = []
    for number in numbers:
        await database.write(storing.store(task, number, body=BODY, now=datetime.now(UTC)))
        rows = await database.read(last_id())
        found.append(await keep_again(database, queues, rows, task=task, box=box))
    return found


def last_id() -> Script[int]:
    rows = yield Statement("SELECT MAX(id) AS id FROM pushkit_inbox")
    return int(rows[0]["id"])


async def keep_again(
    database: Database,
    queues: MailboxQueues,
    number: int,
    *,
    task: str = "t",
    box: str = "laptop",
    limit: int = 100,
) -> bool:
    quota = Quota[str](limit, count_pending)
    deposit = Deposit(box, quota, f"{box}\nagent\n{task}", number, len(BODY))
    return await database.write_together(queues.keeping, deposit) is True


async def claimed(
    database: Database, queues: MailboxQueues, most: int = 9, box: str = "laptop"
) -> list[HandedOutNotification]:
    return (await database.write(queues.claim(box, most, LEASE)))[0]


async def test_one_is_kept_once_whatever_became_of_it(
    database: Database, queues: MailboxQueues
) -> None:
    await kept(database, queues, 1)
    number = await database.read(last_id())
    assert await keep_again(database, queues, number)
    [first] = await claimed(database, queues)
    await database.write(queues.settle("laptop", first.receipt, Verb.ACK, lease=LEASE))

    assert await keep_again(database, queues, number)
    assert await claimed(database, queues) == []


async def test_a_full_mailbox_keeps_no_more(database: Database, queues: MailboxQueues) -> None:
    await kept(database, queues, 1)

    assert not await keep_again(database, queues, 99, limit=1)
    assert await keep_again(database, queues, 99, box="another", limit=1)


async def test_claims_at_once_never_hand_out_a_task_twice(
    database: Database, queues: MailboxQueues
) -> None:
    for number in range(8):
        await kept(database, queues, 1, task=f"t{number}")

    found = await asyncio.gather(*(claimed(database, queues, 3) for _ in range(8)))
    while more := await claimed(database, queues):
        found.append(more)

    tasks = [each.queue_id for some in found for each in some]
    assert len(tasks) == len(set(tasks)) == 8


async def test_a_task_is_handed_out_in_order(database: Database, queues: MailboxQueues) -> None:
    await kept(database, queues, 1, 2, 3)
    seqs = []
    for _ in range(3):
        [only] = await claimed(database, queues)
        assert await claimed(database, queues) == []
        seqs.append(only.notification.seq)
        await database.write(queues.settle("laptop", only.receipt, Verb.ACK, lease=LEASE))

    assert seqs == [1, 2, 3]


async def test_mailboxes_are_apart(database: Database, queues: MailboxQueues) -> None:
    await kept(database, queues, 1)
    number = await database.read(last_id())
    assert await keep_again(database, queues, number, box="another")
    [ours], [theirs] = [await claimed(database, queues, box=box) for box in ("laptop", "another")]
    assert ours.notification == theirs.notification

    with pytest.raises(UnknownReceiptError):
        await database.write(queues.settle("laptop", theirs.receipt, Verb.ACK, lease=LEASE))
    await database.write(queues.settle("laptop", ours.receipt, Verb.ACK, lease=LEASE))
    await database.write(queues.settle("another", theirs.receipt, Verb.ACK, lease=LEASE))


async def test_a_receipt_counts_under_its_own_lease(
    database: Database, queues: MailboxQueues
) -> None:
    await kept(database, queues, 1)
    [first] = await claimed(database, queues)
    nack = queues.settle("laptop", first.receipt, Verb.NACK, lease=LEASE, pause=timedelta(0))
    assert (await database.write(nack)).state == "pending"
    [second] = await claimed(database, queues)
    assert second.attempt == 2

    for receipt in (first.receipt, Receipt(second.receipt.id, second.receipt.epoch + 1)):
        with pytest.raises(MailboxLeaseLostError):
            await database.write(queues.settle("laptop", receipt, Verb.ACK, lease=LEASE))
    await database.write(queues.settle("laptop", second.receipt, Verb.ACK, lease=LEASE))
    await database.write(queues.settle("laptop", second.receipt, Verb.ACK, lease=LEASE))


async def test_what_a_mailbox_still_has_stays_in_the_inbox(
    database: Database, queues: MailboxQueues
) -> None:
    await kept(database, queues, 1)
    await database.write(finish())
    admin = InboxAdmin(database)
    assert await admin.purge(older_than=timedelta(0)) == 0
    [only] = await claimed(database, queues)
    await database.write(queues.settle("laptop", only.receipt, Verb.ACK, lease=LEASE))

    assert await admin.purge(older_than=timedelta(0)) == 1
    assert await database.read(rows_left()) == (0, 0)


async def test_operators_count_redrive_and_drop(database: Database) -> None:
    once = MailboxQueues(
        database, RetryPolicy(wait=wait_schedule((1,)), stop=stop_after_attempt(1))
    )
    await kept(database, once, 1, 2)
    [first] = await claimed(database, once)
    settled = await database.write(once.settle("laptop", first.receipt, Verb.NACK, lease=LEASE))
    assert (settled.state, settled.dead) == ("dead", first.notification)
    admin = InboxAdmin(database)
    [second] = await claimed(database, once)
    [state] = await admin.mailboxes()

    assert (state.mailbox, state.pending, state.handed_out, state.dead) == ("laptop", 1, 1, 1)
    assert await admin.change_mailbox("laptop", MailboxChange.REDRIVE) == 1
    await database.write(once.settle("laptop", second.receipt, Verb.ACK, lease=LEASE))
    assert [each.notification for each in await claimed(database, once)] == [first.notification]
    assert await admin.change_mailbox("laptop", MailboxChange.DROP_DEAD) == 0
    assert await admin.change_mailbox("laptop", MailboxChange.DROP_ALL) == 1
    assert await admin.mailboxes() == []


def finish() -> Script[None]:
    yield Statement("UPDATE pushkit_inbox SET state = 'done', finished_at = 1")


def rows_left() -> Script[tuple[int, ...]]:
    found = []
    for table in ("pushkit_mailbox", "pushkit_mailbox_queues"):
        rows = yield Statement(f"SELECT COUNT(*) AS found FROM {table}")  # noqa: S608  # our own
        found.append(int(rows[0]["found"]))
    return tuple(found)
