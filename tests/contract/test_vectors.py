"""docs/vectors: what they say of a request is what our receiver says."""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from pytest_aiohttp.plugin import AiohttpServer

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
ACCEPTED = [one["id"] for one in PURE if one["expected"]["status"] == 202]
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


def _request(vector: dict[str, Any]) -> WebhookRequest:
    request = vector["request"]
    return WebhookRequest(
        method=request["method"],
        target=request["target"],
        headers=Headers([(name, value) for name, value in request["headers"]]),
        body=request["body"].encode(),
    )


def _answer(vector: dict[str, Any], trust: Any) -> tuple[int, str]:
    try:
        verify_notification(_request(vector), trust, now=NOW)
    except InboundError as exc:
        return exc.status, exc.code
    return 202, "accepted"


def test_the_rules_say_of_every_vector_what_it_says() -> None:
    trust = load_trust(URL, senders())
    assert {one["id"]: _answer(one, trust) for one in PURE} == {
        one["id"]: _expected(one) for one in PURE
    }


@pytest.mark.parametrize("name", [*ACCEPTED, *STATEFUL])
async def test_a_receiver_accepts_it_or_says_the_rest(name: str, tmp_path: Path) -> None:
    vector = VECTORS[name]
    vectors = [*([VECTORS[vector["after"]]] if vector["after"] else []), vector]
    async with _receiver(tmp_path) as receiver:
        answers = [await receiver.receive(_request(one)) for one in vectors]
    assert [(one.status, one.code) for one in answers] == list(map(_expected, vectors))


@pytest.mark.parametrize("edge", ["aiohttp", "asgi"])
@pytest.mark.slow
async def test_a_receiver_refuses_each_that_it_must_and_keeps_and_tells_nothing_of_it(
    edge: str, tmp_path: Path, aiohttp_server: AiohttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    refused = [one for one in PURE if one["id"] not in ACCEPTED]
    async with _receiver(tmp_path) as receiver:
        url = str((await aiohttp_server(receiver.app())).make_url("")) if edge == "aiohttp" else URL
        transport = httpx.ASGITransport(receiver.asgi()) if edge == "asgi" else None
        async with httpx.AsyncClient(base_url=url, transport=transport) as client:
            answers = {one["id"]: await _post(client, _request(one)) for one in refused}
        stored = (await receiver.inbox.stats()).statuses

    found = {name: (answer.status_code, answer.json()["code"]) for name, answer in answers.items()}
    assert found == {one["id"]: _expected(one) for one in refused}
    assert not any(stored.values())
    said = caplog.text + "".join(answer.text for answer in answers.values())
    assert not [secret for secret in _secrets() if secret in said]


def _secrets() -> list[str]:
    names = ("tokens", "credentials", "webhook_secrets")
    return [secret for one in DOCUMENT["senders"] for name in names for secret in one.get(name, [])]


def _receiver(folder: Path) -> Receiver:
    return Receiver(url=URL, senders=senders(), database=folder / "inbox.db", clock=lambda: NOW)


def _expected(vector: dict[str, Any]) -> tuple[int, str]:
    return vector["expected"]["status"], vector["expected"]["code"]


async def _post(client: httpx.AsyncClient, request: WebhookRequest) -> httpx.Response:
    return await client.request(
        request.method, request.target, headers=list(request.headers), content=request.body
    )


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


@pytest.mark.slow
def test_the_files_are_what_the_script_writes() -> None:
    written = document()
    assert json.loads((FOLDER / "jwks.json").read_bytes()) == published()
    assert DOCUMENT["senders"] == written["senders"]
    assert _repeatable(DOCUMENT["vectors"]) == _repeatable(written["vectors"])
