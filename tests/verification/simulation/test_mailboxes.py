"""Each check of mailboxes detects a broken promise, by a handwritten history."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.verification.simulation.cases import MailboxCase
from tests.verification.simulation.mailboxes import (
    MAILBOX_LEASE,
    MAILBOX_TRIES,
)


@pytest.fixture
def case() -> Iterator[MailboxCase]:
    case = MailboxCase()
    yield case
    case.close()


def _again_after_its_ack(case: MailboxCase) -> None:
    one = case.keep("one")
    case.end(case.begin(one))
    case.begin(one)


def _again_before_its_ack(case: MailboxCase) -> None:
    one = case.keep("one")
    case.end(case.begin(one), ack=None)
    case.begin(one, case.other)


def _before_it_is_due(case: MailboxCase) -> None:
    one = case.keep("one")
    failed = case.begin(one)
    failed.failed = True
    case.settle(failed, "nack", 200, asked_at=case.world.loop.time() + 5)
    case.pass_time(4.9)
    case.begin(one)


def _two_at_once(case: MailboxCase) -> None:
    case.begin(case.keep("one", state="done"))
    case.begin(case.keep("two"), case.other)


def _out_of_order(case: MailboxCase) -> None:
    case.keep("one")
    case.begin(case.keep("two"))


def _before_one_that_is_not_kept(case: MailboxCase) -> None:
    case.keep("one", kept=False)
    case.begin(case.keep("two"))


def _lost_a_lease(verb: str, status: int) -> Callable[[MailboxCase], None]:
    def history(case: MailboxCase) -> None:
        case.settle(case.begin(case.keep("one")), verb, status)

    return history


def _settled_a_lost_lease(verb: str) -> Callable[[MailboxCase], None]:
    def history(case: MailboxCase) -> None:
        one = case.keep("one")
        case.world.trouble("freeze", whom="reader1.1", lasts=30.0)
        late = case.begin(one)
        case.pass_time(30)
        case.begin(one, case.other)
        case.settle(late, verb, 200)

    return history


def _refused(case: MailboxCase) -> None:
    case.settle(case.begin(case.keep("one")), "ack", 400)


def _altered(case: MailboxCase) -> None:
    one = case.keep("one")
    one.body = b"[]"
    case.begin(one)


def _deleted(case: MailboxCase) -> None:
    one = case.keep("one")
    case.inbox.select("DELETE FROM pushkit_inbox")
    case.begin(one)


def _left(case: MailboxCase) -> None:
    case.keep("one")
    case.mailboxes.check_end()


def _left_under_a_lease(case: MailboxCase) -> None:
    case.inbox.select(
        "INSERT INTO pushkit_mailbox_queues (id, tenant, owner, origin, lease_worker)"
        " VALUES ('task', '', '', '', 'laptop')"
    )
    case.mailboxes.check_end()


def _not_kept(case: MailboxCase) -> None:
    case.keep("one", kept=False)
    case.mailboxes.check_end()


def _not_handled(case: MailboxCase) -> None:
    case.begin(case.keep("one", state="done"))
    case.mailboxes.check_end()


def _given_up(case: MailboxCase) -> None:
    case.keep("one", state="dead", attempts=MAILBOX_TRIES - 1)
    case.mailboxes.check_end()


@pytest.mark.parametrize(
    ("history", "seen"),
    [
        pytest.param(
            _again_after_its_ack, "handled again after its ack was answered", id="after its ack"
        ),
        pytest.param(_again_before_its_ack, "handled again: one", id="before its ack"),
        pytest.param(_before_it_is_due, "before it was due: one", id="before it is due"),
        pytest.param(_two_at_once, "two clients inside of one task", id="two at once"),
        pytest.param(_out_of_order, "handled two before one", id="out of order"),
        pytest.param(_before_one_that_is_not_kept, "handled two before one", id="kept too early"),
        pytest.param(_lost_a_lease("renew", 409), "a client lost its lease", id="a lease lost"),
        pytest.param(_lost_a_lease("ack", 409), "a client lost its lease", id="an ack too late"),
        pytest.param(_lost_a_lease("ack", 404), "a client lost its lease", id="a receipt lost"),
        pytest.param(
            _settled_a_lost_lease("ack"), "ack under a lease that reader2.1 has", id="a late ack"
        ),
        pytest.param(
            _settled_a_lost_lease("renew"), "renew under a lease that", id="a late renewal"
        ),
        pytest.param(_refused, "ack of one was answered 400", id="refused"),
        pytest.param(_altered, "not as the inbox has it", id="another body"),
        pytest.param(_deleted, "not as the inbox has it", id="deleted"),
        pytest.param(_left, "recv0: left in its mailbox", id="left"),
        pytest.param(_left_under_a_lease, "its mailbox has nothing left", id="a lease of nothing"),
        pytest.param(_not_kept, "recv0: not kept in its mailbox", id="not kept"),
        pytest.param(_not_handled, "recv0: acked, but not handled", id="not handled"),
        pytest.param(_given_up, "recv0: given up too early", id="given up"),
    ],
)
def test_a_broken_promise_is_seen(
    case: MailboxCase, history: Callable[[MailboxCase], None], seen: str
) -> None:
    history(case)

    assert [seen in violation for violation in case.world.violations] == [True]


def test_a_history_that_keeps_every_promise_has_no_violation(case: MailboxCase) -> None:
    first, second, apart = case.keep("one"), case.keep("two"), case.keep("three", task="apart")
    failed = case.begin(first)
    case.begin(apart, case.other)
    failed.failed = True
    case.settle(failed, "nack", 200, asked_at=case.world.loop.time() + 5)
    case.pass_time(5)
    handled = case.begin(first, case.other)
    case.settle(handled, "renew", 200)
    case.end(handled)
    case.settle(handled, "ack", 200)  # the same again is answered alike
    case.settle(handled, "renew", 409)  # it crossed the ack
    case.end(case.begin(second))
    case.end(case.calls["recv0", "mailbox", "three"][0])
    case.mailboxes.check_end()

    assert case.world.violations == []
    assert case.mailboxes.is_drained()


@pytest.mark.parametrize(
    ("kind", "whom", "excuses"),
    [
        pytest.param("freeze", "reader1.1", True, id="the client stands still"),
        pytest.param("freeze", "reader2.1", False, id="another client stands still"),
        pytest.param("network", "reader1", True, id="the client is cut off"),
        pytest.param("network", "reader2", False, id="another client is cut off"),
        pytest.param("network", "recv0", True, id="the service is cut off"),
        pytest.param("names", "recv0", True, id="the service has no address"),
        pytest.param("network", "hook0", False, id="a webhook is cut off"),
        pytest.param("stop", "recv0.1", True, id="the service stops"),
        pytest.param("death", "twin0.1", True, id="the other service dies"),
        pytest.param("death", "recv1.1", False, id="another receiver dies"),
        pytest.param("death", "reader2.1", False, id="another client dies"),
        pytest.param("disk", "", True, id="the database is away"),
        pytest.param("blip", "", False, id="the database fails for a moment"),
        pytest.param("clock", "", False, id="the agents' clock"),
    ],
)
def test_only_what_keeps_a_client_from_renewing_excuses_the_end_of_its_lease(
    case: MailboxCase, kind: str, whom: str, excuses: bool
) -> None:
    handling = case.begin(case.keep("one"))
    case.pass_time(5)
    case.world.trouble(kind, whom=whom, lasts=5.0)
    case.pass_time(5)
    case.served.append(case.world.loop.time())
    case.settle(handling, "renew", 409)

    assert bool(case.world.violations) is not excuses


@pytest.mark.parametrize(("verb", "excuses"), [("nack", True), ("ack", False), ("renew", False)])
def test_a_nack_may_have_been_stored_though_the_database_failed_for_a_moment(
    case: MailboxCase, verb: str, excuses: bool
) -> None:
    handling = case.begin(case.keep("one"))
    case.world.trouble("blip", lasts=1.0)
    case.pass_time(1)
    case.settle(handling, verb, 409)

    assert bool(case.world.violations) is not excuses


@pytest.mark.parametrize(("served", "excuses"), [(True, False), (False, True)])
def test_a_service_that_died_excuses_lost_leases_until_it_is_back(
    case: MailboxCase, served: bool, excuses: bool
) -> None:
    case.world.trouble("death", whom="recv0.1")
    case.pass_time(1)
    case.served += [case.world.loop.time()] if served else []
    case.pass_time(100)
    case.settle(case.begin(case.keep("one")), "ack", 409)

    assert bool(case.world.violations) is not excuses


def test_a_client_that_died_before_its_ack_was_answered_explains_a_repetition(
    case: MailboxCase,
) -> None:
    one = case.keep("one")
    case.end(case.begin(one), ack=None)
    case.world.trouble("death", whom="reader1.1")
    case.one.alive = False
    case.begin(one, case.other)

    assert case.world.violations == []


@pytest.mark.parametrize(("verb", "is_seen"), [("ack", True), ("nack", False), ("renew", False)])
def test_an_answer_may_be_older_than_the_lease_of_another(
    case: MailboxCase, verb: str, is_seen: bool
) -> None:
    one = case.keep("one")
    asked_at = case.world.loop.time()
    case.world.trouble("freeze", whom="reader1.1", lasts=30.0)
    late = case.begin(one)
    case.pass_time(30)
    case.begin(one, case.other)
    case.settle(late, verb, 200, asked_at=asked_at)

    assert bool(case.world.violations) is is_seen


def test_a_client_frozen_before_it_begins_is_the_one_that_is_late(case: MailboxCase) -> None:
    one = case.keep("one")
    handling = case.begin(one)
    case.world.trouble("freeze", whom="reader2.1", lasts=0.0)
    case.pass_time(MAILBOX_LEASE.total_seconds() / 2)
    case.begin(one, case.other)
    case.settle(handling, "ack", 200)

    assert case.world.violations == ["two clients inside of one task: one"]
