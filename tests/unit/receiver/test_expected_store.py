"""The scripts of expected tasks and tokens, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import pytest

from pushkit.storage.migrations import migrate
from pushkit.storage.script import Script, Statement
from receiver import TaskPolicy, registrations
from receiver.inbox.schema import RECEIVER_MIGRATIONS
from receiver.registrations import Registration, TaskNotExpectedError
from receiver.tokens import Presented, ProvenSecret

if TYPE_CHECKING:
    from tests.databases import ScriptRunner

T = TypeVar("T")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
OLD, NEW, CREDENTIALS, STATIC = "a" * 64, "b" * 64, "c" * 64, "d" * 64
REGISTRATION = Registration(
    sender="agent",
    expectation="expectation-1",
    token_sha256=OLD,
    credentials_sha256=CREDENTIALS,
    task_id=None,
    created_at=NOW,
    expires_at=None,
)


class House:
    """A database with the tables of what is expected."""

    def __init__(self, scripts: ScriptRunner) -> None:
        self.scripts = scripts
        self.run(migrate("receiver", RECEIVER_MIGRATIONS))

    def run(self, script: Script[T]) -> T:
        return self.scripts.run(script)

    def admits(
        self,
        secret: str | None,
        task_id: str,
        *,
        policy: TaskPolicy = TaskPolicy.BIND,
        now: datetime = NOW,
    ) -> bool:
        proven = ProvenSecret(sha256=secret, static=secret == STATIC) if secret else None
        try:
            self.run(self._admit(policy, proven, task_id, now))
        except TaskNotExpectedError:
            return False
        return True

    def _admit(
        self, policy: TaskPolicy, secret: ProvenSecret | None, task_id: str, now: datetime
    ) -> Script[None]:
        registered = yield from registrations.read_secrets(
            [("agent", secret)] if secret else [], now
        )
        binds = yield from registrations.check_expected(
            policy, sender="agent", secret=secret, task_id=task_id, now=now, registered=registered
        )
        if binds and secret is not None:
            yield from registrations.bind_secret("agent", secret, task_id, now, registered)


@pytest.fixture
def house(scripts: ScriptRunner) -> House:
    return House(scripts)


def sent(token: str | None = None, *credentials: str) -> Presented:
    return Presented(
        token=token, static_token=False, credentials=credentials, static_credentials=False
    )


@pytest.mark.parametrize(
    ("secret", "found"),
    [
        pytest.param(sent(OLD), True, id="token"),
        pytest.param(sent(None, CREDENTIALS), True, id="credentials"),
        pytest.param(sent(None, NEW, CREDENTIALS), True, id="credentials-in-either-header"),
        pytest.param(sent(OLD, CREDENTIALS), True, id="both"),
        pytest.param(sent(NEW), False, id="another-token"),
        pytest.param(sent(CREDENTIALS), False, id="credentials-as-a-token"),
        pytest.param(sent(None, OLD), False, id="a-token-as-credentials"),
        pytest.param(sent(), False, id="nothing"),
    ],
)
def test_finds_what_was_handed_out(house: House, secret: Presented, found: bool) -> None:
    house.run(registrations.register(REGISTRATION))

    assert bool(house.run(registrations.handed_out("agent", secret))) is found
    assert not house.run(registrations.handed_out("other", secret))


def test_a_refusal_says_whether_its_token_belongs_to_another_task(house: House) -> None:
    house.run(registrations.register(REGISTRATION))
    house.admits(OLD, "1")

    with pytest.raises(TaskNotExpectedError, match="the token belongs to another task"):
        house.run(house._admit(TaskPolicy.BIND, ProvenSecret(sha256=OLD, static=False), "2", NOW))
    with pytest.raises(TaskNotExpectedError, match="neither the task nor its token was registered"):
        house.run(house._admit(TaskPolicy.REGISTERED, None, "2", NOW))


def test_token_and_credentials_are_bound_together(house: House) -> None:
    house.run(registrations.register(REGISTRATION))

    assert house.admits(OLD, "1")
    assert not house.admits(CREDENTIALS, "2")
    assert house.admits(CREDENTIALS, "1")


@pytest.mark.parametrize(("first", "second"), [(OLD, NEW), (NEW, OLD)])
def test_a_secret_and_its_replacement_are_bound_together(
    house: House, first: str, second: str
) -> None:
    house.run(registrations.register(REGISTRATION))
    new = REGISTRATION._replace(token_sha256=NEW, credentials_sha256=None, expectation="other")
    house.run(registrations.replace_token(OLD, new, overlap=timedelta(hours=1)))

    assert [house.admits(first, "1"), house.admits(second, "2")] == [True, False]
    assert house.admits(second, "1")


@pytest.mark.parametrize(
    ("ends", "overlap", "good_for"),
    [
        pytest.param(None, 60, 60, id="by-the-overlap"),
        pytest.param(30, 60, 30, id="by-itself"),
        pytest.param(90, 60, 60, id="sooner-than-by-itself"),
        pytest.param(None, 0, 0, id="at-once"),
    ],
)
def test_a_replaced_token_ends(house: House, ends: int | None, overlap: int, good_for: int) -> None:
    expires_at = NOW + timedelta(seconds=ends) if ends else None
    house.run(registrations.register(REGISTRATION._replace(expires_at=expires_at, task_id="1")))
    new = REGISTRATION._replace(token_sha256=NEW, credentials_sha256=None)

    task_id = house.run(registrations.replace_token(OLD, new, overlap=timedelta(seconds=overlap)))

    end = NOW + timedelta(seconds=good_for)
    assert task_id == "1"
    assert not house.admits(OLD, "1", now=end)
    assert house.admits(OLD, "1", now=end - timedelta(microseconds=1))
    assert house.admits(NEW, "1", now=end + timedelta(days=1))


def test_a_static_token_that_was_bound_before_bindings_were_marked_stays_bound(
    scripts: ScriptRunner,
) -> None:
    scripts.run(migrate("receiver", RECEIVER_MIGRATIONS[:2]))

    def bind() -> Script[None]:
        yield Statement(
            "INSERT INTO pushkit_expected (sender, token_sha256, task_id, created_at)"
            " VALUES ('agent', $1, '1', 0)",
            (STATIC,),
        )

    scripts.run(bind())
    house = House(scripts)

    assert [house.admits(STATIC, task) for task in ("2", "1", "2")] == [False, True, False]
