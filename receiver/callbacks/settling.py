"""Settles queues of the inbox: stores what their callbacks came to, and hands out what is next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pushkit.queue.held import Ask, Reply
from pushkit.queue.leases import advance
from pushkit.queue.rules import Queue
from pushkit.scheduling.retry import RetryPolicy, next_attempt
from pushkit.storage.database import Database
from pushkit.storage.script import DEFERRED, Deferred, Script, to_micros
from receiver.inbox.model import Call, CallbackOutcome, NotificationJob
from receiver.inbox.store import (
    INBOX,
    PUT_OFF,
    Change,
    jobs_of,
    record_calls,
    record_late_calls,
    store_results,
)


@dataclass(slots=True)
class Settled:
    """The result of settling one queue."""

    reply: Reply = field(default_factory=lambda: Reply(kept=False))
    dead: list[NotificationJob] = field(default_factory=list)  # that are dead letters now


@dataclass(frozen=True, slots=True)
class Settler:
    """Settles queues, in the transactions that also store what is accepted."""

    database: Database
    retry: RetryPolicy  # of notifications of which a callback failed

    def script(
        self, asks: Sequence[Ask], /, *, wait: bool = True
    ) -> Script[list[Settled | Deferred]]:
        """Settle queues, in one transaction.

        What was called is a fact, whoever leases the queue by now; all else counts under the epoch.

        Args:
            asks: What the holder says of each queue.
            wait: Whether to wait for queues that another transaction has locked, or to defer them.
        """
        queues, deferred = yield from INBOX.hold([ask.id for ask in asks], wait=wait)
        now = yield from self.database.now()
        settled = {id(ask): Settled() for ask in asks if ask.id not in deferred}
        ours: list[tuple[Queue, Ask]] = []
        for ask in asks:
            queue = queues.get(ask.id)
            if queue is not None and queue.epoch == ask.epoch:
                ours.append((queue, ask))
        stored = yield from self._store(ours, settled, now)
        calls = _calls_of(ask for ask in asks if id(ask) in settled)
        yield from record_calls([call for call in calls if call.notification_id in stored], now=now)
        # Also of one that is settled already, because the outcome of the first commit was unknown.
        late = [call for call in calls if call.notification_id not in stored]
        yield from record_late_calls(late, now=now)
        yield from _advance(ours, settled, to_micros(now))
        return [settled.get(id(ask), DEFERRED) for ask in asks]

    def _store(
        self, ours: list[tuple[Queue, Ask]], settled: dict[int, Settled], now: datetime
    ) -> Script[set[int]]:
        """Store results; return the ids of the notifications that they changed."""
        changes = {
            id(job): self._change(job, now)
            for _, ask in ours
            for job in ask.results
            if job.result.outcome is not CallbackOutcome.LOST
        }
        jobs = [job for _, ask in ours for job in ask.results if id(job) in changes]
        stored = yield from store_results([(job, changes[id(job)]) for job in jobs], now=now)
        for number, (queue, ask) in enumerate(ours):
            ended = [job for job in ask.results if job.notification.id in stored]
            settled[id(ask)].dead += [job for job in ended if changes[id(job)].state == "dead"]
            if ended and queue.abandoned:
                ours[number] = (queue._replace(abandoned=0), ask)
        return stored

    def _change(self, job: NotificationJob, now: datetime) -> Change:
        result = job.result
        assert result is not None  # noqa: S101  # what is settled was attempted
        match result.outcome:
            case CallbackOutcome.DONE | CallbackOutcome.UNMATCHED:
                return Change("done", 1, is_unmatched=result.outcome is CallbackOutcome.UNMATCHED)
            case CallbackOutcome.PUT_OFF:
                again = now + timedelta(seconds=result.pause)
                return Change("pending", 0, PUT_OFF, to_micros(again))
            case CallbackOutcome.FAILED:
                retry_at = next_attempt(
                    self.retry, attempts=job.attempts + 1, since=job.since, now=now
                )
                if retry_at is not None:
                    return Change("pending", 1, result.error, to_micros(retry_at))
        return Change("dead", 1, result.error)


def _calls_of(asks: Iterable[Ask]) -> list[Call]:
    """Return the last calls of each result, which are not recorded yet."""
    calls = (job.result.call for ask in asks for job in ask.results)
    return [call for call in calls if call is not None]


def _advance(
    ours: Sequence[tuple[Queue, Ask]], settled: dict[int, Settled], now: int
) -> Script[None]:
    """Keep or release the queues, and read the next notifications of those that are kept."""
    replies = yield from advance(INBOX, ours, stops=lambda queue: bool(queue.paused), now=now)
    fetched = [(queue, found) for queue, _ in ours if (found := replies[queue.id].jobs)]
    jobs = (yield from jobs_of(fetched)) if fetched else {}
    for queue, ask in ours:
        reply = replies[queue.id]
        settled[id(ask)].reply = reply._replace(jobs=[jobs[job.id] for job in reply.jobs])
