"""A job of the sender: a delivery in the memory of the worker that leases its queue."""

from __future__ import annotations

from pushkit.delivery.route import Route
from pushkit.outbox.model import Delivery, Result
from pushkit.record import record
from pushkit.storage.script import Script
from pushkit.subscriptions import store as subscriptions
from pushkit.subscriptions.model import StoredSubscription


@record(frozen=False, slots=True, eq=False)
class Job:
    """A leased delivery, where it goes, and the result of its attempt."""

    delivery: Delivery  # as it was leased
    # Its subscription, or the subscription's route; None if the subscription was removed.
    to: StoredSubscription | Route | None
    seq: int
    redrives: int
    size: int  # of its body, in bytes
    refusals: int = 0  # how often this sender's own policy refused its destination
    result: Result | None = None  # by the worker's clock


def job_of(delivery: Delivery, to: StoredSubscription | Route | None, refusals: int = 0) -> Job:
    """Return the job of a delivery."""
    size = len(delivery.body)
    return Job(delivery, to, delivery.seq, delivery.redrives, size, refusals)


def read_subscriptions(jobs: list[Job]) -> Script[None]:
    """Read the subscriptions of jobs whose routes are not remembered."""
    ids = [job.delivery.subscription_id for job in jobs]
    found = yield from subscriptions.by_ids(ids)
    for job in jobs:
        job.to = found.get(job.delivery.subscription_id)
