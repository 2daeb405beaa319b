"""Which tasks a sender may speak of (A2A §4.3.3)."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from pushkit.keys.jwk import Algorithm, generate_key
from receiver import TaskPolicy, Verdict

if TYPE_CHECKING:
    from tests.receiver.conftest import World, WorldFactory

STATIC = "the-notification-token-is-private"


async def expect(
    world: World, task_id: str | None = None, expires_in: timedelta | None = None
) -> str:
    """Expect a task, and return the token that was minted for it."""
    expectation = await world.receiver.expect("agent", task_id=task_id, expires_in=expires_in)
    assert expectation.config.token is not None
    return expectation.config.token


async def speak(world: World, token: str, task_id: str = "task-1", number: int = 1) -> Verdict:
    return await world.receive(world.draft(number, task_id=task_id, token=token))


def refused(verdict: Verdict) -> bool:
    return (verdict.status, verdict.code) == (404, "task_not_expected")


# --- registered ---------------------------------------------------------------------------------


@pytest.fixture
def registered(make_world: WorldFactory) -> World:
    return make_world(tasks=TaskPolicy.REGISTERED, tokens=())


async def test_a_registered_token_speaks_of_any_task(registered: World) -> None:
    token = await expect(registered)

    verdicts = [await speak(registered, token, task) for task in ("task-1", "task-2")]

    assert [verdict.status for verdict in verdicts] == [202, 202]


async def test_a_token_with_a_task_speaks_of_that_task_alone(registered: World) -> None:
    token = await expect(registered, "task-1")

    other, own = await speak(registered, token, "task-2"), await speak(registered, token)

    assert refused(other)
    assert own.status == 202
    assert registered.rows()["pushkit_replay"] == 1


async def test_a_task_that_another_token_stands_for_stays_with_that_token(
    registered: World,
) -> None:
    await expect(registered, "task-1")
    token = await expect(registered, "task-2")

    verdict = await speak(registered, token, "task-1")

    assert refused(verdict)


async def test_a_static_token_speaks_of_tasks_that_are_expected(make_world: WorldFactory) -> None:
    world = make_world(tasks=TaskPolicy.REGISTERED, tokens=[STATIC])
    await expect(world, "task-1")

    own, other = await speak(world, STATIC, "task-1"), await speak(world, STATIC, "task-2")

    assert own.status == 202
    assert refused(other)


async def test_a_sender_that_drops_the_token_speaks_of_tasks_that_are_expected(
    make_world: WorldFactory,
) -> None:
    world = make_world(
        tasks=TaskPolicy.REGISTERED, tokens=(), token_required=False, credentials=["Basic abc"]
    )
    await expect(world, "task-1")
    drafts = [world.draft(task_id=task) for task in ("task-1", "task-2")]
    for draft in drafts:
        draft.jwt_header = "X-A2A-Signature"
        draft.replace_header("X-A2A-Token")
        draft.replace_header("X-A2A-Notification-Token")
        draft.replace_header("Authorization", "Basic abc")

    own, other = [await world.receive(draft) for draft in drafts]

    assert own.status == 202
    assert refused(other)


async def test_a_token_that_was_never_handed_out_is_refused(registered: World) -> None:
    await expect(registered)

    verdict = await speak(registered, "made-up")

    assert (verdict.status, verdict.code) == (401, "invalid_token")


async def test_the_token_of_another_sender_is_refused(make_world: WorldFactory) -> None:
    world = make_world(tasks=TaskPolicy.REGISTERED, tokens=())
    world.add_sender("other", "https://other.example.com", generate_key(Algorithm.ES256))
    expectation = await world.receiver.expect("other")

    verdict = await speak(world, expectation.config.token or "")

    assert (verdict.status, verdict.code) == (401, "invalid_token")


async def test_an_expired_token_is_good_no_longer(registered: World) -> None:
    token = await expect(registered, expires_in=timedelta(seconds=60))
    before = await speak(registered, token, number=1)
    registered.clock.advance(60)

    after = await speak(registered, token, number=2)

    assert before.status == 202
    assert refused(after)


@pytest.mark.parametrize("policy", list(TaskPolicy))
async def test_a_withdrawn_token_is_good_no_longer(
    make_world: WorldFactory, policy: TaskPolicy
) -> None:
    world = make_world(tasks=policy, tokens=())
    token = await expect(world)
    withdrawn = await world.receiver.expect_no_longer("agent", token=token)
    again = await world.receiver.expect_no_longer("agent", token=token)

    verdict = await speak(world, token)

    assert (withdrawn, again) == (1, 0)
    assert refused(verdict)


async def test_withdrawing_one_token_of_a_task_leaves_the_other(registered: World) -> None:
    first, second = await expect(registered, "task-1"), await expect(registered, "task-1")
    await registered.receiver.expect_no_longer("agent", token=first)

    verdicts = await speak(registered, first), await speak(registered, second)

    assert refused(verdicts[0])
    assert verdicts[1].status == 202


@pytest.mark.parametrize("policy", list(TaskPolicy))
async def test_the_retry_of_an_accepted_delivery_outlives_its_expectation(
    make_world: WorldFactory, policy: TaskPolicy
) -> None:
    world = make_world(tasks=policy, tokens=())
    token = await expect(world)
    accepted = await speak(world, token)
    await world.receiver.expect_no_longer("agent", token=token)

    retried = await speak(world, token)

    assert [accepted.code, retried.code] == ["accepted", "duplicate"]


async def test_the_retry_of_an_accepted_delivery_outlives_the_expiry(registered: World) -> None:
    token = await expect(registered, expires_in=timedelta(seconds=60))
    await speak(registered, token)
    registered.clock.advance(3600)

    retried = await speak(registered, token)

    assert retried.code == "duplicate"


async def test_what_ended_is_forgotten_with_the_memory_of_ids(registered: World) -> None:
    ended = await expect(registered, expires_in=timedelta(seconds=60))
    lasting = await expect(registered)
    registered.clock.advance(timedelta(hours=97).total_seconds())
    await expect(registered)

    forgotten, kept = await speak(registered, ended), await speak(registered, lasting)

    assert registered.rows()["pushkit_expected"] == 2
    assert (forgotten.status, kept.status) == (401, 202)


# --- bind -----------------------------------------------------------------------------------------


@pytest.fixture
def binding(make_world: WorldFactory) -> World:
    return make_world(tasks=TaskPolicy.BIND, tokens=[STATIC])


@pytest.mark.parametrize("static", [pytest.param(True, id="static"), pytest.param(False, id="own")])
async def test_the_first_notification_binds_its_task(binding: World, static: bool) -> None:
    token = STATIC if static else await expect(binding)

    verdicts = [
        await speak(binding, token, "task-1", 1),
        await speak(binding, token, "task-2", 1),
        await speak(binding, token, "task-1", 2),
    ]

    assert [verdict.status for verdict in verdicts] == [202, 404, 202]


@pytest.mark.parametrize("static", [pytest.param(True, id="static"), pytest.param(False, id="own")])
async def test_of_tasks_that_race_for_a_token_one_wins(binding: World, static: bool) -> None:
    token = STATIC if static else await expect(binding)
    await binding.start()

    verdicts = await asyncio.gather(*(speak(binding, token, f"task-{n}") for n in range(20)))

    assert Counter(verdict.status for verdict in verdicts) == {202: 1, 404: 19}
    assert binding.rows()["pushkit_inbox"] == 1


async def test_a_refused_notification_binds_nothing(binding: World) -> None:
    token = await expect(binding)
    conflicting = binding.draft(task_id="task-1", token=token)
    conflicting.claim(taskId="task-2")
    await binding.receive(conflicting)

    verdict = await speak(binding, token, "task-3")

    assert verdict.status == 202


async def test_an_id_conflict_binds_nothing(binding: World) -> None:
    await speak(binding, STATIC, "task-1")
    token = await expect(binding)
    conflicting = binding.draft(task_id="task-2", token=token)
    conflicting.claim(jti="delivery-task-1-1")
    conflicting.replace_header("webhook-id")

    refusal = await binding.receive(conflicting)
    verdict = await speak(binding, token, "task-3")

    assert [refusal.status, verdict.status] == [409, 202]


async def test_a_binding_outlives_a_restart(binding: World) -> None:
    token = await expect(binding)
    await speak(binding, token, "task-1")
    await binding.restart()

    verdict = await speak(binding, token, "task-2")

    assert refused(verdict)


async def test_a_static_token_that_was_withdrawn_binds_the_next_task(binding: World) -> None:
    await speak(binding, STATIC, "task-1")
    await binding.receiver.expect_no_longer("agent", task_id="task-1")

    verdict = await speak(binding, STATIC, "task-2")

    assert verdict.status == 202


async def test_a_bound_token_that_was_withdrawn_binds_nothing_more(binding: World) -> None:
    token = await expect(binding)
    await speak(binding, token, "task-1")
    await binding.receiver.expect_no_longer("agent", task_id="task-1")

    verdict = await speak(binding, token, "task-2")

    assert refused(verdict)
