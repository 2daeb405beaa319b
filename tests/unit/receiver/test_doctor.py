"""`doctor`: it catches each wrong receiver, or names the checks that it could not make."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pytest_aiohttp.plugin import AiohttpServer

from pushkit.errors import ConfigError
from pushkit.signing.scheme import Scheme
from pushkit.signing.standard_webhooks import generate_webhook_secret
from receiver import Limits, Receiver, TaskPolicy, TrustedSender
from receiver.diagnosis.checks import BODY_CHECKS, CHECKS
from receiver.diagnosis.report import CheckOutcome, Examined, as_json, as_junit, as_text, summary
from receiver.diagnosis.subject import ReceiverAtUrl, check_consent
from receiver.diagnosis.trial import Trial, chosen, examine
from receiver.testing import SigningAgent
from tests.ports import free_port
from tests.unit.receiver.wrong.miniature import Miniature
from tests.unit.receiver.wrong.receivers import (
    CAUGHT_BY,
    AnswersBeforeStoring,
    CheckThenInsert,
    MarksBeforeStoring,
    NoReplayCheck,
)

pytestmark = pytest.mark.usefixtures("no_stalls")

NAMES = (*CHECKS, "malformed_json", "oversized_body", "slow_body")
SECONDS = timedelta(seconds=1.5)  # on a clock that stops while this process is suspended
RESTART = """\
touch restart-please
while [ -e restart-please ]; do sleep 0.02; done
"""


class Noted(list[str]):
    """The calls, also in a file that a command can print."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def append(self, delivery_id: str) -> None:
        super().append(delivery_id)
        with self._path.open("a") as file:
            file.write(f"{delivery_id}\n")


Run = Callable[[type[Miniature]], contextlib.AbstractAsyncContextManager[Miniature]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a receiver, whose calls a command prints, and which a command restarts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "restart.sh").write_text(RESTART)

    @contextlib.asynccontextmanager
    async def running(kind: type[Miniature]) -> AsyncIterator[Miniature]:
        subject = kind(tmp_path, free_port())
        subject._called = Noted(tmp_path / "called.txt")
        await subject.start()

        async def restarting() -> None:
            asked = tmp_path / "restart-please"
            while True:
                if asked.exists():
                    await subject.restart()
                    asked.unlink()
                await asyncio.sleep(0.01)

        task = asyncio.create_task(restarting())
        try:
            yield subject
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await subject.stop()

    return running


async def found(
    agent: SigningAgent, *only: str, patience: timedelta = SECONDS, **commands: Any
) -> dict[str, Examined]:
    """Examine the receiver at an agent's webhook, which its commands observe and restart."""
    subject = ReceiverAtUrl(agent.webhook_url, **commands)
    checks = chosen({**CHECKS, **BODY_CHECKS}, only)
    results = examine(checks, lambda: Trial(subject, agent, SECONDS, 20, patience))
    return {result.check: result async for result in results}


def failed(results: dict[str, Examined]) -> set[str]:
    return {name for name, result in results.items() if result.outcome is CheckOutcome.FAILED}


UNSEEN_OVER_HTTP = [CheckThenInsert, MarksBeforeStoring, AnswersBeforeStoring]


@pytest.mark.parametrize("kind", [*UNSEEN_OVER_HTTP, NoReplayCheck], ids=lambda kind: kind.__name__)
@pytest.mark.slow
async def test_what_http_alone_does_not_show_is_caught_with_both_commands(
    run: Run, kind: type[Miniature]
) -> None:
    async with run(kind) as wrong:
        checks = ["genuine", *CAUGHT_BY[kind]]
        observe, restart = "cat called.txt", "sh restart.sh"
        results = await found(wrong.agent, *checks, observe=observe, restart=restart)
    assert failed(results) == CAUGHT_BY[kind]
    assert results["genuine"].outcome is CheckOutcome.PASSED


@pytest.mark.parametrize("kind", CAUGHT_BY, ids=lambda kind: kind.__name__)
@pytest.mark.slow
async def test_a_wrong_receiver_is_caught_over_http_alone_or_its_check_is_unseen(
    run: Run, kind: type[Miniature]
) -> None:
    async with run(kind) as wrong:
        results = await found(wrong.agent, "genuine", *CAUGHT_BY[kind])
    unseen = {name for name, each in results.items() if each.outcome is CheckOutcome.UNSEEN}
    assert failed(results) | unseen == CAUGHT_BY[kind]
    assert bool(failed(results)) == (kind not in UNSEEN_OVER_HTTP)
    for name in unseen:
        assert "--observe" in results[name].details[0]


