"""The runner: every job is worked off in order, whatever its database does; all comes back."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushkit.errors import StorageError
from pushkit.queue import runner as of_runner
from pushkit.queue.held import KNOWN_FOR, Ask, Consequence, HeldQueue, Memory, Reply
from pushkit.queue.leases import ClaimResult
from pushkit.queue.rules import QUANTUM, GroupKey, Handed, Leased, Room
from pushkit.queue.runner import Due, Renewed, Runner, Seen, seconds
from tests.eventually import eventually

Leap = Callable[..., Awaitable[None]]
FAULT = StorageError("the database refused")


class Job(NamedTuple):
    queue: str
    seq: int
    redrives: int = 0
    size: int = 1


def group_of(queue: str) -> GroupKey:
    """Return the group of a queue, which is named `owner/origin/…`."""
    owner, origin, *_ = queue.split("/")
    return ("", owner, origin)


async def nothing() -> None:
    """Wait for nothing."""


class Toy:
    """Queues of jobs in memory. What it does next is in its lists, the first one first."""

    def __init__(self, **options: object) -> None:
        self.pending: defaultdict[str, list[Job]] = defaultdict(list)
        self.last: Counter[str] = Counter()
        self.epochs: Counter[str] = Counter()
        self.leased = set[str]()
        self.begun: list[Job] = []
        self.stopped = set[str]()  # queues that a look and a settlement stop
        self.on_probation = set[str]()  # queues whose group a look finds on probation
        self.claims_probes = False
        self.extends = True  # whether renewals do: no other transaction holds the rows
        self.calls: Counter[str] = Counter()
        self.faults: dict[str, list[Exception | None]] = {}  # of the next calls, by their name
        # What calls of a name wait for.
        self.before: dict[str, Callable[[], Awaitable[object]]] = {}
        self.answers: list[Consequence | Exception] = []  # of the next attempts
        self.outcomes = dict[Job, Consequence]()
        self.attempting: Callable[[Job], Awaitable[object]] = lambda _: nothing()
        self.runner: Runner[Job] = Runner(
            "jobs",
            self,
            **{
                "permits": 4,
                "per_origin": 2,
                "lease": timedelta(seconds=60),
                "longest": timedelta(seconds=30),
                "longest_pause": timedelta(seconds=60),
                **options,
            },  # type: ignore[arg-type]
        )

    # --- callers ---------------------------------------------------------------------------------

    def store(self, queue: str, jobs: int = 1, *, size: int = 1) -> None:
        """Store jobs of a queue, as another process does."""
        for _ in range(jobs):
            self.last[queue] += 1
            self.pending[queue].append(Job(queue, self.last[queue], size=size))

    def hand(self, queue: str, *, size: int = 1) -> None:
        """Store a job, and hand it to the runner if it has room."""
        took, is_alone = queue not in self.leased, not self.pending[queue]
        self.store(queue, size=size)
        if self.runner.has_room(queue, size) and (is_alone or not took):
            self.epochs[queue] += took
            self.leased.add(queue)
            job, now = self.pending[queue][-1], seconds()
            handed = Handed(queue, group_of(queue), self.epochs[queue], job.seq, took, version=0)
            self.runner.hand(handed, job, since=now, seen_at=now)

    def take_away(self, queue: str) -> None:
        """End the lease of a queue."""
        self.leased.discard(queue)
        self.epochs[queue] += 1

    @property
    def sent(self) -> list[tuple[str, int]]:
        return [(job.queue, job.seq) for job in self.begun]

    # --- `Work` ----------------------------------------------------------------------------------

    async def _called(self, name: str) -> None:
        self.calls[name] += 1
        await self.before.get(name, nothing)()
        fault = self.faults[name].pop(0) if self.faults.get(name) else None
        if fault is not None:
            raise fault

    async def claim(self, room: Room, held: Collection[str]) -> ClaimResult:  # noqa: ARG002
        chosen, taken, waiting = list[Leased](), Counter[str](), set[GroupKey]()
        await self._called("claim")
        for queue, jobs in self.pending.items():
            group = group_of(queue)
            if not jobs or queue in self.leased or queue in self.stopped:
                continue
            if len(chosen) >= room.queues or taken[group[2]] >= room.of_origin(group[2]):
                waiting.add(group)
                continue
            taken[group[2]] += 1
            self.leased.add(queue)
            self.epochs[queue] += 1
            some = jobs[:QUANTUM]
            upto, is_probe = some[-1].seq, self.claims_probes
            chosen.append(Leased(queue, group, self.epochs[queue], some, upto, is_probe=is_probe))
        return ClaimResult(claimed=chosen, waiting=frozenset(waiting))

    async def attempt(self, job: Job) -> Consequence:
        self.begun.append(job)
        await self.attempting(job)
        answer = self.answers.pop(0) if self.answers else Consequence.ACKNOWLEDGED
        if isinstance(answer, Exception):
            raise answer
        self.outcomes[job] = answer
        return answer

    def settle(
        self,
        ask: Ask,
        done: Callable[[Reply | BaseException], None],
        *,
        is_urgent: bool,  # noqa: ARG002
    ) -> None:
        async def settle() -> None:
            try:
                await self._called("settle")
                reply = self._settled(ask)
                await self.before.get("reply", nothing)()
            except BaseException as exc:  # noqa: BLE001  # the runner gets it
                done(exc)
            else:
                done(reply)

        self.runner.keep(asyncio.ensure_future(settle()))

    def _settled(self, ask: Ask) -> Reply:
        if ask.epoch != self.epochs[ask.id] or ask.id not in self.leased:
            return Reply(kept=False)
        jobs = self.pending[ask.id]
        for job in ask.results:
            if job in jobs and self.outcomes[job] is not Consequence.RETRY:
                jobs.remove(job)
        more = [job for job in jobs if job.seq not in ask.has][: ask.more]
        if ask.id in self.stopped:
            more = []
        if ask.releases or not (ask.has or more):
            self.take_away(ask.id)
            return Reply(kept=False, is_due=bool(jobs) and ask.id not in self.stopped)
        upto = more[-1].seq if more else 0
        return Reply(True, more, upto, ask.id in self.stopped)

    async def look(self, ids: Sequence[str]) -> Mapping[str, Seen]:
        await self._called("look")
        return {
            each: Seen(
                self.epochs[each], each in self.stopped, on_probation=each in self.on_probation
            )
            for each in ids
        }

    async def renew(self, held: Mapping[str, int]) -> Renewed:
        await self._called("renew")
        ours = {each for each, epoch in held.items() if epoch == self.epochs[each]}
        return Renewed(ours, ours if self.extends else ())

    async def due(self) -> Due:
        await self._called("due")
        return Due(now=any(self.pending[each] for each in self.pending if each not in self.leased))


LARGE = 2**26  # bytes: no more fit into memory
A, B = "a/x/1", "b/y/1"


def assert_at_rest(toy: Toy) -> None:
    """Check that nothing is under way, and that what was taken was given back."""
    runner = toy.runner
    assert runner.is_idle
    assert runner.scheduler.free == 4
    assert not runner.scheduler.has_waiting
    runner.is_open = True
    assert runner.has_room("new", 1)


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
def leap(monkeypatch: pytest.MonkeyPatch) -> Leap:
    """Return what lets the runner's clock leap: by default, beyond what it knows of a queue."""
    leapt, awake = 0.0, of_runner.seconds
    monkeypatch.setattr(of_runner, "seconds", lambda: awake() + leapt)

    async def leap(seconds: float = KNOWN_FOR + 0.01) -> None:
        nonlocal leapt
        leapt += seconds

    return leap


