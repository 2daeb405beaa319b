"""`doctor` as it is called: its report, its exit status, and who has to consent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import TOKEN, Run, Webhook


@pytest.fixture
def examined(pushkit_command: Run, webhook: Webhook) -> list[str]:
    """A webhook that accepts everything, and what it is examined with."""
    pushkit_command("keys", "new")
    return ["doctor", webhook.url, "--token", TOKEN]


def test_a_broken_promise_is_status_1_and_stands_in_the_report(
    receiver_command: Run, examined: list[str]
) -> None:
    checks = ["--only", "genuine", "--only", "token", "--only", "crash_after_answer"]
    ran = receiver_command(*examined, *checks, "--format", "json")
    assert ran.status == 1
    assert ran.err == "1 passed, 1 failed, 1 unseen\n"
    found = {each["check"]: each["outcome"] for each in json.loads(ran.out)["results"]}
    assert found == {"genuine": "passed", "token": "failed", "crash_after_answer": "unseen"}


def test_the_report_may_be_a_file(
    receiver_command: Run, examined: list[str], tmp_path: Path
) -> None:
    options = ["--only", "genuine", "--format", "junit", "--out", "report.xml"]
    ran = receiver_command(*examined, *options)
    assert (ran.status, ran.out) == (0, "1 passed, 0 failed, 0 unseen\n")
    assert 'testsuite name="pushkit doctor' in (tmp_path / "report.xml").read_text()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        pytest.param(["--only", "nonsense"], "expected some of genuine, retry", id="check"),
        pytest.param(["--observe", "./none.sh"], "no such command", id="observe"),
        pytest.param(["--observe", "echo 'x"], "a quote is not closed", id="quote"),
        pytest.param(["--keys", "keys.json", "--token", "x"], "at least 16", id="token"),
    ],
)
def test_what_it_cannot_begin_with_is_said_in_a_line(
    receiver_command: Run, examined: list[str], options: list[str], says: str
) -> None:
    ran = receiver_command(*examined, *options)
    assert ran.status == 1
    assert says in ran.error
