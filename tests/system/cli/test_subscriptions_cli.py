"""`pushkit subscriptions` on a file that a sender left behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pushkit import PushSender, StatusUpdate, TaskState, TaskStatus
from pushkit.bounded_json import JsonValue
from tests.system.cli.conftest import TOKEN, Ran, Run, Webhook, on_outbox

T = TypeVar("T")

OWNERS = {"task-1": "alice", "task-2": "alice", "task-3": "bob"}


@pytest.fixture
def with_sender(outbox: Path) -> Callable[[Callable[[PushSender], Coroutine[Any, Any, T]]], T]:
    """Run a piece of a sender's life on the outbox that the commands look at."""
    return lambda work: on_outbox(outbox, work)


async def pump(sender: PushSender) -> None:
    while await sender.worker.run_once():
        pass


async def notify(sender: PushSender) -> None:
    for task_id in OWNERS:
        status = TaskStatus(state=TaskState.WORKING)
        await sender.notify(StatusUpdate(task_id=task_id, context_id="c", status=status))
    await pump(sender)


@pytest.fixture
def ids(with_sender: Callable[..., dict[str, str]], webhook: Webhook) -> dict[str, str]:
    """Three subscriptions: their ids by task."""

    async def subscribe(sender: PushSender) -> dict[str, str]:
        made = {}
        for task_id, owner in OWNERS.items():
            config: dict[str, JsonValue] = {
                "url": f"{webhook.url}?key={TOKEN}",
                "token": TOKEN,
                "authentication": {"scheme": "Bearer", "credentials": f"{TOKEN}-too"},
            }
            subscription = await sender.subscribe(task_id, config, version="1.0", owner=owner)
            made[task_id] = subscription.id
        return made

    return with_sender(subscribe)


@pytest.fixture
def command(pushkit_command: Run) -> Callable[..., Ran]:
    return lambda *arguments, **options: pushkit_command("subscriptions", *arguments, **options)


def states(command: Callable[..., Ran], *options: str) -> dict[str, str]:
    found = json.loads(command("list", "--json", *options).out)
    return {each["task_id"]: each["state"] for each in found}


def test_subscriptions_are_listed_without_their_secrets(
    command: Run, ids: dict[str, str], webhook: Webhook
) -> None:
    ran = command("list")
    assert ran.status == 0
    head, *rows = ran.out.splitlines()
    assert head.split()[:4] == ["ID", "STATE", "TASK", "OWNER"]
    assert [row.split()[0] for row in rows] == sorted(ids.values())
    assert all("active" in row and webhook.origin in row for row in rows)


def test_a_list_comes_in_pages(command: Run, ids: dict[str, str]) -> None:
    first = [row["id"] for row in json.loads(command("list", "--json", "--limit", "2").out)]
    after = first[-1]
    [last] = json.loads(command("list", "--json", "--after", after).out)
    assert sorted([*first, last["id"]]) == sorted(ids.values())
    assert after in command("list", "--limit", "2").err


@pytest.mark.parametrize(
    ("option", "value", "found"),
    [
        ("--task", "task-1", {"task-1"}),
        ("--owner", "alice", {"task-1", "task-2"}),
        ("--tenant", "", set(OWNERS)),
        ("--tenant", "another", set()),
        ("--origin", "https://else.example.com:443", set()),
        ("--state", "active", set(OWNERS)),
        ("--state", "disabled", set()),
    ],
)
@pytest.mark.usefixtures("ids")
def test_a_list_is_filtered(command: Run, option: str, value: str, found: set[str]) -> None:
    assert set(states(command, option, value)) == found


@pytest.mark.parametrize("origin", ["https://client.example.com", "HTTPS://Client.Example.com:443"])
def test_an_origin_may_be_written_as_in_the_urls_of_webhooks(
    command: Run, with_sender: Callable[..., None], origin: str
) -> None:
    async def subscribe(sender: PushSender) -> None:
        config: dict[str, JsonValue] = {"url": "https://client.example.com/hook"}
        await sender.subscribe("task-1", config, version="1.0")

    with_sender(subscribe)
    assert set(states(command, "--origin", origin)) == {"task-1"}


def test_one_is_shown_with_what_became_of_its_deliveries(
    command: Run, ids: dict[str, str], with_sender: Callable[..., None], webhook: Webhook
) -> None:
    with_sender(notify)
    shown = json.loads(command("show", ids["task-1"], "--json").out)
    assert shown["url"] == f"{webhook.url}?***"
    assert (shown["has_token"], shown["has_credentials"]) == (True, True)
    assert shown["schemes"] == ["Bearer"]
    assert shown["deliveries"]["delivered"] == 1
    ran = command("show", ids["task-1"])
    assert "1 delivered" in ran.out
    assert f"{webhook.url}?***" in ran.out