async def drained(toy: Toy) -> None:
    """Work off what there is, whatever fails at first."""
    async with asyncio.timeout(60):
        while any(toy.pending.values()):
            try:
                await toy.runner.run_once()
            except Exception:  # noqa: BLE001  # the test's
                toy.calls["failed"] += 1
            # Leases of queues that were forgotten end.
            for each in toy.leased.difference(toy.runner.memory.queues):
                toy.take_away(each)


_FAULTS = st.lists(st.sampled_from([None, None, FAULT, ValueError("a defect")]), max_size=4)


@given(
    st.lists(
        st.tuples(st.sampled_from(["store", "hand", "round"]), st.sampled_from("abc")), max_size=25
    ),
    st.fixed_dictionaries({"claim": _FAULTS, "settle": _FAULTS, "look": _FAULTS}),
    st.lists(
        st.sampled_from([*Consequence, Consequence.ACKNOWLEDGED, ValueError("a defect")]),
        max_size=12,
    ),
)
def test_all_is_sent_in_order_and_all_comes_back_whatever_fails(
    stored: list[tuple[str, str]],
    faults: dict[str, list[Exception | None]],
    answers: list[Consequence],
) -> None:
    async def check() -> None:
        toy = Toy()
        toy.faults, toy.answers, toy.runner.is_open = faults, list(answers), True
        for action, owner in stored:
            if action == "store":
                toy.store(f"{owner}/x/1")
            elif action == "hand":
                toy.hand(f"{owner}/x/1")
            else:
                await asyncio.sleep(0)
        await drained(toy)
        assert_at_rest(toy)
        for queue, last in toy.last.items():
            sent = [seq for name, seq in toy.sent if name == queue]
            assert set(sent) == set(range(1, last + 1))
            # What was answered and not settled is sent again, and what follows it, too.
            assert all(later <= before + 1 for before, later in pairwise(sent))

    asyncio.run(check())


