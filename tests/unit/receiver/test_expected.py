"""Which tasks a sender may speak of (A2A §4.3.3)."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pushkit.a2a import PushConfig
from pushkit.errors import ConfigError
from pushkit.keys.jwk import Algorithm, generate_key
from pushkit.net.authorization import credential_header
from pushkit.webhook import hash_token
from receiver import Answer, Expectation, InboxRetention, TaskPolicy
from tests.unit.receiver.drafts import claiming, sending

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory

STATIC = "the-notification-token-is-private"


async def expect(
    world: World, task_id: str | None = None, expires_in: timedelta | None = None
) -> str:
    """Expect a task, and return the token that was minted for it."""
    expectation = await world.receiver.expect("agent", task_id=task_id, expires_in=expires_in)
    assert expectation.config.token is not None
    return expectation.config.token


async def speak(world: World, token: str, task_id: str = "task-1", number: int = 1) -> Answer:
    return await world.receive(world.draft(number, task_id=task_id, token=token))


def refused(verdict: Answer) -> bool:
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
    assert registered.rows()["pushkit_inbox"] == 1


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
    drafts = [
        dataclasses.replace(world.draft(task_id=task, token=""), authorization="Basic abc")
        for task in ("task-1", "task-2")
    ]

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
    withdrawn = await world.receiver.unregister("agent", token=token)
    again = await world.receiver.unregister("agent", token=token)

    verdict = await speak(world, token)

    assert (withdrawn, again) == (1, 0)
    assert refused(verdict)


async def test_withdrawing_nothing_in_particular_is_a_mistake(registered: World) -> None:
    token = await expect(registered, "task-1")
    with pytest.raises(ConfigError, match="expected a token or a task_id"):
        await registered.receiver.unregister("agent")
    assert (await speak(registered, token)).status == 202


async def test_withdrawing_one_token_of_a_task_leaves_the_other(registered: World) -> None:
    first, second = await expect(registered, "task-1"), await expect(registered, "task-1")
    await registered.receiver.unregister("agent", token=first)

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
    await world.receiver.unregister("agent", token=token)

    retried = await speak(world, token)

    assert [accepted.code, retried.code] == ["accepted", "duplicate"]


async def test_the_retry_of_an_accepted_delivery_outlives_the_expiry(registered: World) -> None:
    token = await expect(registered, expires_in=timedelta(seconds=60))
    await speak(registered, token)
    registered.clock.advance(3600)

    retried = await speak(registered, token)

    assert retried.code == "duplicate"


async def test_an_expired_expectation_is_forgotten_with_the_ids(registered: World) -> None:
    ended = await expect(registered, expires_in=timedelta(seconds=60))
    lasting = await expect(registered)
    registered.clock.advance(timedelta(hours=97).total_seconds())
    await registered.receiver.inbox.retain(InboxRetention())

    forgotten, kept = await speak(registered, ended), await speak(registered, lasting)

    assert registered.rows()["pushkit_expected"] == 1
    assert (forgotten.status, kept.status) == (401, 202)


async def test_an_expectation_lasts_90_days_and_is_then_forgotten(registered: World) -> None:
    token = await expect(registered)
    registered.clock.advance(timedelta(days=90, seconds=-1).total_seconds())
    last = await speak(registered, token, number=1)
    registered.clock.advance(1)
    after = await speak(registered, token, number=2)
    registered.clock.advance(timedelta(hours=97).total_seconds())
    await registered.receiver.inbox.retain(InboxRetention())

    assert last.status == 202
    assert refused(after)
    assert registered.rows()["pushkit_expected"] == 0


@pytest.mark.parametrize(
    ("lifetime", "good"),
    [
        pytest.param(timedelta(days=7), False, id="a week"),
        pytest.param(None, True, id="for ever"),
    ],
)
async def test_how_long_a_task_is_expected_is_an_option(
    make_world: WorldFactory, lifetime: timedelta | None, good: bool
) -> None:
    retention = InboxRetention(expected=lifetime)
    world = make_world({"retention": retention}, tasks=TaskPolicy.REGISTERED, tokens=())
    token = await expect(world)
    world.clock.advance(timedelta(days=1000).total_seconds())
    await world.receiver.inbox.retain(retention)

    verdict = await speak(world, token)

    assert (verdict.status == 202) is good


async def test_a_token_that_is_good_for_no_time_is_not_handed_out(registered: World) -> None:
    for wrong in (timedelta(0), timedelta.max):
        with pytest.raises(ConfigError, match="expires_in"):
            await expect(registered, expires_in=wrong)


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


async def test_a_refused_notification_binds_nothing(binding: World) -> None:
    token = await expect(binding)
    conflicting = claiming(binding.draft(task_id="task-1", token=token), taskId="task-2")
    await binding.receive(conflicting)

    verdict = await speak(binding, token, "task-3")

    assert verdict.status == 202


async def test_an_id_conflict_binds_nothing(binding: World) -> None:
    await speak(binding, STATIC, "task-1")
    token = await expect(binding)
    conflicting = sending(
        claiming(binding.draft(task_id="task-2", token=token), jti="delivery-task-1-1"),
        "webhook-id",
    )

    refusal = await binding.receive(conflicting)
    verdict = await speak(binding, token, "task-3")

    assert [refusal.status, verdict.status] == [409, 202]


async def test_a_binding_outlives_a_restart(binding: World) -> None:
    token = await expect(binding)
    await speak(binding, token, "task-1")
    await binding.restart()

    verdict = await speak(binding, token, "task-2")

    assert refused(verdict)


@pytest.mark.parametrize("hours", [0, 97])
async def test_a_static_token_that_was_withdrawn_is_not_free_for_another_task(
    binding: World, hours: int
) -> None:
    await speak(binding, STATIC, "task-1")
    await binding.receiver.unregister("agent", task_id="task-1")
    binding.clock.advance(timedelta(hours=hours).total_seconds())
    await expect(binding)  # forgets what ended

    verdicts = [await speak(binding, STATIC, task, 2) for task in ("task-1", "task-2")]

    assert all(map(refused, verdicts))


async def test_a_bound_static_token_that_left_the_configuration_is_good_no_longer(
    binding: World,
) -> None:
    await speak(binding, STATIC, "task-1")
    await binding.receiver.reload_senders([dataclasses.replace(binding.sender, tokens=())])

    verdict = await speak(binding, STATIC, "task-1", 2)

    assert (verdict.status, verdict.code) == (401, "invalid_token")


# --- replacing ------------------------------------------------------------------------------------


async def replace(world: World, old: str, overlap: timedelta = timedelta(hours=1)) -> Expectation:
    return await world.receiver.expect("agent", replaces=old, overlap=overlap)


async def test_a_token_and_what_replaces_it_are_both_good_for_a_while(binding: World) -> None:
    old = await expect(binding, "task-1")
    new = (await replace(binding, old)).config.token or ""

    during = [await speak(binding, token, number=n) for n, token in enumerate((old, new), 1)]
    binding.clock.advance(3600)
    after = [await speak(binding, token, number=n) for n, token in enumerate((old, new), 3)]

    assert [verdict.status for verdict in during] == [202, 202]
    assert [verdict.status for verdict in after] == [404, 202]


async def test_a_replacement_of_a_token_is_bound_to_the_same_task(binding: World) -> None:
    old = await expect(binding)
    await speak(binding, old, "task-1")
    replaced = await replace(binding, old)

    verdict = await speak(binding, replaced.config.token or "", "task-2")

    assert replaced.config.task_id == "task-1"
    assert refused(verdict)


async def test_a_replacement_of_a_token_accepts_no_other_task(registered: World) -> None:
    old = await expect(registered, "task-1")

    with pytest.raises(ConfigError, match="task_id"):
        await registered.receiver.expect("agent", replaces=old, task_id="task-2")


@pytest.mark.parametrize("old", ["made-up", STATIC, "withdrawn"])
async def test_only_a_token_that_is_good_can_be_replaced(binding: World, old: str) -> None:
    if old == "withdrawn":
        old = await expect(binding)
        await binding.receiver.unregister("agent", token=old)

    with pytest.raises(ConfigError, match="replaces"):
        await replace(binding, old)


# --- credentials ----------------------------------------------------------------------------------

SCHEMES = ("Bearer", "bearer", "Basic", "ApiKey")


async def speak_with(
    world: World, config: PushConfig, task_id: str = "task-1", **changes: str
) -> Answer:
    """Send what this project's sender sends for a config, or something else in a field."""
    draft = world.draft(task_id=task_id, token=changes.pop("token", config.token or ""))
    header = credential_header(config.authentication)
    assert header is not None
    name, value = changes.pop("name", header[0]), changes.pop("value", header[1])
    if name == "Authorization":
        return await world.receive(dataclasses.replace(draft, authorization=value))
    return await world.receive(sending(draft, name, value))