Ours = Callable[..., Awaitable[SigningAgent]]


@pytest.fixture
def ours(aiohttp_server: AiohttpServer, tmp_path: Path) -> Ours:
    """Run pushkit's own receiver; return the agent that it trusts, which signs by a scheme."""

    async def run(scheme: Scheme = Scheme.JWT) -> SigningAgent:
        port = free_port()
        secrets = (generate_webhook_secret(),) if scheme is Scheme.STANDARD_WEBHOOKS else ()
        agent = SigningAgent(
            webhook_url=f"http://127.0.0.1:{port}/a2a/push",
            schemes=frozenset({scheme}),
            webhook_secrets=secrets,
        )
        sender = TrustedSender(
            name="agent",
            issuer=agent.issuer if scheme is Scheme.JWT else None,
            keys=None if secrets else [agent.key.to_verification_key()],
            schemes=[scheme],
            webhook_secrets=secrets,
            tokens=[agent.token],
            tasks=TaskPolicy.ANY,
        )
        receiver = Receiver(
            url=f"http://127.0.0.1:{port}",
            senders=[sender],
            database=tmp_path / "inbox.db",
            limits=Limits(request_timeout=timedelta(seconds=2)),
        )
        await aiohttp_server(receiver.app(), port=port)
        return agent

    return run


@pytest.mark.slow
async def test_pushkits_own_receiver_breaks_no_promise_that_can_be_seen(ours: Ours) -> None:
    agent = await ours()
    results = await found(agent, patience=timedelta(seconds=25))
    assert failed(results) == set()
    assert set(results) == set(NAMES)
    unseen = [name for name, each in results.items() if each.outcome is CheckOutcome.UNSEEN]
    assert set(unseen) == {
        "concurrent_copies",
        "crash_after_answer",
        "crash_before_answer",
        "retry",
        "retry_after_restart",
    }


@pytest.mark.parametrize("scheme", [Scheme.HTTP_MESSAGE_SIGNATURES, Scheme.STANDARD_WEBHOOKS])
async def test_the_doctor_signs_by_the_scheme_that_a_receiver_expects(
    ours: Ours, scheme: Scheme
) -> None:
    agent = await ours(scheme)
    checks = ["genuine", "signature", "raw_body", "timestamp", "audience", "token", "silence"]
    results = await found(agent, *checks, "conflict", "key_from_message")
    assert failed(results) == set()
    unseen = {name for name, each in results.items() if each.outcome is CheckOutcome.UNSEEN}
    assert unseen == {"key_from_message"} | ({"audience"} if agent.webhook_secrets else set())


@pytest.mark.slow
async def test_a_receiver_that_takes_any_body_and_waits_for_it_is_caught(run: Run) -> None:
    async with run(Miniature) as careless:
        strained = ("malformed_json", "oversized_body", "slow_body")
        results = await found(careless.agent, *strained, patience=timedelta(seconds=1))
    assert failed(results) == {"malformed_json", "slow_body"}
    assert "a body that is not JSON: answered 202" in results["malformed_json"].details[0]


async def test_checks_that_a_receiver_that_accepts_nothing_would_pass_are_shown_as_not_run(
    run: Run,
) -> None:
    async with run(Miniature) as receiver:
        stranger = SigningAgent(webhook_url=receiver.agent.webhook_url)
        results = await found(stranger)
    assert list(results) == list(NAMES)
    assert failed(results) == {"genuine"}
    others = [result for name, result in results.items() if name != "genuine"]
    assert {result.outcome for result in others} == {CheckOutcome.NOT_RUN}
    suite = ET.fromstring(as_junit("it", list(results.values())))  # noqa: S314  # our own
    assert (suite.get("tests"), suite.get("skipped")) == ("17", "16")
    assert all("not run" in str(each.get("message")) for each in suite.iter("skipped"))
    assert summary(list(results.values())) == "0 passed, 1 failed, 0 unseen, 16 not run"


@pytest.mark.parametrize("check", ["silence", "malformed_json", "oversized_body"])
async def test_a_receiver_that_accepts_nothing_passes_no_check_that_is_run_alone(
    run: Run, check: str
) -> None:
    async with run(Miniature) as receiver:
        stranger = SigningAgent(webhook_url=receiver.agent.webhook_url)
        results = await found(stranger, check)
    assert failed(results) == {check}