def test_what_others_are_called_moves_no_cursor(
    command: Run, with_sender: Callable[..., str], webhook: Webhook
) -> None:
    async def subscribe(sender: PushSender) -> str:
        config = {"url": webhook.url}
        found = await sender.subscribe("task-1", config, version="1.0", owner="\a\u202ealice")
        return found.id

    made = with_sender(subscribe)
    for ran in (command("list"), command("show", made)):
        assert "\\x07\\u202ealice" in ran.out


def test_an_unknown_one_is_an_error_with_a_hint(command: Run, ids: dict[str, str]) -> None:
    assert ids
    for verb in ("show", "pause", "enable", "test"):
        ran = command(verb, "sub_unknown")
        assert ran.status == 1
        assert "sub_unknown" in ran.err
        assert "pushkit subscriptions list" in ran.err


def test_what_is_paused_gets_nothing_until_it_is_resumed(
    command: Run, ids: dict[str, str], with_sender: Callable[..., None], webhook: Webhook
) -> None:
    assert command("pause", ids["task-1"]).out == "1 subscription paused\n"
    with_sender(notify)
    assert len(webhook.requests) == 2
    assert states(command)["task-1"] == "paused"
    ran = command("pause", "--owner", "alice")
    assert ran.out == "1 subscription paused\n"
    assert "1 unchanged: paused already" in ran.err
    assert command("resume", "--all").out == "2 subscriptions resumed\n"
    with_sender(pump)
    assert len(webhook.requests) == 3


def test_what_is_disabled_gets_nothing_and_its_backlog_is_cancelled(
    command: Run, ids: dict[str, str], with_sender: Callable[..., None], webhook: Webhook
) -> None:
    command("pause", ids["task-1"])
    with_sender(notify)
    assert command("disable", ids["task-1"]).out == "1 subscription disabled\n"
    command("resume", ids["task-1"])
    with_sender(notify)
    assert len(webhook.requests) == 4
    shown = json.loads(command("show", ids["task-1"], "--json").out)
    assert (shown["state"], shown["disabled_by"]) == ("disabled", "operator")
    assert shown["deliveries"]["cancelled"] == 1


def test_what_was_cancelled_with_it_comes_back_when_that_is_asked_for(
    command: Run,
    run_line: Callable[[str], Ran],
    ids: dict[str, str],
    with_sender: Callable[..., None],
    webhook: Webhook,
) -> None:
    webhook.status = 503
    with_sender(notify)
    webhook.status = 202
    command("disable", "--owner", "alice")
    webhook.requests.clear()
    ran = command("enable", ids["task-1"], "--resend")
    assert ran.out == "1 cancelled delivery pending again\n1 subscription enabled\n"
    plain = command("enable", ids["task-2"])
    assert plain.out == "1 subscription enabled\n"
    with_sender(pump)
    assert len(webhook.requests) == 1

    _, recommended, _ = plain.err.split("`")
    assert run_line(recommended).out == "1 cancelled update pending again\n"


def test_a_test_is_sent_and_its_delivery_named(
    command: Run, ids: dict[str, str], with_sender: Callable[..., None], webhook: Webhook
) -> None:
    ran = command("test", ids["task-1"])
    assert ran.status == 0
    [delivery_id] = ran.out.split()
    with_sender(pump)
    [request] = webhook.requests
    assert request.header("webhook-id") == delivery_id
    assert b"test notification" in request.body


def test_a_disabled_one_is_not_tested(command: Run, ids: dict[str, str]) -> None:
    command("disable", ids["task-1"])
    ran = command("test", ids["task-1"])
    assert ran.out == ""
    assert "disabled" in ran.err


def test_a_removal_is_asked_about_and_cancels(
    command: Run, ids: dict[str, str], with_sender: Callable[..., None], webhook: Webhook
) -> None:
    command("pause", "--all")
    with_sender(notify)
    assert command("remove", ids["task-1"], stdin=b"n\n").status == 1
    assert command("remove", ids["task-1"], "--yes").out == "1 subscription removed\n"
    command("resume", "--all")
    with_sender(pump)
    assert len(webhook.requests) == 2
    assert set(states(command)) == {"task-2", "task-3"}
    assert command("show", ids["task-1"]).status == 1


@pytest.mark.parametrize("verb", ["pause", "resume", "disable", "enable", "test"])
@pytest.mark.usefixtures("ids")
def test_a_filter_that_nothing_matches_is_an_error_with_a_hint(command: Run, verb: str) -> None:
    ran = command(verb, "--task", "mistyped")
    assert ran.status == 1
    assert "no subscription matches: see `pushkit subscriptions list`" in ran.err
