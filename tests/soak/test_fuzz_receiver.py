"""A short fuzz in the suite; the long one: `python tests/soak/fuzz_receiver.py --cases 1000000`."""

from __future__ import annotations

from pathlib import Path

import pytest

from pushkit.webhook import WebhookRequest
from receiver import Receiver, Verdict
from tests.soak import fuzz_receiver

CASES = 500
# What must have been met, or the fuzzer only knocks at the door.
MET = ("202 accepted", "401 invalid_signature", "401 digest_mismatch", "401 invalid_token")


def test_no_request_breaks_a_promise(tmp_path: Path) -> None:
    fuzzer = fuzz_receiver.fuzz(CASES, chance=1, folder=tmp_path)

    assert fuzzer.cases >= CASES / 2  # Hypothesis may find repetitions, and leaves them out
    assert not [answer for answer in MET if not fuzzer.answers[answer]], fuzzer.answers


def test_a_false_accept_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("receiver.pipeline.verify_body", lambda *_: None)

    with pytest.raises(AssertionError, match="false accept"):
        fuzz_receiver.fuzz(CASES, chance=1, folder=tmp_path)


def test_a_secret_in_the_log_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receive = Receiver.receive

    async def telling(self: Receiver, request: WebhookRequest, *, peer: str = "") -> Verdict:
        verdict = await receive(self, request, peer=peer)
        fuzz_receiver._LINES.lines[-1] += f" with {fuzz_receiver.TOKEN}"
        return verdict

    monkeypatch.setattr(Receiver, "receive", telling)

    with pytest.raises(AssertionError, match="a secret is in"):
        fuzz_receiver.fuzz(10, chance=1, folder=tmp_path)