async def with_credentials(
    world: World, scheme: str = "Bearer", task_id: str | None = None
) -> PushConfig:
    return (await world.receiver.expect("agent", authentication=scheme, task_id=task_id)).config


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_credentials_that_were_handed_out_are_accepted(
    registered: World, scheme: str
) -> None:
    config = await with_credentials(registered, scheme)

    verdict = await speak_with(registered, config)

    assert verdict.status == 202


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_sender_that_drops_the_token_is_matched_by_its_credentials(
    binding: World, scheme: str
) -> None:
    config = await with_credentials(binding, scheme)

    verdicts = [
        await speak_with(binding, config, "task-1", token=""),
        await speak_with(binding, config, "task-2", token=""),
    ]

    assert [verdict.status for verdict in verdicts] == [202, 404]


async def test_static_credentials_and_those_that_were_handed_out_are_both_accepted(
    make_world: WorldFactory,
) -> None:
    world = make_world(tasks=TaskPolicy.ANY, tokens=[STATIC], credentials=["Bearer static"])
    config = await with_credentials(world)

    verdicts = [
        await speak_with(world, config, "task-1"),
        await speak_with(world, config, "task-2", token=""),
        await speak_with(world, config, "task-3", token=STATIC),
        await speak_with(world, config, "task-4", token=STATIC, value="Bearer static"),
        await speak_with(world, config, "task-5", token=STATIC, value="Bearer other"),
        await speak_with(world, config, "task-6", token=STATIC, name="X-Other"),
    ]

    assert [verdict.status for verdict in verdicts] == [202, 202, 202, 202, 401, 401]