@pytest.mark.parametrize("moment", ["before it began", "in the attempt", "in the look"])
async def test_permits_and_bytes_come_back_from_what_is_cancelled(
    toy: Toy, leap: Leap, moment: str
) -> None:
    gate = asyncio.Event()

    async def wait(*_: object) -> None:
        gate.set()
        await asyncio.Event().wait()

    toy.store(A, size=LARGE)
    if moment == "in the look":
        toy.before["look"] = wait
        toy.before["claim"] = leap
    elif moment == "in the attempt":
        toy.attempting = wait
    await toy.runner.fill()
    if moment == "before it began":
        toy.runner._pump()  # it runs in a callback of the loop
    else:
        await gate.wait()
    await toy.runner.abandon()
    assert_at_rest(toy)


@pytest.mark.parametrize("fault", [FAULT, ValueError("a defect")], ids=["storage", "defect"])
async def test_a_look_that_fails_is_repeated(toy: Toy, leap: Leap, fault: Exception) -> None:
    toy.faults["look"] = [fault]
    toy.before["claim"] = leap
    toy.store(A)
    await toy.runner.run_once()
    assert toy.sent == [(A, 1)]
    assert_at_rest(toy)


async def test_jobs_begin_however_slowly_the_database_answers(toy: Toy, leap: Leap) -> None:
    for name in ("claim", "look"):
        toy.before[name] = leap
    toy.store(A, 2)
    async with asyncio.timeout(10):
        await toy.runner.run_once()
    assert toy.sent == [(A, 1), (A, 2)]


@pytest.mark.parametrize("is_probe", [True, False])
async def test_on_probation_only_a_probe_begins(toy: Toy, leap: Leap, is_probe: bool) -> None:
    toy.claims_probes = is_probe
    toy.on_probation.add(A)
    toy.before["claim"] = leap
    toy.store(A)
    await toy.runner.run_once()
    assert toy.sent == ([(A, 1)] if is_probe else [])
    assert_at_rest(toy)


async def test_a_defect_in_an_attempt_keeps_no_room(toy: Toy) -> None:
    toy.store(A, size=LARGE)
    toy.answers = [ValueError("a defect")]
    await toy.runner.run_once()
    assert_at_rest(toy)


