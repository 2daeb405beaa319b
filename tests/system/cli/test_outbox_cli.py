"""`pushkit outbox` on a file that a sender left behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pushkit import SenderOptions
from pushkit.delivery.error_codes import ERROR_CODES
from pushkit.delivery.signatures import Signing
from pushkit.subscriptions.model import Subscription
from tests.system.cli.conftest import SECRET, Run, Webhook, deliver, ended, enqueue


@pytest.fixture
def dead(outbox: Path, webhook: Webhook) -> list[str]:
    """Two dead letters; the webhook accepts again."""
    webhook.status = 400
    ids = enqueue(outbox, webhook, 2)
    deliver(outbox)
    webhook.status = 202
    return ids


def test_dead_letters_are_listed(pushkit_command: Run, dead: list[str], webhook: Webhook) -> None:
    ran = pushkit_command("outbox", "list", "--state", "dead")
    assert ran.status == 0
    head, *rows = ran.out.splitlines()
    assert head.startswith("ID ")
    assert sorted(row.split()[0] for row in rows) == sorted(dead)
    assert all("rejected" in row and webhook.origin in row for row in rows)
    assert SECRET not in ran.out


def test_queues_with_deliveries_that_wait_are_listed(
    pushkit_command: Run, outbox: Path, webhook: Webhook
) -> None:
    enqueue(outbox, webhook, 2)
    head, *rows = pushkit_command("outbox", "queues").out.splitlines()
    assert " ".join(head.split()) == "ID TASK ORIGIN WORKER SINCE EPOCH NEXT WAITING DUE FAILING"
    assert sorted(row.split()[1:5] for row in rows) == [
        [f"task-{n}", webhook.origin, "-", "-"] for n in (1, 2)
    ]
    [first] = json.loads(pushkit_command("outbox", "queues", "--json", "--limit", "1").out)
    assert first["waiting"] == {"number": 1, "more": False}
    deliver(outbox)
    assert json.loads(pushkit_command("outbox", "queues", "--json").out) == []


def test_a_list_is_json_on_request_and_comes_in_pages(
    pushkit_command: Run, dead: list[str]
) -> None:
    ran = pushkit_command("outbox", "list", "--json", "--limit", "1")
    [first] = json.loads(ran.out)
    ran = pushkit_command("outbox", "list", "--json", "--after", first["id"])
    [second] = json.loads(ran.out)
    assert {first["id"], second["id"]} == set(dead)
    assert first["state"] == "dead"
    assert "body" not in first


@pytest.mark.parametrize(
    ("option", "value", "found"),
    [
        ("--task", "task-1", 1),
        ("--owner", "alice", 2),
        ("--owner", "bob", 0),
        ("--error", "rejected", 2),
        ("--error", "status_500", 0),
        ("--tenant", "", 2),
    ],
)
@pytest.mark.usefixtures("dead")
def test_a_list_is_filtered(pushkit_command: Run, option: str, value: str, found: int) -> None:
    ran = pushkit_command("outbox", "list", "--json", option, value)
    assert len(json.loads(ran.out)) == found


def test_a_delivery_is_shown_with_its_attempts(
    pushkit_command: Run, dead: list[str], webhook: Webhook
) -> None:
    ran = pushkit_command("outbox", "show", dead[0])
    assert ran.status == 0
    assert f"127.0.0.1:{webhook.port}" in ran.out.splitlines()[-1]
    assert SECRET not in ran.out
    document = json.loads(pushkit_command("outbox", "show", dead[0], "--json").out)
    [attempt] = document["log"]
    assert (attempt["status"], attempt["error"]) == (400, "rejected")


def test_a_failed_delivery_is_shown_with_its_remedy_and_the_webhooks_answer(
    pushkit_command: Run, outbox: Path, webhook: Webhook
) -> None:
    webhook.status, webhook.answer = 422, b"statusUpdate: \x1b[31munknown member"
    [delivery_id] = enqueue(outbox, webhook, 1)
    deliver(outbox)
    shown = pushkit_command("outbox", "show", delivery_id).out
    for line in (
        "unprocessable: the webhook answered 422",
        "The webhook read the body but did not accept it",
        "statusUpdate: \\x1b[31munknown member",
    ):
        assert line in shown
    why = json.loads(pushkit_command("outbox", "show", delivery_id, "--json").out)["why"]
    assert why["code"] == "unprocessable"
    assert why["answer"] == "statusUpdate: \x1b[31munknown member"
    answers = pushkit_command("outbox", "show", delivery_id, "--answers").out
    assert answers.count("unknown member") == 1


def test_the_payload_is_shown_on_request(pushkit_command: Run, dead: list[str]) -> None:
    assert SECRET in pushkit_command("outbox", "show", dead[0], "--body").out
    assert SECRET in pushkit_command("outbox", "show", dead[0], "--body", "--json").out


def test_an_unknown_delivery_is_an_error(pushkit_command: Run, dead: list[str]) -> None:
    assert dead
    ran = pushkit_command("outbox", "show", "dlv_unknown")
    assert ran.status == 1
    assert "dlv_unknown" in ran.error


def test_a_dead_letter_is_redriven_and_may_repeat(
    pushkit_command: Run, dead: list[str], outbox: Path, webhook: Webhook
) -> None:
    ran = pushkit_command("outbox", "redrive", dead[0])
    assert ran.status == 0
    assert "1 dead letter pending again" in ran.out
    assert "may receive notifications a second time" in ran.err
    deliver(outbox)
    assert [request.header("webhook-id") for request in webhook.requests].count(dead[0]) == 2


def test_a_filter_redrives_what_it_finds(pushkit_command: Run, dead: list[str]) -> None:
    assert dead
    assert "1 dead letter " in pushkit_command("outbox", "redrive", "--task", "task-1").out
    assert "1 dead letter " in pushkit_command("outbox", "redrive", "--all").out
    ran = pushkit_command("outbox", "redrive", "--all")
    assert (ran.status, ran.out) == (1, "0 dead letters pending again\n")
    assert ran.error == "nothing matches: see `pushkit outbox list --state dead`"


def test_a_redrive_of_something_else_is_an_error(pushkit_command: Run, dead: list[str]) -> None:
    pushkit_command("outbox", "redrive", dead[0])
    ran = pushkit_command("outbox", "redrive", *dead)
    assert ran.status == 1
    assert "not sent again: 1 pending (`pushkit outbox retry-now`)" in ran.err


def test_delivered_updates_are_sent_again(
    pushkit_command: Run, outbox: Path, webhook: Webhook
) -> None:
    enqueue(outbox, webhook, 1)
    deliver(outbox)
    ran = pushkit_command("outbox", "resend", "--task", "task-1", "--from-seq", "1")
    assert "1 delivered update pending again" in ran.out
    ran = pushkit_command("outbox", "resend", "--task", "task-1", "--from-seq", "2")
    assert (ran.status, ran.out) == (1, "0 delivered updates pending again\n")


def test_a_pending_delivery_is_cancelled_once(
    pushkit_command: Run, outbox: Path, webhook: Webhook
) -> None:
    [delivery_id] = enqueue(outbox, webhook, 1)
    assert pushkit_command("outbox", "cancel", delivery_id).out == "cancelled 1\n"
    ran = pushkit_command("outbox", "cancel", delivery_id, "dlv_1")
    assert ran.status == 1
    assert f"not cancelled: {delivery_id} is cancelled; dlv_1 is not in this outbox" in ran.error


def test_a_purge_takes_the_states_that_were_named(pushkit_command: Run, dead: list[str]) -> None:
    assert pushkit_command("outbox", "purge", "--older-than", "0s").out == "purged 0\n"
    ran = pushkit_command("outbox", "purge", "--older-than", "0s", "--state", "dead")
    assert ran.out == f"purged {len(dead)}\n"


def test_a_purge_keeps_the_newest(pushkit_command: Run, dead: list[str]) -> None:
    assert pushkit_command("outbox", "purge", "--keep", "1").out == "purged 0\n"
    assert pushkit_command("outbox", "purge", "--keep", "0").out == f"purged {len(dead)}\n"


def test_an_erasure_is_asked_about(pushkit_command: Run, dead: list[str]) -> None:
    assert pushkit_command("outbox", "erase", "task-1", stdin=b"n\n").status == 1
    ran = pushkit_command("outbox", "erase", "task-1", "--yes")
    assert ran.out == "erased 1 subscription and 1 delivery of task-1\n"
    assert len(json.loads(pushkit_command("outbox", "list", "--json").out)) == len(dead) - 1


@pytest.mark.parametrize("tenant", [(), ("--tenant", "acme")], ids=["erased", "other tenant"])
def test_an_erasure_of_nothing_is_an_error(
    pushkit_command: Run, dead: list[str], tenant: tuple[str, ...]
) -> None:
    if not tenant:
        pushkit_command("outbox", "erase", "task-1", "--yes")
    ran = pushkit_command("outbox", "erase", "task-1", "--yes", *tenant)
    assert (ran.status, ran.out) == (1, "")
    assert "found no subscription or delivery of the task 'task-1' of tenant" in ran.error
    remaining = json.loads(pushkit_command("outbox", "list", "--json").out)
    assert len(remaining) == (len(dead) if tenant else len(dead) - 1)


def test_numbers_are_shown(pushkit_command: Run, dead: list[str], webhook: Webhook) -> None:
    ran = pushkit_command("outbox", "stats")
    assert f"dead         {len(dead)}" in ran.out
    assert webhook.origin in ran.out
    document = json.loads(pushkit_command("outbox", "stats", "--json").out)
    assert document["states"]["dead"] == len(dead)
    assert document["origins"][0]["dead"] == len(dead)


def test_numbers_say_how_long_the_oldest_waits(
    pushkit_command: Run, outbox: Path, webhook: Webhook
) -> None:
    enqueue(outbox, webhook, 1)
    assert "oldest       pending for " in pushkit_command("outbox", "stats").out


def test_numbers_tell_what_waits_by_no_fault_of_its_webhook(
    pushkit_command: Run, outbox: Path, webhook: Webhook
) -> None:
    def signing(subscription: Subscription) -> Signing:
        if subscription.key.task_id == "task-1":
            return Signing()
        raise KeyError("nobody has told this function how")

    webhook.status = 503
    enqueue(outbox, webhook, 3)
    deliver(outbox, SenderOptions(signing=signing))

    lines = pushkit_command("outbox", "stats").out.splitlines()
    assert "signing_failed       2 (2 wait because of a fault on this side)" in lines
    assert "status_503           1" in lines
    document = json.loads(pushkit_command("outbox", "stats", "--json").out)
    assert document["errors"] == {"signing_failed": 2, "status_503": 1}
    assert document["local_faults"] == {"signing_failed": 2}


@pytest.mark.usefixtures("dead")
def test_an_empty_log_format_is_none(pushkit_command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUSHKIT_LOG_FORMAT", "")
    ran = pushkit_command("outbox", "purge", "--older-than", "1d")
    assert (ran.status, ran.out, ran.err) == (0, "purged 0\n", "")


@pytest.mark.parametrize(
    ("command", "what"),
    [("redrive", "dead letters"), ("retry-now", "pending deliveries"), ("resend", "delivered")],
)
@pytest.mark.parametrize("wanted", [["--task", "mistyped"], ["--error", "timeout"]], ids=str)
def test_nothing_that_matches_is_an_error_with_a_hint(
    pushkit_command: Run, dead: list[str], command: str, what: str, wanted: list[str]
) -> None:
    assert dead
    ran = pushkit_command("outbox", command, *wanted)
    assert ran.status == 1
    assert ran.out.startswith(f"0 {what}")
    assert "nothing matches: see `pushkit outbox list" in ran.error


def test_who_tries_what_is_paused_is_told_so(
    pushkit_command: Run, outbox: Path, webhook: Webhook
) -> None:
    enqueue(outbox, webhook, 1)
    pushkit_command("subscriptions", "pause", "--all")
    ran = pushkit_command("outbox", "retry-now", "--task", "task-1")
    assert ran.status == 1
    assert "those of a paused subscription are not tried" in ran.error


def test_a_dry_run_says_what_would_be_done_and_does_nothing(
    pushkit_command: Run, dead: list[str], outbox: Path, webhook: Webhook
) -> None:
    ran = pushkit_command("outbox", "redrive", "--all", "--dry-run")
    assert ran.status == 0
    head, *ids = ran.out.splitlines()
    assert head == "2 dead letters would be pending again"
    assert sorted(each.strip() for each in ids) == sorted(dead)
    pushkit_command("outbox", "redrive", dead[0])
    ran = pushkit_command("outbox", "retry-now", "--all", "--dry-run")
    assert ran.out.splitlines() == ["1 pending delivery would be due now", f"  {dead[0]}"]
    deliver(outbox)
    assert "1 delivery would be" in pushkit_command("outbox", "resend", dead[0], "--dry-run").out
    deliver(outbox)
    requests = [request.header("webhook-id") or "" for request in webhook.requests]
    assert sorted(requests) == sorted([*dead, dead[0]])


@pytest.mark.parametrize(
    "wanted",
    [["--origin"], ["--owner", "alice"], ["--task", "task-1"], ["--all"], ["ID"]],
    ids=lambda wanted: wanted[0],
)
def test_what_is_pending_is_tried_now(
    pushkit_command: Run, outbox: Path, webhook: Webhook, wanted: list[str]
) -> None:
    webhook.status = 503
    [delivery_id] = enqueue(outbox, webhook, 1)
    deliver(outbox)
    webhook.status = 202
    deliver(outbox)
    assert len(webhook.requests) == 1  # the next attempt is seconds away
    full = {"--origin": ["--origin", webhook.origin], "ID": [delivery_id]}.get(wanted[0], wanted)
    ran = pushkit_command("outbox", "retry-now", *full)
    assert (ran.status, ran.out) == (0, "1 pending delivery due now\n")
    deliver(outbox)
    assert len(webhook.requests) == 2


@pytest.mark.slow
def test_where_logs_are_asked_for_a_command_writes_what_it_did(
    outbox: Path, webhook: Webhook
) -> None:
    [delivery_id] = enqueue(outbox, webhook, 1)
    asked = {"PUSHKIT_LOG_FORMAT": "json", "PUSHKIT_DATABASE": str(outbox)}
    call = [sys.executable, "-m", "pushkit.cli.main", "outbox", "cancel", delivery_id]
    ran = ended(*call, **asked)
    assert ran.returncode == 0
    line = json.loads(ran.stderr)
    assert (line["code"], line["change"], line["count"]) == ("outbox_changed", "cancelled", 1)


def test_what_was_cancelled_is_sent_by_its_id_or_by_who_cancelled_it(
    pushkit_command: Run, outbox: Path, webhook: Webhook
) -> None:
    first, second = enqueue(outbox, webhook, 2)
    pushkit_command("outbox", "cancel", first, second)
    shown = json.loads(pushkit_command("outbox", "show", first, "--json").out)
    assert shown["cancelled_by"] == "operator"
    assert pushkit_command("outbox", "resend", "--all").status == 1
    assert pushkit_command("outbox", "resend", first).out == "1 delivery pending again\n"
    by = ["--state", "cancelled", "--cancelled-by"]
    assert pushkit_command("outbox", "resend", "--all", *by, "disabled").status == 1
    ran = pushkit_command("outbox", "resend", "--all", *by, "operator")
    assert ran.out == "1 cancelled update pending again\n"
    deliver(outbox)
    assert {request.header("webhook-id") for request in webhook.requests} == {first, second}


def test_who_asks_for_the_wrong_thing_is_told_the_right_one(
    pushkit_command: Run, dead: list[str]
) -> None:
    for command, hint in (
        ("resend", "1 dead (`pushkit outbox redrive`)"),
        ("retry-now", "1 dead (`pushkit outbox redrive`)"),
    ):
        ran = pushkit_command("outbox", command, dead[0])
        assert ran.status == 1
        assert hint in ran.error
    assert "1 not in this outbox" in pushkit_command("outbox", "redrive", "dlv_unknown").error
    pushkit_command("subscriptions", "disable", "--all")
    ran = pushkit_command("outbox", "redrive", "--all")
    assert "2 of a disabled subscription (`pushkit subscriptions enable`)" in ran.error


def test_every_code_of_an_error_is_listed_and_another_one_refused(
    pushkit_command: Run, dead: list[str]
) -> None:
    assert dead
    listed = pushkit_command("outbox", "errors").out
    for code in ERROR_CODES:
        assert f"\n{code} " in listed
        assert pushkit_command("outbox", "list", "--error", code).status == 0
    assert json.loads(pushkit_command("outbox", "errors", "--json").out) == ERROR_CODES
    ran = pushkit_command("outbox", "list", "--error", "time_out")
    assert ran.status == 2
    assert "did you mean 'timeout'?" in ran.err
    assert "address_refused" in ran.err
