"""Each check of the simulation detects a broken promise, by a handwritten history."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pushkit import NotifyResult
from pushkit.delivery.reporting import RefusedRecipient
from pushkit.storage.script import to_micros
from tests.verification.simulation.attacks import Attacker
from tests.verification.simulation.cases import Case, MailboxCase
from tests.verification.simulation.disk import QueueRow
from tests.verification.simulation.ledger import Call, Notice
from tests.verification.simulation.loop import Process
from tests.verification.simulation.secrecy import CANARY, WEBHOOK_SECRET, Secrets
from tests.verification.simulation.webhook import Arrival
from tests.verification.simulation.world import EPOCH

_AT = datetime(2026, 1, 1, tzinfo=UTC)
_JWT = "eyJhbGciOiJFUzI1NiIsImtpZCI6.eyJpc3MiOiJodHRwczovL2EifQ.c2lnbmF0dXJl"


@pytest.fixture
def case() -> Iterator[Case]:
    case = Case()
    yield case
    case.close()


def _notified(case: Case, *ids: str, **facts: Any) -> Notice:
    notice = Notice("task#0", 0.0, "task", ids=list(ids), **facts)
    case.promises.notices.append(notice)
    return notice


def _taken_twice(case: Case) -> None:
    case.store("one")
    case.arrive("one", 204, answered_at=0.1)
    case.pass_time(60)
    case.arrive("one")


def _out_of_order(case: Case) -> None:
    case.store("second", seq=2)
    case.arrive("second", 204)
    case.store("first", seq=1)
    case.arrive("first", 204)


def _overtaken(state: str) -> Callable[[Case], None]:
    def history(case: Case) -> None:
        case.store("first", seq=1, state=state)
        case.store("second", seq=2)
        case.arrive("second", 204)

    return history


def _without_a_lease(case: Case) -> None:
    case.store("one", lease_worker="worker of agent1.1")
    case.arrive("one", 204)


def _unwanted(case: Case) -> None:
    case.store("one")
    with case.promises.instructions.record("task", "owner", "unsubscribe") as answer:
        answer.append(1)
    case.pass_time(60)
    case.arrive("one", 204)


def _forgotten(case: Case) -> None:
    case.subscribe()
    wanting = case.promises.wanting("task")
    case.promises.acknowledged(_notified(case), NotifyResult(at=_AT), wanting)


def _end_refused(case: Case) -> None:
    _refused(case, owner="mallory", shape="completed")


def _refused(case: Case, owner: str = "owner", shape: str = "status") -> None:
    refusal = RefusedRecipient(
        owner=owner,
        config_id="",
        subscription_id="sub",
        origin="",
        code="backlog_full",
        message="",
    )
    result = NotifyResult(refused=(refusal,), at=_AT)
    notice = _notified(case)
    notice.shape = shape
    case.promises.acknowledged(notice, result, set())


def _finished(state: str, **columns: Any) -> Callable[[Case], None]:
    def history(case: Case) -> None:
        case.store("one", state=state, **columns)
        case.check_end()

    return history


def _not_moved(case: Case) -> None:
    case.subscribe(origin="https://hook1.example.com")
    case.store("one")
    case.arrive("one", 204)


def _given_twice(case: Case) -> None:
    for name in ("one", "two"):
        case.store(name, state="delivered", subscription_id=f"{name} that was set")
        case.arrive(name, 204)
    case.check_end()


def _lost(case: Case) -> None:
    _notified(case, "one")
    case.check_end()


def _unfair(case: Case) -> None:
    case.store("one")
    _notified(case, "one", acknowledged_at=0.0)
    case.pass_time(30)
    case.arrive("one", 204)
    case.promises.check_fairness()


def _answered_by_another(case: Case) -> None:
    case.store("one", state="delivered")
    case.arrive("one", 200)
    case.outbox.select(
        "INSERT INTO pushkit_attempts (delivery_id, number, started_at, duration, outcome, answer)"
        " VALUES ('one', 1, 0, 0, 'delivered', ?)",
        b"two",
    )
    case.check_end()


def _called_twice(case: Case) -> None:
    case.store("one")
    case.call_back("one").ended = case.world.loop.time()
    case.call_back("one")


def _called_without_the_lease(case: Case) -> None:
    case.store("one")
    case.accept("one", lease_worker="worker of agent1.1")
    case.call_back("one")


def _called_before_another(case: Case) -> None:
    for place, name in enumerate(("one", "two"), 1):
        case.store(name, seq=place)
        case.accept(name, place=place)
    case.call_back("two")


def _left_in_the_inbox(case: Case) -> None:
    case.accept("one", lease_worker=None)
    case.check_end()


def _left_under_a_lease(case: Case) -> None:
    case.accept("one")
    case.inbox.select("UPDATE pushkit_inbox SET state = 'done'")
    case.check_end()


def _left_without_a_queue(case: Case) -> None:
    case.accept("one", lease_worker=None)
    case.inbox.select("UPDATE pushkit_inbox SET state = 'done'")
    case.inbox.select("DELETE FROM pushkit_inbox_queues")
    case.check_end()


def _flooded(case: Case) -> None:
    for number in range(21):
        case.accept(str(number), sender="other", place=number + 1)
    no_key: Any = None
    attacker = Attacker(
        case.world, no_key, case.promises.inboxes, case.promises.instructions, {}, quota=20
    )
    attacker.judge("recv0", "a flood of one", b"HTTP/1.1 202 Accepted\r\n\r\n", {202})


def _moved(table: str, before: str | None, after: str | None) -> Callable[[Case], None]:
    return lambda case: case.promises.moved(table, before, after, None)


def _leased(agent: str = "agent0", **changes: Any) -> Callable[[Case], None]:
    """Change the row of a queue that a worker leases."""
    by = Process(f"{agent}.1", "198.51.100.1")
    return lambda case: case.promises.queue_changed(_ROW, _ROW._replace(**changes), by)


def _deleted(case: Case) -> None:
    case.promises.queue_changed(_ROW, None, None, inbox=case.inbox)


def _made_again(epoch: int) -> Callable[[Case], None]:
    """Delete a queue of an inbox, and make it again with an epoch."""

    def history(case: Case) -> None:
        free = _ROW._replace(**_FREE)
        case.promises.queue_changed(free, None, None, inbox=case.inbox)
        case.promises.queue_changed(None, free._replace(epoch=epoch), None, inbox=case.inbox)

    return history


_ROW = QueueRow(
    id="sub",
    lease_worker="worker of agent0.1",
    leased_at=1,
    lease_until=9,
    epoch=5,
    sending_to=3,
    settled_to=1,
    last_seq=4,
    due_at=None,
    abandoned=0,
)
_FREE: dict[str, Any] = {
    "lease_worker": None,
    "leased_at": None,
    "lease_until": None,
    "sending_to": 0,
}


def _answered(what: bytes) -> Callable[[Case], None]:
    def history(case: Case) -> None:
        no_key: Any = None
        attacker = Attacker(case.world, no_key, {}, case.promises.instructions, {}, quota=20)
        attacker.judge("recv0", "a forgery", what, {401})

    return history


@pytest.mark.parametrize(
    ("history", "seen"),
    [
        pytest.param(_taken_twice, "came again after it was accepted", id="taken twice"),
        pytest.param(_out_of_order, "came after seq 2", id="first arrivals out of order"),
        pytest.param(_overtaken("pending"), "overtook", id="overtaken"),
        pytest.param(_overtaken("in_flight"), "overtook", id="overtaken in flight"),
        pytest.param(_without_a_lease, "has its lease", id="sent without the lease"),
        pytest.param(
            _unwanted,
            "sent after it was paused, disabled or removed",
            id="sent after an unsubscribe",
        ),
        pytest.param(_forgotten, "acknowledged, but not stored", id="a subscriber is forgotten"),
        pytest.param(_refused, "refused without a reason", id="refused without a reason"),
        pytest.param(_lost, "acknowledged, but lost", id="lost"),
        pytest.param(_not_moved, "not moved to", id="not moved"),
        pytest.param(_given_twice, "a config gave one seq to several", id="seq given twice"),
        pytest.param(_unfair, "an innocent owner waited 30.0 s", id="unfair"),
        pytest.param(_answered_by_another, "another's answer", id="another's answer"),
        pytest.param(_called_twice, "called back twice", id="called back twice"),
        pytest.param(
            _called_without_the_lease, "has its lease", id="called back without the lease"
        ),
        pytest.param(_called_before_another, "called back two before one", id="called too early"),
        pytest.param(_left_in_the_inbox, "recv0: not called back", id="left in an inbox"),
        pytest.param(
            _left_under_a_lease, "recv0: leased or due", id="a lease of nothing in an inbox"
        ),
        pytest.param(
            _left_without_a_queue, "recv0: its queue is gone", id="a notification without a queue"
        ),
        pytest.param(_deleted, "a queue under a lease was deleted", id="a queue deleted too early"),
        pytest.param(
            _made_again(5), "no change of a queue", id="an epoch that a deleted queue had"
        ),
        pytest.param(_flooded, "recv0 keeps 21 notifications", id="an inbox over its bound"),
        pytest.param(_end_refused, "refused without a reason", id="no place for a task's end"),
        pytest.param(_finished("pending"), "not drained", id="left pending"),
        pytest.param(
            _finished("delivered"),
            "delivered, but accepted by no webhook",
            id="delivered to nobody",
        ),
        pytest.param(
            _finished("cancelled", cancelled_by="operator"),
            "cancelled without an instruction",
            id="cancelled",
        ),
        pytest.param(
            _finished("dead", last_error="rejected"),
            "dead without a reason for its error",
            id="not rejected",
        ),
        pytest.param(
            _finished("dead", last_error="timeout", attempts=8),
            "dead without a reason for its error",
            id="timed out at a host that was well",
        ),
        pytest.param(
            _finished("cancelled", cancelled_by="superseded", status="bare"),
            "cancelled without an instruction",
            id="superseded by nothing",
        ),
        pytest.param(
            _moved("pushkit_deliveries", "delivered", "dead"),
            "no transition of pushkit_deliveries",
            id="a transition of a delivery",
        ),
        pytest.param(
            _moved("pushkit_deliveries", "pending", None),
            "no transition of pushkit_deliveries",
            id="purged before its end",
        ),
        pytest.param(
            _moved("pushkit_deliveries", "pending", "delivered"),
            "no transition of pushkit_deliveries",
            id="settled without the lease",
        ),
        pytest.param(_leased(**_FREE), "no change of a queue", id="an epoch that stays"),
        pytest.param(
            _leased(lease_worker="worker_2", epoch=6), "no change of a queue", id="a lease taken"
        ),
        pytest.param(_leased(sending_to=2), "no change of a queue", id="a memory that shrinks"),
        pytest.param(_leased(sending_to=5), "no change of a queue", id="a memory of nothing"),
        pytest.param(
            _leased("agent1", settled_to=2), "settled what another", id="a foreign result"
        ),
        pytest.param(
            _leased("agent1", epoch=6, due_at=9, **_FREE),
            "settled what another",
            id="a lease that another gives back",
        ),
        pytest.param(_leased(last_seq=3), "no change of a queue", id="a seq that is used again"),
        pytest.param(
            _moved("pushkit_inbox", "done", "in_progress"),
            "no transition of pushkit_inbox",
            id="a transition of a notification",
        ),
        pytest.param(
            _moved("pushkit_inbox", "pending", "done"),
            "no transition of pushkit_inbox",
            id="a notification settled without the lease",
        ),
        pytest.param(
            _answered(b"HTTP/1.1 202 Accepted\r\n\r\n"), "was answered 202", id="accepted"
        ),
        pytest.param(_answered(b"HTTP/1.1 500 Oh\r\n\r\n"), "was answered 500", id="an error"),
        pytest.param(
            _answered(f"HTTP/1.1 401 No\r\n\r\nnot {CANARY}-owner0".encode()),
            "a secret is in an answer",
            id="a secret in an answer",
        ),
    ],
)
def test_a_broken_promise_is_seen(case: Case, history: Callable[[Case], None], seen: str) -> None:
    history(case)

    assert [seen in violation for violation in case.world.violations] == [True]


def test_a_delivery_may_follow_one_that_a_receiver_accepted(case: Case) -> None:
    case.store("first", seq=1)
    case.accept("first")

    case.store("second", seq=2)
    case.arrive("second", 204)

    assert case.world.violations == []


@pytest.mark.parametrize("has_mailboxes", [False, True])
def test_what_a_mailbox_keeps_is_called_back_once_a_client_handled_it(has_mailboxes: bool) -> None:
    case = MailboxCase() if has_mailboxes else Case()
    case.subscribe(origin="https://recv0.example.com")
    case.store("one", state="delivered", origin="https://recv0.example.com")
    for callback in ("client", "audit"):
        case.promises.calls["recv0", callback, "one"] = [Call(case.process, 0.0, "jwt", ended=1.0)]

    case.check_end()
    assert len(case.world.violations) == has_mailboxes
    assert all("delivered to recv0, but never called" in each for each in case.world.violations)

    case.world.violations.clear()
    case.promises.calls["recv0", "mailbox", "one"] = [Call(case.process, 0.0, "jwt", ended=1.0)]
    case.check_end()
    assert case.world.violations == []
    case.close()


def test_after_an_unrequested_answer_a_request_may_get_that_to_another(case: Case) -> None:
    case.store("one", state="delivered")
    case.outbox.select(
        "INSERT INTO pushkit_attempts (delivery_id, number, started_at, duration, outcome, answer)"
        " VALUES ('one', 1, 0, 0, 'delivered', ?)",
        b"two",
    )
    case.world.trouble("babble", whom="hook0")
    case.check_end()
    assert case.world.violations == []


def test_another_body_than_was_stored_is_seen_at_a_webhook_and_in_a_callback(case: Case) -> None:
    case.store("one")

    case.arrive("one", 204, body=b"[]")
    case.call_back("one", body=b"[]")

    assert len(case.world.violations) == 2
    assert all("another body" in violation for violation in case.world.violations)


@pytest.mark.parametrize("sender", ["jwt", "other"])
def test_a_forged_notification_that_is_called_back_is_seen(case: Case, sender: str) -> None:
    case.promises.instructions.is_purged = True  # nothing else may excuse it

    case.call_back("forged_1", sender=sender)

    assert len(case.world.violations) == 1


def _fail(case: Case, name: str, seconds: float = 1.0) -> Arrival:
    """Let a delivery arrive, and fail at once, some time after the one before it."""
    case.pass_time(seconds)
    case.store(name, subscription_id=name)
    failed = case._arrival(name, 500, answered_at=case.world.loop.time())
    case.pacing.arrived(failed)
    return failed


@pytest.mark.parametrize(
    ("waited", "seen"),
    [
        pytest.param(0.1, [], id="it was under way"),
        pytest.param(20.0, ["came while its breaker was open: next"], id="too early"),
        pytest.param(26.0, [], id="it may have opened with the first"),
        pytest.param(30.0, [], id="after the wait"),
    ],
)
def test_a_request_while_a_breaker_is_open_is_seen(
    case: Case, waited: float, seen: list[str]
) -> None:
    for number in range(5):
        _fail(case, f"failed {number}")

    _fail(case, "next", waited)

    assert case.world.violations == seen


def test_a_success_between_failures_keeps_a_breaker_closed(case: Case) -> None:
    for number in range(8):
        _fail(case, f"failed {number}").status = 204 if number == 4 else 500

    assert case.world.violations == []


@pytest.mark.parametrize(
    ("may_wait", "seen"),
    [
        pytest.param(4.5, [], id="while it waits"),
        pytest.param(1.0, ["came while its breaker was open: next"], id="once that is over"),
    ],
)
def test_failures_of_a_destination_that_waits_already_open_no_breaker(
    case: Case, may_wait: float, seen: list[str]
) -> None:
    asking = _fail(case, "asking")
    asking.status, asking.may_wait = 503, may_wait
    case.pass_time(1)
    for number in range(5):
        _fail(case, f"failed {number}")

    _fail(case, "next", 10)

    assert case.world.violations == seen


@pytest.mark.parametrize(
    ("lived_on", "seen"),
    [
        pytest.param(0.1, [], id="before its result was stored"),
        pytest.param(0.6, ["came while its breaker was open: next"], id="after that"),
    ],
)
def test_a_failure_whose_worker_died_opens_no_breaker(
    case: Case, lived_on: float, seen: list[str]
) -> None:
    failed = [_fail(case, f"failed {number}") for number in range(5)]
    failed[-1].process = Process("worker1.1", "198.51.100.1")
    case.pass_time(lived_on)
    case.world.trouble("death", whom="worker1.1")

    _fail(case, "next", 10)

    assert case.world.violations == seen


@pytest.mark.parametrize(
    ("after", "seen"),
    [
        pytest.param(-1, [], id="before it was settled"),
        pytest.param(60, ["came while its breaker was open: probe"], id="long after"),
    ],
)
def test_a_success_that_was_withdrawn_keeps_no_breaker_closed(
    case: Case, after: int, seen: list[str]
) -> None:
    """The breaker may have opened with the failures after it, or with some of before."""
    for number in range(4):
        _fail(case, f"before {number}")
    withdrawn = _fail(case, "withdrawn")
    withdrawn.status = 204
    at = to_micros(EPOCH + timedelta(seconds=(withdrawn.answered_at or 0) + after))
    case.change("withdrawn", state="cancelled", finished_at=at)
    for number in range(5):  # the first one opens it, and the others were under way
        _fail(case, f"after {number}")

    _fail(case, "probe", 20)

    assert case.world.violations == seen


def test_two_requests_at_once_on_probation_are_seen(case: Case) -> None:
    for number in range(5):
        _fail(case, f"failed {number}")
    case.pass_time(30)
    for name in ("probe", "other"):
        case.store(name, subscription_id=name)
        case.ask(name)

    assert case.world.violations == ["came beside another on probation: other"]


def test_two_requests_of_a_subscription_at_once_are_seen_whatever_the_outbox_says(
    case: Case,
) -> None:
    case.store("first", seq=1)
    case.ask("first")
    case.change("first", state="delivered")

    case.store("second", seq=2)
    case.ask("second")

    assert case.world.violations == ["two at once of a subscription: second first"]


def test_a_request_that_its_owner_cancelled_may_overlap_the_next(case: Case) -> None:
    case.store("first", seq=1)
    case.ask("first")
    case.change("first", state="cancelled")

    case.store("second", seq=2)
    case.ask("second")

    assert case.world.violations == []


@pytest.mark.parametrize("late", ["first", "second"])
def test_a_cancelled_request_that_is_brought_back_may_overlap_the_first(
    case: Case, late: str
) -> None:
    case.store("first", seq=1)
    case.ask("first")
    case.pacing.moved("pushkit_deliveries", "cancelled", "pending")
    case.change("first", state="delivered", redriven_at=0)

    case.store("second", seq=2)
    case.ask("second")
    case.ask("first")
    assert case.world.violations == []

    case.pass_time(60)
    case.ask(late)
    assert case.world.violations


def test_a_request_cancelled_in_flight_may_arrive_after_newer_ones(
    case: Case,
) -> None:
    case.store("first", seq=1, state="cancelled")
    case.store("second", seq=2)
    case.arrive("second")
    case.arrive("first")

    assert case.world.violations == []


def test_cancelled_requests_count_in_the_share_of_an_owner(
    case: Case,
) -> None:
    for number in range(4):  # of four slots
        case.store(str(number), subscription_id=f"sub{number}")
        case.ask(str(number))
        case.change(str(number), state="cancelled")

    assert case.world.violations == ["owner has 4 of 4 slots"]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(_FREE | {"epoch": 6}, id="a lease that ends"),
        pytest.param(
            _FREE | {"agent": "agent1", "epoch": 6, "due_at": 9, "abandoned": 1},
            id="one that is over",
        ),
        pytest.param(_FREE | {"agent": "agent1", "epoch": 6, "active": 0}, id="one taken away"),
        pytest.param({"sending_to": 4, "settled_to": 2, "lease_until": 19}, id="one that goes on"),
    ],
)
def test_a_lease_may_end_or_go_on(case: Case, changes: dict[str, Any]) -> None:
    _leased(**changes)(case)

    assert case.world.violations == []


def test_a_queue_of_an_inbox_that_is_made_again_has_a_later_epoch(case: Case) -> None:
    _made_again(6)(case)

    assert case.world.violations == []


@pytest.mark.parametrize(
    ("first", "second", "is_late"),
    [
        pytest.param("input-required", "status", False, id="after an older snapshot"),
        pytest.param("status", "input-required", True, id="a state"),
    ],
)
def test_only_a_task_under_way_may_wait_to_be_gathered(
    case: Case, first: str, second: str, is_late: bool
) -> None:
    case.promises.instructions.gather("task", "owner", 10.0)
    for seq, shape in enumerate((first, second), 1):
        case.store(shape, seq=seq, state="delivered")
        _notified(case, shape, acknowledged_at=0.0, shape=shape)
    case.outbox.select("UPDATE pushkit_subscriptions SET version = '0.3'")
    case.arrive(first, 204)
    case.pass_time(10)
    case.arrive(second, 204)

    case.promises.check_fairness()

    assert bool(case.world.violations) == is_late


def _chunk(*parts: str) -> bytes:
    artifact = {"parts": [{"text": each} for each in parts]}
    update = {"artifact": artifact, "metadata": {"marker": parts[-1]}}
    return json.dumps({"artifactUpdate": update}).encode()


def _whole(state: str) -> bytes:
    return json.dumps({"id": "task", "status": {"state": state}}).encode()


@pytest.mark.parametrize(
    ("older", "newer", "shape", "is_seen"),
    [
        pytest.param(_chunk("a"), _chunk("a", "b"), "chunk", False, id="chunks"),
        pytest.param(_chunk("a"), _chunk("b"), "chunk", True, id="a part is missing"),
        pytest.param(_chunk("a"), _chunk("b"), "artifact", False, id="the artifact anew"),
        pytest.param(_whole("working"), _whole("working"), "task", False, id="whole tasks"),
        pytest.param(_whole("working"), _whole("failed"), "task", True, id="another state"),
    ],
)
def test_what_is_gathered_and_not_said_by_the_next_is_seen(
    case: Case, older: bytes, newer: bytes, shape: str, is_seen: bool
) -> None:
    case.promises.instructions.gather("task", "owner", 1.0)
    case.promises.notices.append(Notice("b", 0.0, "task", shape))
    case.store("gathered", seq=1, state="cancelled", cancelled_by="superseded")
    case.store("next", seq=2, state="delivered")
    for name, body in (("gathered", older), ("next", newer)):
        case.outbox.select("UPDATE pushkit_bodies SET body = ? WHERE id = ?", body, name)
    case.arrive("next", 204, body=newer)

    case.check_end()

    assert bool(case.world.violations) == is_seen


@pytest.mark.parametrize(("deaths", "is_seen"), [(1, False), (2, True)])
@pytest.mark.parametrize("calls", [False, True], ids=["deliveries", "notifications"])
def test_two_that_are_handed_out_after_two_deaths_are_seen(
    case: Case, deaths: int, is_seen: bool, calls: bool
) -> None:
    for place, name in enumerate(("first", "second"), 1):
        case.store(name, seq=place)
        if calls:
            case.accept(name, place=place)
    if calls:
        case.inbox.select("UPDATE pushkit_inbox_queues SET abandoned = ?", deaths)
        case.call_back("first")
    else:
        case.outbox.select("UPDATE pushkit_subscriptions SET abandoned = ?", deaths)
        case.arrive("first")

    said = "first goes beside ['second'], though two workers died"
    assert case.world.violations == ([said] if is_seen else [])


@pytest.mark.parametrize(("deaths", "is_seen"), [(1, False), (0, True)])
def test_a_delivery_is_given_up_only_after_a_death_that_counts(
    case: Case, deaths: int, is_seen: bool
) -> None:
    case.promises.deaths["sub"] = deaths
    case.store("one", state="dead", attempts=8, last_error="worker_died")

    case.check_end()

    assert bool(case.world.violations) == is_seen


@pytest.mark.parametrize(("deaths", "is_seen"), [(1, False), (0, True)])
def test_an_attempt_without_a_request_counts_only_for_a_worker_that_died(
    case: Case, deaths: int, is_seen: bool
) -> None:
    case.store("one", state="delivered", attempts=1)

    case.pacing.check_end({"sub": deaths})

    assert bool(case.world.violations) == is_seen


def test_a_history_that_keeps_every_promise_has_no_violation(case: Case) -> None:
    case.subscribe()
    case.store("one")
    wanting = case.promises.wanting("task")
    case.arrive("one", 503, answered_at=0.1)
    case.pass_time(1)
    case.arrive("one", 204, answered_at=1.1)
    case.change("one", state="delivered")
    notice = _notified(case, "one", acknowledged_at=0.0)
    case.check_end()
    case.promises.check_fairness()

    assert len(wanting) == 1
    assert notice.ids == ["one"]
    assert case.world.violations == []


@pytest.mark.parametrize(
    ("shape", "followed_at", "sent_at", "waited"),
    [
        pytest.param("chunk", None, 10.0, None, id="for the interval"),
        pytest.param("chunk", None, 14.0, 4.0, id="longer"),
        pytest.param("chunk", 5.0, 6.0, None, id="until something follows"),
        pytest.param("chunk", 5.0, 9.0, 4.0, id="beyond that"),
        pytest.param("status", None, 4.0, 4.0, id="what is never gathered"),
    ],
)
def test_an_update_waits_no_longer_than_it_may_be_gathered(
    case: Case, shape: str, followed_at: float | None, sent_at: float, waited: float | None
) -> None:
    case.promises.instructions.gather("task", "owner", 10.0)
    for seq, name in enumerate(("first", "gathered", "second"), 1):
        case.store(name, seq=seq)
        _notified(case, name, acknowledged_at=0.0, shape=shape)
    case.change("gathered", state="cancelled", cancelled_by="superseded")
    case.store("third", seq=4, state="delivered")
    _notified(case, "third", acknowledged_at=followed_at, shape="status")
    case.arrive("first", 204)
    case.change("first", state="delivered")
    case.pass_time(sent_at)
    case.arrive("second", 204)
    case.arrive("third", 204)

    case.promises.check_fairness()

    late = [] if waited is None else ["gathered", "second"]
    assert case.world.violations == [
        f"an innocent owner waited {waited} s for {name}" for name in late
    ]


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(f"token {CANARY}-owner0", id="token"),
        pytest.param(f"secret {WEBHOOK_SECRET}", id="webhook secret"),
        pytest.param(f"header Bearer {_JWT}", id="signed token"),
        pytest.param("-----BEGIN PRIVATE KEY-----", id="private key"),
        pytest.param('{"kty":"EC","d":"abc"}', id="private JWK"),
    ],
)
def test_a_secret_is_found_in_a_log_line_its_attributes_and_its_errors(said: str) -> None:
    found: list[str] = []
    secrets = Secrets(found.append)
    log = logging.getLogger("pushkit.delivery")

    with secrets:
        log.warning("delivery failed: %s", said)
        log.warning("delivery failed", extra={"reason": said})
        error = RuntimeError("on top")
        error.__cause__ = ValueError(said)
        log.error("delivery failed", exc_info=error)
        log.debug("nothing but delivery dlv_019b76db11104adb5ffdf96a250e4ffa")

    assert secrets.lines == 4
    assert len(found) == 3


def test_an_unexpected_error_in_the_log_is_a_violation() -> None:
    found: list[str] = []

    with Secrets(found.append):
        logging.getLogger("pushkit.scheduling").error(
            "deliveries: failed unexpectedly; it comes back"
        )

    assert len(found) == 1
