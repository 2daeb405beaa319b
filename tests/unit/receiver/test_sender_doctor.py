"""`doctor --sender`: pushkit's own sender passes, and faulty senders are reported."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from tenacity import stop_after_attempt, wait_fixed

from pushkit import KeyRing, PushSender, RetryPolicy, Scheme, SenderOptions, Signing
from pushkit.clock import utc_now
from pushkit.keys.jwks import jwks_response, parse_jwks
from pushkit.net.jwks_client import load_jwks
from pushkit.signing.standard_webhooks import generate_webhook_secret
from pushkit.webhook import TOKEN_HEADERS, Headers, WebhookRequest
from receiver.diagnosis.by_itself import Expected
from receiver.diagnosis.report import CheckOutcome, Examined
from receiver.diagnosis.sender import LANDED, SCENARIOS, examine_sender, fault
from receiver.diagnosis.sink import Sink, Visit
from receiver.options import Schemes
from receiver.testing import SigningAgent
from tests.ports import free_port
from tests.updates import working

SOON = RetryPolicy(wait=wait_fixed(1), stop=stop_after_attempt(5))
AT_ONCE = timedelta(milliseconds=100)


def sender(folder: Path, ring: KeyRing | None = None, **settings: Any) -> PushSender:
    return PushSender(
        issuer="https://agent.example.com",
        keys=ring or KeyRing.create(utc_now()),
        database=folder / "outbox.db",
        allow=["127.0.0.1:*"],
        **settings,
    )


async def examined(
    push: PushSender,
    *names: str,
    patience: timedelta,
    expected: Callable[[], Awaitable[Expected]] | None = None,
) -> dict[str, Examined]:
    async def drive(urls: Mapping[str, str]) -> None:
        for name, url in urls.items():
            await push.subscribe(name, {"url": url, "token": "abc"}, version="1.0", owner="alice")
            await push.notify(working(name))

    with contextlib.ExitStack() as stack:
        listeners = {
            name: stack.enter_context(socket.create_server(("127.0.0.1", free_port())))
            for name in names
        }
        results = examine_sender(listeners, drive, patience=patience, expected=expected)
        return {result.check: result async for result in results}


@pytest.mark.slow
@pytest.mark.usefixtures("no_stalls")  # an attempt may take a second, and a retry must not be early
async def test_pushkits_own_sender_does_nothing_wrong(tmp_path: Path) -> None:
    options = SenderOptions(retry=SOON, timeout=timedelta(seconds=1))
    loop, began = asyncio.get_running_loop(), utc_now()
    opened = loop.time()
    async with sender(
        tmp_path, options=options, clock=lambda: began + timedelta(seconds=loop.time() - opened)
    ) as push:
        results = await examined(push, *SCENARIOS, patience=timedelta(seconds=2.5))
    outcomes = {name: result.outcome for name, result in results.items()}
    assert CheckOutcome.FAILED not in outcomes.values(), results
    # The others may be unseen in so short a time on a slow machine.
    seen = {"accepted", "gone", "redirect"}
    assert {outcomes[name] for name in seen} == {CheckOutcome.PASSED}, results


SECRET = generate_webhook_secret()
SCHEMES = [
    pytest.param(Schemes(), id="jwt"),
    pytest.param(Schemes(names=(Scheme.HTTP_MESSAGE_SIGNATURES,)), id="http-message-signatures"),
    pytest.param(
        Schemes(names=(Scheme.STANDARD_WEBHOOKS,), webhook_secrets=(SECRET,)),
        id="standard-webhooks",
    ),
]


@pytest.mark.parametrize("schemes", SCHEMES)
@pytest.mark.parametrize("genuine", [True, False])
async def test_signatures_are_verified_if_keys_are_given(
    tmp_path: Path, schemes: Schemes, *, genuine: bool
) -> None:
    ring = KeyRing.create(utc_now())
    known = ring if genuine else KeyRing.create(utc_now())
    jwks = tmp_path / "jwks.json"
    jwks.write_bytes(jwks_response(known, utc_now()).body)
    secret = SECRET if genuine else generate_webhook_secret()
    secrets = [secret] if schemes.webhook_secrets else []

    async def expected() -> Expected:
        keys = await load_jwks(str(jwks)) if schemes.by_key else None
        return Expected(keys=keys, schemes=schemes, now=utc_now())

    signing = Signing(schemes=schemes.names, webhook_secrets=secrets)
    async with sender(tmp_path, ring, options=SenderOptions(signing=signing)) as push:
        results = await examined(push, "accepted", patience=AT_ONCE, expected=expected)
    result = results["accepted"]
    assert result.outcome is (CheckOutcome.PASSED if genuine else CheckOutcome.FAILED), result
    step = "signature" if schemes.by_key else "body"
    told = f"a receiver would refuse request 1 at step {step} (invalid_signature)"
    assert [detail.partition(":")[0] for detail in result.details] == ([] if genuine else [told])


async def test_a_signature_that_another_library_refuses_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise jwt.InvalidSignatureError("another reading")

    monkeypatch.setattr(jwt.PyJWS, "decode", refused)
    ring = KeyRing.create(utc_now())
    keys = parse_jwks(jwks_response(ring, utc_now()).body).keys

    async def expected() -> Expected:
        return Expected(keys=keys, schemes=Schemes(), now=utc_now())

    async with sender(tmp_path, ring) as push:
        results = await examined(push, "accepted", patience=AT_ONCE, expected=expected)
    [detail] = results["accepted"].details
    assert "PyJWT refuses it: another reading" in detail


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        *[pytest.param([(name, "abc")], "", id=name) for name in TOKEN_HEADERS],
        pytest.param([("X-A2A-Token", "a\u00e9")], "", id="not-ascii"),
        pytest.param([], "", id="none"),
        pytest.param([("X-A2A-Token", "")], "invalid_token", id="empty"),
        pytest.param([(name, name) for name in TOKEN_HEADERS], "invalid_token", id="different"),
    ],
)
def test_a_token_may_be_in_any_of_its_headers(headers: list[tuple[str, str]], told: str) -> None:
    agent = SigningAgent(webhook_url="http://127.0.0.1:9000/x")
    genuine = agent.draft("task-1").request()
    fields = [field for field in genuine.headers if field[0] not in TOKEN_HEADERS]
    request = replace(genuine, target="/x", headers=Headers([*fields, *headers]))
    keys = [agent.key.to_verification_key()]

    expected = Expected(keys=keys, schemes=Schemes(), now=utc_now())

    visits = [Visit(at=0, request=request)]
    found = fault(visits, expected, url="http://127.0.0.1:9000", opened=utc_now())

    assert told in found
    assert bool(told) is bool(found)


def visit(at: float = 0.0, *, jti: str = "dlv_1", body: bytes = b"{}", **changes: object) -> Visit:
    headers = Headers({"webhook-id": jti, "webhook-signature": "v1,abc"})
    target = str(changes.pop("target", "/x"))
    request = WebhookRequest(target=target, headers=headers, body=body)
    return Visit(at=at, request=request, **changes)  # type: ignore[arg-type]


UNSIGNED = Visit(
    at=0, request=WebhookRequest(target="/", headers=Headers({"webhook-id": "1"}), body=b"{}")
)
WRONG = [
    pytest.param("accepted", [visit(0), visit(5)], "1 more times after a 2xx", id="repeats a 2xx"),
    pytest.param("accepted", [UNSIGNED], "not signed", id="signs nothing"),
    pytest.param("server_error", [visit(0), visit(5, jti="2")], "another id", id="changes the id"),
    pytest.param("server_error", [visit(0), visit(5, body=b"")], "other bytes", id="writes again"),
    pytest.param("server_error", [visit(0), visit(0.1)], "retried after 100 ms", id="hammers"),
    pytest.param("no_http", [visit(0, jti=""), visit(5, jti="")], "no webhook-id", id="has no ids"),
    pytest.param("retry_after", [visit(0), visit(2)], "after 2.0 s", id="does not wait"),
    pytest.param("gone", [visit(0), visit(5)], "1 more requests", id="goes on after 410"),
    pytest.param("redirect", [visit(0), visit(0, target=LANDED)], "followed", id="follows"),
    pytest.param("slow", [visit(0, stayed=55.0)], "longer than 35 s", id="waits too long"),
    pytest.param("dripped_body", [visit(0)], "longer than 35 s", id="waits for drops"),
    pytest.param(
        "endless_body",
        [visit(0, stayed=1.0, taken=2**30)],
        "bytes of the answer",
        id="swallows all",
    ),
]


@pytest.mark.parametrize(("scenario", "visits", "says"), WRONG)
def test_a_faulty_sender_is_reported(scenario: str, visits: list[Visit], says: str) -> None:
    outcome, details = SCENARIOS[scenario].conclude(visits, 60.0)
    assert outcome is CheckOutcome.FAILED
    assert says in details[0]


@pytest.mark.parametrize(
    ("scenario", "watched"), [("server_error", 60.0), ("retry_after", 4.0), ("slow", 10.0)]
)
def test_a_scenario_that_was_not_watched_for_long_enough_is_unseen(
    scenario: str, watched: float
) -> None:
    outcome, details = SCENARIOS[scenario].conclude([visit(0)], watched)
    assert outcome is CheckOutcome.UNSEEN
    assert "--patience" in details[0]


async def test_a_connection_that_is_opened_at_the_end_is_closed_too() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_connection(sock=ours)
        sink = Sink({})
        sink.accept(reader, writer)
        await sink.close()
        assert writer.is_closing()