@pytest.mark.parametrize("observe", [None, "cat called.txt"])
async def test_what_cannot_be_seen_is_not_claimed(run: Run, observe: str | None) -> None:
    async with run(Miniature) as receiver:
        checks = ["genuine", "conflict", "signature"]
        results = await found(receiver.agent, *checks, observe=observe)
    assert {result.outcome for result in results.values()} == {CheckOutcome.PASSED}
    claims = [result.promise for result in results.values() if "called back" in result.promise]
    assert bool(claims) is (observe is not None)
    for name in ("genuine", "conflict"):
        assert ("add --observe" in "".join(results[name].details)) is (observe is None)


async def test_a_refusal_names_the_steps_that_its_code_can_come_from(ours: Ours) -> None:
    agent = await ours()
    stranger = SigningAgent(webhook_url=agent.webhook_url, token=agent.token)
    results = await found(stranger, "genuine")
    told = "answered 401 invalid_signature, by step signature or body, expected 2xx"
    assert results["genuine"].details == (told,)


async def test_a_command_that_fails_is_reported(run: Run) -> None:
    async with run(Miniature) as receiver:
        with pytest.raises(ConfigError, match="--observe: cat ended with status 1"):
            await found(receiver.agent, "genuine", observe="cat none.txt")


async def test_a_process_that_a_command_leaves_running_is_not_waited_for(run: Run) -> None:
    left = "sh -c 'sleep 600 & echo $!'"  # it keeps the command's output open
    async with run(Miniature) as receiver:
        subject = ReceiverAtUrl(receiver.agent.webhook_url, observe=left)
        async with asyncio.timeout(60):
            [pid] = await subject.callbacks()
        os.kill(int(pid), signal.SIGKILL)


# --- consent --------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/", "http://[::1]:9/", "http://localhost/"])
async def test_this_machine_needs_no_consent(url: str) -> None:
    await check_consent(ReceiverAtUrl(url), operated=False)


async def test_the_operators_confirmation_is_enough_for_another_machine() -> None:
    await check_consent(ReceiverAtUrl("https://client.example.com/push"), operated=True)


@pytest.mark.parametrize("echoes", [True, False])
async def test_another_machine_that_echoes_a_token_has_consented(
    aiohttp_server: AiohttpServer, tmp_path: Path, echoes: bool
) -> None:
    port, sender = free_port(), TrustedSender(name="agent", issuer="urn:agent", keys=[])
    receiver = Receiver(
        url="http://127.0.0.1",
        senders=[sender],
        database=tmp_path / "inbox.db",
        validation_echo=echoes,
    )
    await aiohttp_server(receiver.app(), port=port)
    refused = contextlib.nullcontext() if echoes else pytest.raises(ConfigError, match="i-operate")
    with refused:
        # RFC 6761 §6.3: names below localhost are this machine, but doctor does not rely on that.
        await check_consent(
            ReceiverAtUrl(f"http://app.localhost:{port}{sender.path}"),
            operated=False,
        )


# --- reports --------------------------------------------------------------------------------------

RESULTS = [
    Examined(check="genuine", promise="It is accepted.", outcome=CheckOutcome.PASSED),
    Examined(
        check="token",
        promise='Only "the" token <whole>.',
        outcome=CheckOutcome.FAILED,
        details=("no token: answered 202, expected 401", "a \x1b[31m & more"),
    ),
    Examined(check="retry", promise="Once.", outcome=CheckOutcome.UNSEEN, details=("--observe",)),
]


def test_junit_has_failed_checks_as_failures_and_unseen_ones_as_skipped() -> None:
    suite = ET.fromstring(as_junit("http://127.0.0.1:9000/", RESULTS))  # noqa: S314  # our own
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    [failure] = suite.findall("testcase/failure")
    assert failure.get("message") == "no token: answered 202, expected 401; a \\x1b[31m & more"
    assert failure.text == 'Only "the" token <whole>.'
    assert len(suite.findall("testcase/skipped")) == 1


def test_json_has_every_result() -> None:
    document = json.loads(as_json("http://127.0.0.1:9000/", RESULTS))
    assert [each["outcome"] for each in document["results"]] == ["passed", "failed", "unseen"]


def test_text_has_a_line_per_check_and_a_summary() -> None:
    lines = as_text("http://127.0.0.1:9000/", RESULTS).splitlines()
    assert lines[0].startswith("✓ genuine")
    assert "    no token: answered 202, expected 401" in lines
    assert not any("\x1b" in line for line in lines)
    assert summary(RESULTS) == "1 passed, 1 failed, 1 unseen"