async def test_a_new_lease_ends_what_was_known_of_an_older_one(toy: Toy) -> None:
    gate = asyncio.Event()
    toy.attempting = lambda _: gate.wait()
    for number in range(4):  # all permits of the origin are taken
        toy.store(f"a/x/{number}", size=LARGE // 4)
    await toy.runner.fill()
    [*held] = list(toy.runner.memory.queues)
    await eventually(lambda: len(toy.begun) == 2)
    waiting = next(each for each in held if each not in [job.queue for job in toy.begun])
    toy.take_away(waiting)
    toy.runner._bytes = 0  # a claim needs room
    await toy.runner.fill()
    gate.set()
    await toy.runner.drain()
    assert toy.sent.count((waiting, 1)) == 1


async def test_a_reply_that_comes_after_its_lease_brings_no_jobs(toy: Toy) -> None:
    replies = asyncio.Event()
    toy.before["reply"] = replies.wait
    toy.store(A, 8)
    toy.store(A, size=LARGE)
    running = asyncio.ensure_future(toy.runner.run_once())
    await eventually(lambda: toy.calls["settle"])
    toy.take_away(A)
    await toy.runner.renew()
    replies.set()
    await running
    assert_at_rest(toy)


async def test_a_claim_that_ends_while_the_runner_finishes_begins_nothing(toy: Toy) -> None:
    claimed = asyncio.Event()
    toy.before["claim"] = claimed.wait
    toy.store(A)
    filling = asyncio.ensure_future(toy.runner.fill())
    await eventually(lambda: toy.calls["claim"])
    finishing = asyncio.ensure_future(toy.runner.finish(timedelta(seconds=30)))
    await asyncio.sleep(0)
    claimed.set()
    await asyncio.gather(filling, finishing)
    assert not toy.begun
    assert not toy.leased
    assert_at_rest(toy)


async def test_what_is_due_is_claimed_once_there_is_room_again(toy: Toy) -> None:
    gate = asyncio.Event()
    toy.attempting = lambda job: gate.wait() if job.queue == A else asyncio.sleep(0)
    toy.store(A, size=LARGE)
    running = asyncio.ensure_future(toy.runner.run())
    await eventually(lambda: toy.begun)
    toy.store(B)
    toy.runner.wake()
    await asyncio.sleep(0)
    gate.set()
    await eventually(lambda: (B, 1) in toy.sent, within=20)
    running.cancel()


@pytest.mark.parametrize("seconds", [0, 0.05], ids=["at once", "after a while"])
async def test_a_settlement_that_fails_is_repeated_and_nothing_is_sent_twice(
    toy: Toy, seconds: float
) -> None:
    toy.before["settle"] = lambda: asyncio.sleep(seconds)
    toy.faults["settle"] = [FAULT, FAULT]
    toy.store(A, 12)
    await toy.runner.run_once()
    assert toy.sent == [(A, seq) for seq in range(1, 13)]
    assert_at_rest(toy)


async def test_jobs_begin_however_often_other_queues_are_changed(toy: Toy, leap: Leap) -> None:
    async def change_another() -> None:
        toy.runner.doubt([B])

    toy.before.update(claim=leap, look=change_another)
    toy.store(A, 2)
    async with asyncio.timeout(10):
        await toy.runner.run_once()
    assert toy.sent == [(A, 1), (A, 2)]


async def test_a_queue_that_is_stopped_between_two_jobs_begins_no_more(toy: Toy) -> None:
    async def stop(_: object) -> None:
        toy.stopped.add(A)
        toy.runner.doubt([A])

    toy.attempting = stop
    toy.store(A, 3)
    await toy.runner.run_once()
    assert toy.sent == [(A, 1)]
    assert not toy.leased
    assert_at_rest(toy)


@pytest.mark.parametrize("extends", [False, True])
async def test_a_lease_is_relied_upon_as_far_as_it_was_extended(toy: Toy, extends: bool) -> None:
    toy.store(A)
    await toy.runner.fill()
    [queue] = toy.runner.memory.queues.values()
    until, toy.extends = queue.until, extends
    await toy.runner.renew()
    assert (queue.until > until) is extends
    assert toy.runner.memory.queues[A] is queue
    await toy.runner.drain()
    assert_at_rest(toy)


async def test_a_queue_keeps_its_lease_while_it_is_being_settled(toy: Toy) -> None:
    gate = asyncio.Event()
    toy.before["settle"] = gate.wait
    toy.store(A)
    await toy.runner.fill()
    await eventually(lambda: toy.calls["settle"])
    [queue] = toy.runner.memory.queues.values()
    until = queue.until
    await toy.runner.renew()
    assert queue.until > until
    gate.set()
    await toy.runner.drain()
    assert_at_rest(toy)


async def test_what_is_due_is_claimed_though_no_look_for_it_is_answered_in_time() -> None:
    toy = Toy(longest_pause=timedelta(milliseconds=20))
    toy.before["due"] = asyncio.Event().wait
    toy.store(A)
    running = asyncio.create_task(toy.runner.run())
    await eventually(lambda: toy.sent == [(A, 1)])
    running.cancel()


async def test_an_idle_runner_does_nothing(toy: Toy) -> None:
    running = asyncio.ensure_future(toy.runner.run())
    await eventually(lambda: toy.calls["due"])
    before = toy.calls.copy()
    await asyncio.sleep(0.1)
    assert toy.calls == before
    running.cancel()


# --- jobs that hang --------------------------------------------------------------------------


def hang_in_first_of(toy: Toy, queue: str) -> asyncio.Event:
    """Let the first job of a queue give its permit up, and go on until the event is set."""
    go_on = asyncio.Event()

    async def hang(job: Job) -> None:
        if (job.queue, job.seq) == (queue, 1):
            task = asyncio.current_task()
            assert task is not None
            toy.runner.give_permit_up(task)
            toy.runner.give_permit_up(task)  # does nothing: it has none
            await go_on.wait()

    toy.attempting = hang
    return go_on


async def test_a_job_that_hangs_frees_its_permit_and_its_queue_goes_on_after_it() -> None:
    toy = Toy(permits=1, per_origin=1)
    go_on = hang_in_first_of(toy, A)
    toy.store(A, 2)
    toy.store(B, 2)
    await toy.runner.run_once()
    assert toy.sent == [(A, 1), (B, 1), (B, 2)]
    assert (toy.runner.scheduler.free, toy.leased) == (1, {A})
    go_on.set()
    await eventually(lambda: not toy.leased)
    assert toy.sent[3:] == [(A, 2)]
    assert toy.runner.scheduler.free == 1


async def test_a_queue_whose_job_hung_begins_no_other_job_without_a_permit() -> None:
    toy = Toy(permits=1, per_origin=1)
    go_on, gate = hang_in_first_of(toy, A), asyncio.Event()
    hang = toy.attempting
    toy.attempting = lambda job: hang(job) if job.queue == A else gate.wait()
    toy.store(A, 2)
    toy.store(B)
    running = asyncio.ensure_future(toy.runner.run_once())
    await eventually(lambda: (B, 1) in toy.sent)
    go_on.set()
    await eventually(lambda: Job(A, 1) not in toy.pending[A])
    assert toy.sent == [(A, 1), (B, 1)]
    gate.set()
    await running
    assert toy.sent == [(A, 1), (B, 1), (A, 2)]


async def test_the_end_does_not_wait_for_a_job_that_hangs(toy: Toy) -> None:
    go_on = hang_in_first_of(toy, A)
    toy.store(A, 2)
    toy.store(B)
    await toy.runner.fill()
    async with asyncio.timeout(30):
        await toy.runner.finish(timedelta(seconds=60))
    assert toy.leased == {A}
    go_on.set()
    await eventually(lambda: not toy.leased)
    assert toy.sent == [(A, 1), (B, 1)]


# --- one unsettled job -----------------------------------------------------------------------


async def test_a_job_begins_only_once_the_one_before_it_is_settled() -> None:
    toy, gate = Toy(most_unsettled=1), asyncio.Event()
    toy.before["settle"] = gate.wait
    toy.store(A, 3)
    toy.runner.is_open = True
    running = asyncio.ensure_future(toy.runner.run_once())
    await eventually(lambda: toy.calls["settle"])
    toy.hand(A)
    assert toy.sent == [(A, 1)]
    gate.set()
    del toy.before["settle"]
    await running
    assert toy.sent == [(A, seq) for seq in range(1, 5)]
    assert toy.calls["settle"] >= 4
    assert_at_rest(toy)


async def test_a_turn_that_is_cancelled_once_its_job_is_done_does_not_delay_its_queue() -> None:
    toy = Toy(most_unsettled=1)

    async def cancel_the_turn(_: Job) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    toy.attempting = cancel_the_turn
    toy.store(A, 3)
    await toy.runner.run_once()
    assert toy.sent == [(A, 1), (A, 2), (A, 3)]
    assert_at_rest(toy)


# --- long outages ----------------------------------------------------------------------------


@pytest.mark.parametrize("insists", [True, False])
@pytest.mark.parametrize("is_retired", [False, True])
async def test_a_result_is_insisted_on_beyond_the_lease_until_the_worker_is_retired(
    insists: bool, is_retired: bool, leap: Leap
) -> None:
    toy = Toy(insists=insists)
    toy.faults["settle"] = [FAULT] * 4
    toy.store(A, 2)
    await toy.runner.fill()
    await eventually(lambda: toy.calls["settle"])
    await leap(600.0)
    if is_retired:
        toy.runner.retire()
    await toy.runner.drain()
    is_stored = insists and not is_retired
    assert toy.sent == [(A, 1), (A, 2)]
    assert (toy.pending[A] == []) is is_stored
    assert_at_rest(toy)


async def test_what_cannot_be_stored_at_the_end_is_tried_no_more() -> None:
    toy = Toy(insists=True)
    toy.faults["settle"] = [FAULT] * 1000
    toy.store(A)
    await toy.runner.fill()
    await eventually(lambda: toy.calls["settle"])
    await toy.runner.renew()
    toy.take_away(A)
    await toy.runner.renew()  # it learns that its lease is over
    assert not toy.runner.is_idle  # it has a result yet
    await toy.runner.finish(timedelta(0))
    assert_at_rest(toy)


async def test_leases_are_renewed_while_the_last_jobs_end() -> None:
    toy = Toy(lease=timedelta(seconds=0.4), longest=timedelta(seconds=0.25))
    gate = asyncio.Event()
    toy.attempting = lambda _: gate.wait()
    toy.store(A)
    await toy.runner.fill()
    await eventually(lambda: toy.begun)
    finishing = asyncio.ensure_future(toy.runner.finish(timedelta(seconds=60)))
    await eventually(lambda: toy.calls["renew"] >= 3)
    gate.set()
    await finishing
    assert_at_rest(toy)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no eager tasks before Python 3.12")
async def test_attempts_that_wait_for_nothing_end_in_an_event_loop_of_eager_tasks(
    toy: Toy, caplog: pytest.LogCaptureFixture
) -> None:
    eager = asyncio.eager_task_factory  # type: ignore[attr-defined,unused-ignore]
    asyncio.get_running_loop().set_task_factory(eager)
    toy.before["settle"] = lambda: asyncio.sleep(0)
    for queue in (A, B):
        toy.store(queue, 3)

    await toy.runner.run_once()

    assert sorted(toy.sent) == [(A, 1), (A, 2), (A, 3), (B, 1), (B, 2), (B, 3)]
    assert caplog.text == ""
    assert_at_rest(toy)


# --- the memory, without the loops around it -------------------------------------------------


def test_a_queue_that_moved_to_another_origin_counts_there_alone() -> None:
    memory = Memory[Any]()

    def lease(origin: str, epoch: int) -> HeldQueue[Any] | None:
        leased = Leased("queue", ("", "alice", origin), epoch, (), 0)
        return memory.claimed(leased, until=1.0, seen_at=0.0)

    lease("https://one.example.com:443", 1)
    moved = lease("https://two.example.com:443", 3)  # its first lease ended unheard
    assert memory.at_origin == {"https://two.example.com:443": 1}

    assert moved is not None
    memory.forget(moved)
    assert not memory.at_origin


async def test_a_claim_follows_once_what_was_held_is_settled() -> None:
    """All turns of an origin end while the memory is full of it; then their leases end."""
    toy = Toy(permits=4, per_origin=4, most_held=lambda: 4, is_alone=lambda: True)
    gate = asyncio.Event()
    toy.attempting = lambda _: gate.wait()
    for number in range(6):
        toy.store(f"a/x/{number}")
    running = asyncio.create_task(toy.runner.run())
    await eventually(lambda: len(toy.begun) == 4, within=3)
    await asyncio.sleep(0.1)
    gate.set()
    try:
        await eventually(lambda: len(toy.begun) == 6, within=3)
    finally:
        running.cancel()


async def test_what_is_stored_during_a_claim_is_claimed_once_there_is_room() -> None:
    toy = Toy(permits=1, per_origin=1, most_held=lambda: 1)
    gate = asyncio.Event()
    toy.attempting = lambda _: gate.wait()
    toy.store("a/x/0")
    claim = toy.claim

    async def claiming(room: Room, held: Collection[str]) -> ClaimResult:
        result = await claim(room, held)
        if toy.calls["claim"] == 2:  # stored after the claim has read, and before its reply
            toy.store("a/x/1")
            toy.runner.wake_for("x")
        return result

    toy.claim = claiming  # type: ignore[method-assign]
    running = asyncio.create_task(toy.runner.run())
    await eventually(lambda: len(toy.begun) == 1)
    toy.store("b/y/0")  # something else is due, so that a claim is made
    toy.runner.wake()
    await eventually(lambda: toy.calls["claim"] == 2)
    await asyncio.sleep(0.1)
    gate.set()
    try:
        await eventually(lambda: ("a/x/1", 1) in toy.sent, within=3)
    finally:
        running.cancel()


async def test_no_look_follows_each_turn_once_others_have_claimed_the_rest() -> None:
    toy = Toy(permits=4, per_origin=1)
    gate = asyncio.Event()
    toy.attempting = lambda _: gate.wait()
    for number in range(6):
        toy.store(f"a/x/{number}")
    running = asyncio.create_task(toy.runner.run())
    await eventually(lambda: toy.begun)
    assert toy.runner._crowded == {"x"}
    for name in list(toy.pending):  # another process claims and sends the rest
        if name not in toy.leased:
            toy.pending[name].clear()
    gate.set()
    await eventually(lambda: not toy.runner.memory.queues)
    await asyncio.sleep(0.1)
    before = toy.calls["due"]
    toy.runner.is_open = True
    for number in range(50):
        toy.hand(f"a/x/new{number}")
        await eventually(lambda: not toy.runner.memory.queues)
        await asyncio.sleep(0.01)
    running.cancel()
    assert toy.calls["due"] - before <= 2


async def test_the_end_does_not_wait_for_a_settlement_whose_lease_was_lost(
    leap: Leap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_runner, "_FIRST_RETRY", 0.5)
    toy = Toy(lease=timedelta(hours=2), longest=timedelta(hours=1))
    toy.before["claim"] = leap  # so that the row is looked at
    toy.on_probation.add(A)  # then its lease is given up, which the database refuses once
    toy.faults["settle"] = [FAULT] * 10
    toy.store(A)
    await toy.runner.fill()
    await eventually(lambda: toy.runner._retries, within=3)
    finishing = asyncio.create_task(toy.runner.finish(timedelta(seconds=30)))
    await asyncio.sleep(0.05)
    toy.take_away(A)
    assert toy.runner._retries
    toy.faults.clear()
    await toy.runner.renew()  # the heartbeat finds that the lease is over
    async with asyncio.timeout(3):
        await finishing


async def test_what_is_not_sent_uses_no_turn_of_its_origin(leap: Leap) -> None:
    """Queues of a destination on probation give their leases up without its rate."""
    taken = 0

    def take(_: str) -> float:
        nonlocal taken
        taken += 1
        return 0

    toy = Toy(permits=4, per_origin=2, take_turn=take)
    toy.runner.is_open = True
    for each in range(200):
        toy.hand(f"a/x/{each}")
    toy.on_probation.update(toy.pending)
    await leap()
    toy.runner._pump()
    await toy.runner.drain()
    assert not toy.begun
    assert not toy.leased
    assert taken < 5


async def test_a_slow_database_is_not_asked_for_more_the_slower_it_is(leap: Leap) -> None:
    """Each look takes so long that what it found of queues in line is outdated by then."""
    toy = Toy(
        permits=16,
        per_origin=16,
        is_alone=lambda: True,
        lease=timedelta(days=2),
        longest=timedelta(days=1),
    )
    rows = 0
    look = toy.look

    async def looking(ids: Sequence[str]) -> Mapping[str, Seen]:
        nonlocal rows
        rows += len(ids)
        await leap()
        return await look(ids)

    toy.look = looking  # type: ignore[method-assign]
    toy.runner.is_open = True
    for number in range(400):
        toy.hand(f"a/x/{number}")
    await leap()
    await toy.runner.drain()
    assert len(toy.begun) == 400
    assert rows < 3 * 400
