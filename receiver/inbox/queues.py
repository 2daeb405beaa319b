"""The queues of the inbox: the notifications of a sender's task; one without a task is alone.

A queue is made by its first notification, and deleted with its last (`receiver.inbox.retention`).
"""

from __future__ import annotations

from typing import Final

from pushkit.queue.rules import GroupKey, Queue
from pushkit.queue.tables import QueueTables

INBOX: Final = QueueTables(
    queues="pushkit_inbox_queues", jobs="pushkit_inbox", queue_id="queue_id", place="place"
)


def queue_id_of(sender: str, task_id: str | None, delivery_id: str) -> str:
    """Return the id of a notification's queue. No name of a sender has a line break."""
    return f"{sender}\r{delivery_id}" if task_id is None else f"{sender}\n{task_id}"


def task_of(queue_id: str) -> str | None:
    """Return the task of a queue; None for a notification without one."""
    sender, separator, task_id = queue_id.partition("\n")
    return task_id if separator and "\r" not in sender else None


def group_of(sender: str) -> GroupKey:
    """Return what the queues of a sender share: their turns, and their part of what is claimed."""
    return ("", sender, sender)


def new_queue(queue_id: str, sender: str, now: int) -> Queue:
    """Return the queue that a notification is the first of.

    Its epoch begins with the time in microseconds: a queue of this id may have been deleted, and
    no process may take the new one for that.
    """
    return Queue(
        id=queue_id,
        tenant="",
        owner=sender,
        origin=sender,
        last_seq=0,
        due_at=None,
        lease_worker=None,
        leased_at=None,
        lease_until=None,
        epoch=now,
        sending_to=0,
        settled_to=0,
        abandoned=0,
        paused=0,
    )
