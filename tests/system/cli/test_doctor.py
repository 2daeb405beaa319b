"""The command `doctor`: its report, its exit status, and the consent that it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pushkit.signing.standard_webhooks import generate_webhook_secret
from tests.forked import forked
from tests.ports import free_port
from tests.system.cli.conftest import ROOT, TOKEN, UPDATE, Run, Webhook, environment


@pytest.fixture
def examined(pushkit_command: Run, webhook: Webhook) -> list[str]:
    """A webhook that accepts everything, and the arguments to examine it."""
    pushkit_command("keys", "new")
    return ["doctor", webhook.url, "--token", TOKEN]


def test_a_broken_promise_is_status_1_and_is_in_the_report(
    receiver_command: Run, examined: list[str]
) -> None:
    checks = ["--only", "genuine", "--only", "token", "--only", "crash_after_answer"]
    ran = receiver_command(*examined, *checks, "--format", "json")
    assert ran.status == 1
    assert ran.err == "1 passed, 1 failed, 1 unseen\n"
    found = {each["check"]: each["outcome"] for each in json.loads(ran.out)["results"]}
    assert found == {"genuine": "passed", "token": "failed", "crash_after_answer": "unseen"}


def test_the_passphrase_of_the_keys_is_in_the_environment(
    pushkit_command: Run, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUSHKIT_KEY_PASSPHRASE", os.fsdecode(b"a pass\xff"))  # no UTF-8
    pushkit_command("keys", "new")
    call = ["doctor", webhook.url, "--token", TOKEN, "--only", "genuine"]
    assert pushkit_command(*call).status == 0
    monkeypatch.setenv("PUSHKIT_KEY_PASSPHRASE", "")
    assert "PUSHKIT_KEY_PASSPHRASE: found an empty value" in pushkit_command(*call).error


def test_a_receiver_of_other_signatures_is_examined_with_those(
    receiver_command: Run, webhook: Webhook, tmp_path: Path
) -> None:
    (tmp_path / "secrets").write_text(f"{generate_webhook_secret()}\n")
    by = ["--scheme", "standard-webhooks", "--webhook-secrets-file", "secrets"]
    checks = ["--only", "genuine", "--only", "signature", "--only", "audience"]
    call = ["doctor", webhook.url, "--token", TOKEN, *by, *checks, "--format", "json"]
    ran = receiver_command(*call)
    found = {each["check"]: each["outcome"] for each in json.loads(ran.out)["results"]}
    assert found == {"genuine": "passed", "signature": "failed", "audience": "unseen"}
    assert "webhook-signature" in dict(webhook.requests[0].headers)


def test_the_report_may_be_a_file(
    receiver_command: Run, examined: list[str], tmp_path: Path
) -> None:
    options = ["--only", "genuine", "--format", "junit", "--out", "report.xml"]
    ran = receiver_command(*examined, *options)
    assert (ran.status, ran.out) == (0, "1 passed, 0 failed, 0 unseen\n")
    assert 'testsuite name="pushkit doctor' in (tmp_path / "report.xml").read_text()


def test_a_report_replaces_a_report_of_any_format_alone(
    receiver_command: Run, examined: list[str], webhook: Webhook, tmp_path: Path
) -> None:
    call = [*examined, "--only", "genuine", "--out", "report"]
    for written_as in ("text", "json", "junit", "text"):
        assert receiver_command(*call, "--format", written_as).status == 0
    webhook.requests.clear()
    (tmp_path / "report").write_text("notes")
    assert "report: found another file, expected a report" in receiver_command(*call).error
    assert (tmp_path / "report").read_text() == "notes"
    assert not webhook.requests  # it is said before the examination


def test_a_receiver_that_does_not_run_is_said_to_be_out_of_reach(
    receiver_command: Run, examined: list[str]
) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    ran = receiver_command("doctor", f"{nobody}/", *examined[2:])
    assert ran.status == 1
    assert f"the receiver cannot be reached: {nobody}: Connect call failed" in ran.error


SEND = "-m pushkit.cli.main send update.json --issuer https://agent.example.com --allow 127.0.0.1:*"


@pytest.mark.slow
def test_a_sender_is_examined_by_a_command_that_makes_it_notify_each_url(
    receiver_command: Run, pushkit_command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "update.json").write_bytes(UPDATE)
    pushkit_command("keys", "new")
    once = ["--only", "accepted", "--only", "server_error"]
    run = ["--run", f"{sys.executable} {SEND} --to"]
    ran = receiver_command("doctor", "--sender", *run, *once, "--patience", "1", "--format", "json")
    assert ran.status == 0
    found = {each["check"]: each["outcome"] for each in json.loads(ran.out)["results"]}
    # `pushkit send` sends once: no retry can be seen.
    assert found == {"accepted": "passed", "server_error": "unseen"}
    assert json.loads(ran.out)["subject"] == "a sender, watched for 1 s"


@pytest.mark.slow
@pytest.mark.parametrize(("patience", "arrival"), [("2", "60"), ("90", "90")])
def test_a_sender_without_a_command_is_awaited_for_as_long_as_it_says(
    tmp_path: Path, patience: str, arrival: str
) -> None:
    call = [*forked("receiver.cli"), "doctor", "--sender", "--only", "gone", "--patience", patience]
    with subprocess.Popen(  # noqa: S603  # our own command
        call, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        shown = process.stderr.readline()
        process.kill()
    assert f"within {arrival} s; it is then watched for {patience} s:" in shown
