"""docs/vectors: what they say of a request is what our receiver says."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from pushkit.a2a import WireVersion
from pushkit.keys.jwks import parse_jwks
from receiver import (
    Headers,
    InboundError,
    Receiver,
    Scheme,
    SenderProfile,
    TaskPolicy,
    TrustedSender,
    WebhookRequest,
    load_trust,
    verify_notification,
)
from tests.verification.interop.vectors.crypto import FOLDER
from tests.verification.interop.vectors.generate import document, published

DOCUMENT: dict[str, Any] = json.loads((FOLDER / "notifications.json").read_bytes())
VECTORS: dict[str, dict[str, Any]] = {vector["id"]: vector for vector in DOCUMENT["vectors"]}
NOW = datetime.fromtimestamp(DOCUMENT["now"], UTC)
URL = "https://client.example.com"
# Steps 2 to 6 are one pure function; what comes before and behind them takes a receiver.
PURE = [one for one in VECTORS.values() if one["expected"]["step"] not in {1, 7}]
STATEFUL = [one["id"] for one in VECTORS.values() if one["expected"]["step"] in {1, 7}]


def senders() -> list[TrustedSender]:
    keys = parse_jwks((FOLDER / "jwks.json").read_bytes()).keys
    return [_sender(one, keys) for one in DOCUMENT["senders"]]


def _sender(said: dict[str, Any], keys: Any) -> TrustedSender:
    profile = SenderProfile(said["profile"])
    schemes = [Scheme(name) for name in said["schemes"]]
    by_key = profile.signed and schemes != [Scheme.STANDARD_WEBHOOKS]
    return TrustedSender(
        name=said["name"],
        path=said["path"],
        profile=profile,
        schemes=schemes,
        issuer=said.get("issuer"),
        audience=[said["audience"]] if "audience" in said else [],
        keys=keys if by_key else None,
        tokens=said.get("tokens", []),
        token_required="tokens" in said,
        credentials=said.get("credentials", []),
        webhook_secrets=said.get("webhook_secrets", []),
        tasks=TaskPolicy.ANY,
    )


def _answer(vector: dict[str, Any], trust: Any) -> tuple[int, str]:
    request = vector["request"]
    try:
        verify_notification(
            WebhookRequest(
                method=request["method"],
                target=request["target"],
                headers=Headers([(name, value) for name, value in request["headers"]]),
                body=request["body"].encode(),
            ),
            trust,
            now=NOW,
        )
    except InboundError as exc:
        return exc.status, exc.code
    return 202, "accepted"


def test_the_rules_say_of_every_vector_what_it_says() -> None:
    trust = load_trust(URL, senders())
    expected = {one["id"]: (one["expected"]["status"], one["expected"]["code"]) for one in PURE}
    assert {one["id"]: _answer(one, trust) for one in PURE} == expected


@pytest.mark.parametrize("name", STATEFUL)
async def test_the_receiver_says_the_rest(name: str, tmp_path: Path) -> None:
    vector = VECTORS[name]
    before = [VECTORS[vector["after"]]] if vector["after"] else []
    answers = await _post([*before, vector], tmp_path)
    assert answers == [_expected(one) for one in [*before, vector]]


def _expected(vector: dict[str, Any]) -> tuple[int, str]:
    status, code = vector["expected"]["status"], vector["expected"]["code"]
    return status, code if status >= 400 else ""  # what is accepted has an empty answer


async def _post(vectors: Sequence[dict[str, Any]], folder: Path) -> list[tuple[int, str]]:
    receiver = Receiver(url=URL, senders=senders(), database=folder / "inbox.db", clock=lambda: NOW)
    answers = []
    transport = httpx.ASGITransport(receiver.asgi())
    async with receiver, httpx.AsyncClient(transport=transport, base_url=URL) as client:
        for request in (one["request"] for one in vectors):
            answer = await client.request(
                request["method"],
                request["target"],
                headers=[(name, value) for name, value in request["headers"]],
                content=request["body"].encode(),
            )
            code = answer.json()["code"] if answer.status_code >= 400 else ""
            answers.append((answer.status_code, code))
    return answers


def test_every_sender_scheme_profile_and_version_has_one_that_is_accepted() -> None:
    genuine = [one for one in VECTORS.values() if one["expected"]["status"] == 202]
    assert {one["request"]["sender"] for one in genuine} == {s["name"] for s in DOCUMENT["senders"]}
    assert {scheme for one in DOCUMENT["senders"] for scheme in one["schemes"]} == {*Scheme}
    assert {one["profile"] for one in DOCUMENT["senders"]} == {*SenderProfile}
    assert {one["a2a"] for one in genuine} == {*WireVersion}


def _program() -> str:
    page = (FOLDER / "README.md").read_text("utf-8")
    programs: list[str] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    return programs[-1].replace("docs/vectors", str(FOLDER))


def _judged_wrongly(program: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    exec(program, {})  # noqa: S102 - the page's own
    return [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]


def test_the_program_of_the_page_judges_every_vector_rightly(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _judged_wrongly(_program(), capsys) == []


def test_the_program_of_the_page_names_what_it_no_longer_refuses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept = [line for line in _program().splitlines(keepends=True) if 'jti"] ==' not in line]
    assert _judged_wrongly("".join(kept), capsys) == ["jti-differs"]


def _repeatable(vectors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in vectors if "ps256" not in json.dumps(one)]  # which has a salt


def test_the_files_are_what_the_script_writes() -> None:
    written = document()
    assert json.loads((FOLDER / "jwks.json").read_bytes()) == published()
    assert DOCUMENT["senders"] == written["senders"]
    assert _repeatable(DOCUMENT["vectors"]) == _repeatable(written["vectors"])