async def test_an_api_key_may_also_come_as_authorization(registered: World) -> None:
    config = await with_credentials(registered, "ApiKey")
    assert config.authentication is not None
    value = f"ApiKey {config.authentication.credentials}"  # as the specification's text says

    verdict = await speak_with(registered, config, name="Authorization", value=value)

    assert verdict.status == 202


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param({"value": "Bearer other"}, "found other credentials", id="others"),
        pytest.param({"name": "X-Other"}, "found no credentials", id="none"),
        pytest.param(
            {"value": "Bearer other", "token": ""}, "found no token", id="others-and-no-token"
        ),
        pytest.param({"name": "X-Other", "token": ""}, "found no token", id="nothing"),
        pytest.param(
            {"token": "another-token-that-is-private"}, "found another token", id="another-token"
        ),
    ],
)
async def test_other_secrets_than_were_handed_out_are_refused(
    registered: World, caplog: pytest.LogCaptureFixture, changes: dict[str, str], says: str
) -> None:
    config = await with_credentials(registered)

    verdict = await speak_with(registered, config, **changes)

    assert (verdict.status, verdict.code) == (401, "invalid_token")
    assert says in caplog.text


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ({"task_id": 5}, "task_id: found int, expected str or None"),
        ({"task_id": ""}, "task_id: found an empty string, expected a task, or None for any"),
        ({"authentication": 5}, "authentication: found int, expected str or None"),
        ({"replaces": 5}, "replaces: found int, expected str or None"),
        ({"expires_in": 60}, "expires_in: found int, expected timedelta"),
        ({"overlap": 60}, "overlap: found int, expected timedelta"),
    ],
)
async def test_an_argument_of_a_wrong_type_is_refused_where_it_is_given(
    world: World, argument: dict[str, Any], says: str
) -> None:
    await world.start()
    with pytest.raises(ConfigError, match=f"^{says}$"):
        await world.receiver.expect("agent", **argument)


@pytest.mark.parametrize("name", ["token", "task_id"])
async def test_withdrawing_what_is_no_string_is_a_mistake(world: World, name: str) -> None:
    given: dict[str, Any] = {name: 5}
    await world.start()
    with pytest.raises(ConfigError, match=f"^{name}: found int, expected str or None$"):
        await world.receiver.unregister("agent", **given)


async def test_the_token_of_one_expectation_and_the_credentials_of_another_are_refused(
    registered: World,
) -> None:
    first, second = await with_credentials(registered), await with_credentials(registered)

    verdict = await speak_with(registered, second, token=first.token or "")

    assert (verdict.status, verdict.code) == (401, "invalid_token")


async def test_credentials_end_with_their_token(registered: World) -> None:
    config = await with_credentials(registered)
    await registered.receiver.unregister("agent", token=config.token)

    verdicts = [
        await speak_with(registered, config),
        await speak_with(registered, config, token=""),
    ]

    assert all(map(refused, verdicts))


async def test_credentials_are_stored_as_hashes(registered: World) -> None:
    config = await with_credentials(registered)
    await registered.receiver.close()

    assert isinstance(registered.database, Path)
    stored = registered.database.read_bytes()

    assert config.token is not None
    assert config.authentication is not None
    assert hash_token(config.token).encode() in stored
    for secret in (config.token, config.authentication.credentials or ""):
        assert secret.encode() not in stored


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        pytest.param("1.0", {"scheme": "Bearer"}, id="1.0"),
        pytest.param("0.3", {"schemes": ["Bearer"]}, id="0.3"),
    ],
)
async def test_credentials_are_written_as_the_agents_version_writes_them(
    registered: World, version: str, expected: dict[str, object]
) -> None:
    expectation = await registered.receiver.expect(
        "agent", version=version, authentication="Bearer"
    )
    assert expectation.config.authentication is not None

    credentials = expectation.config.authentication.credentials

    assert expectation.as_json()["authentication"] == {**expected, "credentials": credentials}


async def test_credentials_of_another_scheme_are_not_minted(registered: World) -> None:
    with pytest.raises(ConfigError, match="expected Bearer, Basic or ApiKey"):
        await registered.receiver.expect("agent", authentication="Digest")


async def test_a_bound_token_that_was_withdrawn_binds_nothing_more(binding: World) -> None:
    token = await expect(binding)
    await speak(binding, token, "task-1")
    await binding.receiver.unregister("agent", task_id="task-1")

    verdict = await speak(binding, token, "task-2")

    assert refused(verdict)


async def test_an_agentvault_agent_is_recognised_by_its_task(make_world: WorldFactory) -> None:
    world = make_world(tasks=TaskPolicy.REGISTERED, tokens=(), token_required=False)
    with pytest.raises(ConfigError, match="task_id: expected one"):
        await world.receiver.expect(version="agentvault-0.2")
    with pytest.raises(ConfigError, match="authentication: expected none"):
        await world.receiver.expect(
            version="agentvault-0.2", task_id="task-1", authentication="Bearer"
        )
    expected = await world.receiver.expect(version="agentvault-0.2", task_id="task-1")
    assert list(expected.as_json()) == ["webhookUrl"]

    draft = dataclasses.replace(world.draft(), token="")
    assert (await world.receive(draft)).status == 202


async def test_an_agentvault_agent_is_not_asked_for_a_token(registered: World) -> None:
    with pytest.raises(ConfigError, match="token_required: expected false"):
        await registered.receiver.expect(version="agentvault-0.2", task_id="task-1")
