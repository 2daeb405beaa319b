"""The schemes beside the JWT, or in its place (wire profile §3)."""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pushkit.errors import ConfigError, InboundError, KeysUnavailableError
from pushkit.keys.jwk import Algorithm, SigningKey, generate_key
from pushkit.signing.http_message_signatures import sign_http_message
from pushkit.signing.jose import at_once
from pushkit.signing.standard_webhooks import (
    generate_webhook_secret,
    read_signers,
    webhook_public_key,
)
from pushkit.webhook import Headers
from receiver import (
    Scheme,
    SenderProfile,
    TaskPolicy,
    TaskState,
    TrustedSender,
    load_trust,
    verify_notification,
)
from receiver.request import Request
from receiver.selection import UnknownSenderError
from receiver.testing import Draft
from receiver.trust import Trust
from tests.clock import START
from tests.eventually import DEADLINE
from tests.unit.receiver.drafts import (
    BASE,
    HTTP,
    JWT,
    PATH,
    SECRET,
    WEBHOOKS,
    adding,
    claiming,
    sending,
    signed_with,
    trusted,
)  # fmt: skip
from tests.unit.receiver.selecting import holding, selected_by, selected_of, signed_by, unreachable

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory

Change = Callable[[Draft], Draft]

ISSUER = "https://agent.example.com"
OTHER_SECRET = generate_webhook_secret()
ED25519 = generate_key(Algorithm.EDDSA)
PRIVATE = (
    "whsk_"
    + base64.b64encode(
        ED25519.private_key.private_bytes_raw()  # type: ignore[union-attr]
        + ED25519.private_key.public_key().public_bytes_raw()  # type: ignore[union-attr]
    ).decode()
)


async def receive(world: World, draft: Draft) -> tuple[int, str]:
    verdict = await world.receive(draft)
    return verdict.status, verdict.code


COMBINATIONS = [
    pytest.param((JWT,), id="jwt"),
    pytest.param((WEBHOOKS,), id="standard-webhooks"),
    pytest.param((HTTP,), id="http-message-signatures"),
    pytest.param((JWT, WEBHOOKS), id="jwt-and-standard-webhooks"),
    pytest.param((JWT, HTTP), id="jwt-and-http-message-signatures"),
    pytest.param((WEBHOOKS, HTTP), id="no-jwt"),
    pytest.param((JWT, WEBHOOKS, HTTP), id="all"),
]


# --- accepted -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spaces", "elsewhere"),
    [pytest.param(0, False, id="small"), pytest.param(300_000, True, id="large")],
)
async def test_a_large_body_is_hashed_beside_the_event_loop(
    make_world: WorldFactory, monkeypatch: pytest.MonkeyPatch, spaces: int, *, elsewhere: bool
) -> None:
    world = make_world(**trusted(JWT, WEBHOOKS, HTTP))
    draft = world.draft()
    draft = replace(draft, body=draft.body + b" " * spaces)
    threads, genuine = set(), hmac.digest

    def digest(key: bytes, message: bytes, kind: str) -> bytes:
        threads.add(threading.get_ident())
        return genuine(key, message, kind)

    request = draft.request()
    await world.start()
    monkeypatch.setattr(hmac, "digest", digest)
    verdict = await world.receiver.receive(request, peer="192.0.2.1")
    assert verdict.status == 202
    assert (threads != {threading.get_ident()}) is elsewhere
    request = replace(request, body=request.body + b" ")
    verdict = await world.receiver.receive(request, peer="192.0.2.1")
    assert verdict.code == "digest_mismatch"


@pytest.mark.usefixtures("no_threads_of_asyncio")
async def test_large_bodies_are_accepted_though_the_application_has_used_up_asyncios_threads(
    world: World,
) -> None:
    await world.start()
    drafts: list[Draft] = []
    for spaces in (300_000, 20_000, 0):
        draft = world.draft(task_id=f"task-{spaces}")
        drafts.append(replace(draft, body=draft.body + b" " * spaces))

    async with asyncio.timeout(DEADLINE):
        found = await asyncio.gather(*(world.receive(draft) for draft in drafts))

    assert [each.status for each in found] == [202, 202, 202]


@pytest.mark.parametrize("schemes", COMBINATIONS)
async def test_a_request_signed_by_the_senders_schemes_is_accepted(
    make_world: WorldFactory, schemes: tuple[Scheme, ...]
) -> None:
    world = make_world(**trusted(*schemes))
    draft, signed_at = world.draft(), world.clock.now
    world.clock.advance(60)
    assert await receive(world, draft) == (202, "accepted")
    found = await world.receiver.wait("task-1", until={TaskState.WORKING}, timeout=DEADLINE)
    assert found.issued_at == signed_at
    assert found.kid == ("" if set(schemes) == {WEBHOOKS} else draft.key.kid)


@pytest.mark.parametrize("schemes", COMBINATIONS)
async def test_the_webhook_id_distinguishes_a_retry_from_a_conflict(
    make_world: WorldFactory, schemes: tuple[Scheme, ...]
) -> None:
    world = make_world(**trusted(*schemes))
    await receive(world, world.draft())
    world.clock.advance(60)
    assert await receive(world, world.draft()) == (200, "duplicate")
    other = replace(world.draft(), body=world.draft().body + b" ")
    assert await receive(world, other) == (409, "id_conflict")


@pytest.mark.parametrize("schemes", COMBINATIONS)
def test_the_pure_function_accepts(make_world: WorldFactory, schemes: tuple[Scheme, ...]) -> None:
    world = make_world(**trusted(*schemes))
    draft = world.draft()
    verified = verify_notification(
        draft.request(), load_trust(BASE, [world.sender]), now=world.clock.now
    )
    assert (verified.delivery_id, verified.task_id) == (draft.delivery_id, "task-1")
    assert verified.issued_at == world.clock.now
    assert verified.seq == (1 if JWT in schemes else None)


async def test_signatures_that_a_sender_need_not_make_are_ignored(make_world: WorldFactory) -> None:
    world = make_world()
    draft = signed_with(world.draft(), JWT, WEBHOOKS, HTTP)
    unread = after(webhook_signature="v1,AAAA", Signature="no(dictionary", Content_Digest="x")
    draft = unread(draft)
    assert await receive(world, draft) == (202, "accepted")


async def test_a_jwt_is_not_looked_at_where_another_scheme_is_trusted(
    make_world: WorldFactory,
) -> None:
    world = make_world(**trusted(HTTP))
    draft = signed_with(world.draft(), JWT, HTTP)
    draft = claiming(draft, aud="https://other.example.com/", jti="another")
    assert await receive(world, draft) == (202, "accepted")


async def test_an_ed25519_key_verifies_standard_webhooks(make_world: WorldFactory) -> None:
    settings = {**trusted(WEBHOOKS), "webhook_secrets": [webhook_public_key(ED25519)]}
    world = make_world(**settings)
    draft = replace(world.draft(), signers=read_signers([PRIVATE]))
    assert await receive(world, draft) == (202, "accepted")


async def test_secrets_overlap_while_one_is_replaced(make_world: WorldFactory) -> None:
    settings = {**trusted(WEBHOOKS), "webhook_secrets": [OTHER_SECRET, SECRET]}
    world = make_world(**settings)
    for number, secrets in enumerate([(SECRET,), (OTHER_SECRET,), (OTHER_SECRET, SECRET)], 1):
        draft = replace(world.draft(number), signers=read_signers(secrets))
        assert await receive(world, draft) == (202, "accepted")


async def test_one_of_two_keys_of_a_rotation_is_enough(make_world: WorldFactory) -> None:
    world = make_world(**trusted(HTTP))
    draft = world.draft()
    newer = replace(draft, key=generate_key(Algorithm.ES256))
    own, beside = (dict(one.request().headers) for one in (draft, newer))
    for name in ("Signature-Input", "Signature"):
        draft = sending(draft, name, own[name], beside[name].replace("a2a=", "next=", 1))
    assert await receive(world, draft) == (202, "accepted")


@pytest.mark.parametrize("first", ["holds", "fails"])
@pytest.mark.parametrize("fault", ["another request", "too little", "no such bytes"])
async def test_one_signature_that_holds_is_enough_while_one_by_another_known_key_fails(
    make_world: WorldFactory, first: str, fault: str
) -> None:
    newer = generate_key(Algorithm.ES256)
    known = make_world(**trusted(HTTP)).sender.keys
    assert known is not None
    keys = [*known, newer.to_verification_key()]
    world = make_world(**trusted(HTTP), keys=keys)
    good, bad = world.draft(), replace(world.draft(), key=newer)
    if fault == "another request":
        bad = replace(bad, audience=f"{BASE}/elsewhere")
    broken = dict(bad.request().headers)
    if fault == "too little":
        broken["Signature-Input"] = broken["Signature-Input"].replace('"@method" ', "")
    if fault == "no such bytes":
        broken["Signature"] = "a2a=:AAAA:"
    holding = dict(good.request().headers)
    for name in ("Signature-Input", "Signature"):
        pair = [holding[name], broken[name].replace("a2a=", "next=", 1)]
        good = sending(good, name, ", ".join(pair if first == "holds" else reversed(pair)))
    assert await receive(world, good) == (202, "accepted")
    alone = world.draft(2)
    for name in ("Signature-Input", "Signature"):
        alone = sending(alone, name, broken[name])
    assert await receive(world, alone) == (401, "invalid_signature")


async def test_a_configured_audience_is_the_url_that_is_signed(make_world: WorldFactory) -> None:
    world = make_world(**trusted(HTTP), audience=["https://public.example.com/hook"])
    draft = world.draft()
    assert await receive(world, draft) == (401, "invalid_signature")
    draft = replace(draft, audience="https://public.example.com/hook")
    assert await receive(world, draft) == (202, "accepted")


async def test_the_query_of_the_request_is_signed(make_world: WorldFactory) -> None:
    world = make_world(**trusted(HTTP))
    draft = replace(world.draft(), url=f"{PATH}?tenant=a")
    assert await receive(world, draft) == (401, "invalid_signature")
    draft = replace(draft, audience=f"{BASE}{PATH}?tenant=a")
    assert await receive(world, draft) == (202, "accepted")


# --- refused ------------------------------------------------------------------------------------


def late(seconds: float) -> Change:
    return setting(issued_at=START + timedelta(seconds=seconds))


def after(**fields: str | None) -> Change:
    """Send other header fields than those that were signed; None leaves one out."""
    sent = {
        name.replace("_", "-"): () if value is None else (value,) for name, value in fields.items()
    }
    return setting(headers_sent=sent)


def one_more(name: str, value: str) -> Change:
    return lambda draft: adding(draft, name, value)


def setting(**members: Any) -> Change:
    return lambda draft: replace(draft, **members)


def by(secret: str) -> Change:
    return setting(signers=read_signers([secret]))


def as_a_put(draft: Draft) -> Draft:
    """Sign the request as one with another method."""
    unsigned = replace(draft, signed=False).request()
    request = replace(unsigned, method="PUT", target=draft.audience)
    fields = at_once(sign_http_message(request, draft.key, now=START))
    return replace(draft, headers_sent={name: (value,) for name, value in fields})


# Beside those of `docs/vectors`, which `tests/contract/test_vectors.py` hands to a receiver.
EVERY = [
    pytest.param(late(301), 401, "stale_timestamp", id="from-the-future"),
    pytest.param(after(webhook_id="delivery-2"), 401, "invalid_signature", id="another-id"),
    pytest.param(after(webhook_id=None), 401, "invalid_signature", id="no-id"),
    pytest.param(one_more("webhook-id", "x"), 400, "malformed_request", id="two-ids"),
    pytest.param(after(X_A2A_Token=None, X_A2A_Notification_Token="wrong"), 401, None, id="token"),
]
BY_WEBHOOKS = [
    *EVERY,
    pytest.param(by(PRIVATE), 401, "invalid_signature", id="another-version"),
    pytest.param(after(webhook_signature="v1,é"), 401, "invalid_signature", id="no-base64"),
    pytest.param(after(webhook_signature="v9,x"), 401, "invalid_signature", id="unknown-version"),
    pytest.param(
        one_more("webhook-signature", "v1,AA=="), 400, "malformed_request", id="two-lists"
    ),
    pytest.param(after(webhook_timestamp="1e9"), 400, "malformed_request", id="time-as-a-float"),
    pytest.param(after(webhook_timestamp="9" * 99), 400, "malformed_request", id="time-huge"),
    pytest.param(after(webhook_timestamp="-1"), 400, "malformed_request", id="time-negative"),
    pytest.param(
        after(webhook_timestamp=str(int(START.timestamp()) + 1)),
        401,
        "invalid_signature",
        id="another-time",
    ),
]
BY_HTTP = [
    *EVERY,
    pytest.param(as_a_put, 401, "invalid_signature", id="another-method"),
    pytest.param(
        setting(audience="https://other.example.com/a2a/push"), 401, "invalid_signature", id="host"
    ),
    pytest.param(setting(audience=f"{BASE}{PATH}?x=1"), 401, "invalid_signature", id="query"),
    pytest.param(after(Signature=None), 401, "invalid_signature", id="no-signature"),
    pytest.param(
        setting(audience=f"http://client.example.com{PATH}"), 401, "invalid_signature", id="plain"
    ),
    pytest.param(setting(delivery_id="a.b"), 401, "invalid_signature", id="id-with-a-dot"),
    pytest.param(after(Signature="a2a=:AAAA:"), 401, "invalid_signature", id="a-short-signature"),
    pytest.param(after(Signature="a2a"), 401, "invalid_signature", id="no-bytes"),
    pytest.param(after(Signature='a2a="AAAA"'), 401, "invalid_signature", id="a-string"),
    pytest.param(after(Signature="b=:AAAA:"), 401, "invalid_signature", id="another-label"),
    pytest.param(after(Signature="a2a=:"), 400, "malformed_request", id="no-dictionary"),
    pytest.param(after(Signature_Input=None), 401, "invalid_signature", id="no-input"),
    pytest.param(after(Signature_Input="a2a=(("), 400, "malformed_request", id="no-input-list"),
    pytest.param(after(Content_Digest=None), 401, "invalid_signature", id="no-digest"),
    pytest.param(after(Content_Digest="md5=:AA==:"), 401, "invalid_signature", id="weak-digest"),
]
REFUSED = [
    pytest.param((scheme,), *case.values, id=f"{scheme.value}-{case.id}")
    for scheme, cases in ((WEBHOOKS, BY_WEBHOOKS), (HTTP, BY_HTTP))
    for case in cases
]


@pytest.mark.parametrize(("schemes", "change", "status", "code"), REFUSED)
async def test_refuses(  # noqa: PLR0917
    make_world: WorldFactory,
    caplog: pytest.LogCaptureFixture,
    schemes: tuple[Scheme, ...],
    change: Change,
    status: int,
    code: str | None,
) -> None:
    caplog.set_level(logging.DEBUG)
    world = make_world(**trusted(*schemes))
    draft = change(world.draft())
    found = await receive(world, draft)
    assert found[0] == status
    assert code in (None, found[1])
    assert not any(world.rows().values())
    assert not [value for value in secrets_of(draft) if value in caplog.text]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"headers_sent": {"webhook-signature": (f"v1,{'A' * 43}=",)}}, "invalid_signature"),
        ({"token": ""}, "invalid_token"),
    ],
)
async def test_a_stranger_is_not_logged_as_the_sender_of_the_path(
    make_world: WorldFactory,
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, Any],
    code: str,
) -> None:
    world = make_world(**trusted(WEBHOOKS))
    assert (await receive(world, replace(world.draft(), **changes)))[1] == code
    assert " sender=" not in caplog.records[-1].getMessage()


async def test_a_sender_is_logged_once_its_webhook_signature_holds(
    make_world: WorldFactory, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(**trusted(WEBHOOKS), tasks=TaskPolicy.REGISTERED)
    assert (await receive(world, world.draft()))[1] == "task_not_expected"
    assert " sender=agent " in caplog.records[-1].getMessage()


@pytest.mark.parametrize(("schemes", "change", "status", "code"), REFUSED)
def test_the_pure_function_refuses(
    make_world: WorldFactory,
    schemes: tuple[Scheme, ...],
    change: Change,
    status: int,
    code: str | None,
) -> None:
    world = make_world(**trusted(*schemes))
    draft = change(world.draft())
    with pytest.raises(InboundError) as refusal:
        verify_notification(draft.request(), load_trust(BASE, [world.sender]), now=world.clock.now)
    assert refusal.value.status == status
    assert code in (None, refusal.value.code)
    assert not [value for value in secrets_of(draft) if value in str(refusal.value)]


def secrets_of(draft: Draft) -> list[str]:
    """Return what must be in no log: secrets, tokens, and signatures that hold."""
    headers = dict(draft.request().headers)
    signatures = [headers.get(name) or "" for name in ("webhook-signature", "Signature")]
    private = [SECRET, OTHER_SECRET, PRIVATE, "-is-private", *signatures]
    return [value for value in private if len(value) > 8]


@pytest.mark.parametrize("missing", list(Scheme))
async def test_every_scheme_of_a_sender_must_hold(
    make_world: WorldFactory, missing: Scheme
) -> None:
    world = make_world(**trusted(*Scheme))
    draft = signed_with(world.draft(), *(scheme for scheme in Scheme if scheme is not missing))
    assert await receive(world, draft) == (401, "invalid_signature")
    assert not any(world.rows().values())


async def test_the_schemes_must_speak_of_one_delivery(make_world: WorldFactory) -> None:
    world = make_world(**trusted(JWT, HTTP))
    draft = claiming(world.draft(), jti="another-delivery")
    assert await receive(world, draft) == (400, "malformed_request")


async def test_a_sender_may_sign_with_some_algorithms_only(make_world: WorldFactory) -> None:
    world = make_world(**trusted(HTTP), algorithms=frozenset({Algorithm.EDDSA}))
    assert await receive(world, world.draft()) == (401, "invalid_signature")


async def test_a_strangers_body_is_not_read_where_the_head_can_prove(
    make_world: WorldFactory,
) -> None:
    world = make_world(**trusted(HTTP))
    await world.start()
    request = replace(world.draft(), key=generate_key(Algorithm.ES256)).request()

    async def read(_limit: int) -> bytes:
        raise AssertionError("the body of a stranger is read")

    refused = await world.receiver.handler.handle(
        Request(method="POST", path=PATH, target=request.target, headers=request.headers, read=read)
    )
    assert refused.status == 401


# --- which sender -------------------------------------------------------------------------------


OTHER_KEY = generate_key(Algorithm.EDDSA)


def by_http(name: str, key: SigningKey, **changes: Any) -> TrustedSender:
    public = key.to_verification_key()
    settings = {"schemes": frozenset({HTTP}), "keys": [public], "name": name}
    return TrustedSender(**{**settings, **changes})


def signed_by_http(world: World, key: SigningKey = OTHER_KEY) -> Headers:
    """Return the head of a request with an HTTP message signature alone."""
    return replace(signed_with(world.draft(), HTTP), key=key).request().headers


def test_senders_without_issuer_are_distinguished_by_their_keys(world: World) -> None:
    own = generate_key(Algorithm.ES256)
    trust = load_trust(BASE, [by_http("a", own), by_http("b", OTHER_KEY)])
    for name, key in (("a", own), ("b", OTHER_KEY)):
        assert selected_of(trust, PATH, signed_by_http(world, key)).sender.name == name
    with pytest.raises(UnknownSenderError):
        selected_of(trust, PATH, signed_by_http(world, generate_key(Algorithm.ES256)))
    with pytest.raises(UnknownSenderError):
        selected_of(trust, PATH, Headers())


def test_a_sender_by_jwt_may_share_its_path(world: World) -> None:
    jwt_sender = world.sender
    trust = load_trust(BASE, [jwt_sender, by_http("by-http", OTHER_KEY)])
    assert selected_of(trust, PATH, signed_by_http(world)).sender.name == "by-http"
    assert selected_of(trust, PATH, world.draft().request().headers).sender is jwt_sender


@pytest.mark.parametrize(
    ("schemes", "beside", "value"),
    [
        pytest.param([HTTP], "Authorization", "Bearer its.own.credentials", id="credentials"),
        pytest.param([HTTP], "X-A2A-Signature", "no JWT", id="no-jwt"),
        pytest.param([JWT], "Signature-Input", "no(dictionary", id="no-http-message-signature"),
    ],
)
def test_signatures_of_other_senders_of_the_path_are_ignored(
    world: World, schemes: list[Scheme], beside: str, value: str
) -> None:
    trust = load_trust(BASE, [world.sender, by_http("by-http", OTHER_KEY)])
    draft = replace(signed_with(world.draft(), *schemes), key=OTHER_KEY)
    headers = Headers([*draft.request().headers, (beside, value)])

    assert selected_of(trust, PATH, headers).sender.signing == set(schemes)

    with pytest.raises(InboundError, match="not"):
        selected_of(trust, PATH, Headers([(beside, value)]))


async def test_keys_are_looked_up_by_what_is_claimed(world: World) -> None:
    trust = Trust(
        BASE,
        [
            holding(by_http("a", OTHER_KEY), OTHER_KEY.to_verification_key()),
            unreachable(by_http("b", OTHER_KEY)),
        ],
    )
    selected = await selected_by(trust, PATH, signed_by_http(world))
    assert selected.sender.name == "a"
    assert list(selected.keys) == [OTHER_KEY.kid]


async def test_unavailable_keys_are_a_temporary_refusal(world: World) -> None:
    trust = Trust(BASE, [unreachable(by_http("b", OTHER_KEY))])
    with pytest.raises(KeysUnavailableError):
        await signed_by(trust, PATH, signed_by_http(world))


# --- configuration ------------------------------------------------------------------------------


def test_standard_webhooks_alone_needs_a_path_of_its_own(world: World) -> None:
    alone = TrustedSender(name="alone", schemes=frozenset({WEBHOOKS}), webhook_secrets=[SECRET])
    with pytest.raises(ConfigError, match="without naming a key, and shares"):
        load_trust(BASE, [alone, world.sender])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param({"schemes": frozenset()}, "at least one", id="no-scheme"),
        pytest.param({"schemes": "jwt"}, "expected a list", id="a-string"),
        pytest.param({"schemes": ["hmac"]}, "'hmac'", id="unknown-scheme"),
        pytest.param({"schemes": [JWT, WEBHOOKS]}, "webhook_secrets", id="no-secret"),
        pytest.param({"webhook_secrets": [SECRET]}, "webhook_secrets", id="no-use-for-it"),
        pytest.param(
            {"schemes": [JWT, WEBHOOKS], "webhook_secrets": ["whsec_AAAA"]}, "3 bytes", id="short"
        ),
        pytest.param(
            {"schemes": [JWT, WEBHOOKS], "webhook_secrets": [PRIVATE]}, "whpk", id="private"
        ),
        pytest.param(
            {"schemes": [JWT, WEBHOOKS], "webhook_secrets": [""]}, "and base64", id="empty"
        ),
        pytest.param(
            {"schemes": [WEBHOOKS], "webhook_secrets": [SECRET]}, "expected no keys", id="keys"
        ),
        pytest.param({"schemes": [HTTP], "keys": None}, "exactly one of", id="no-keys"),
        pytest.param(
            {"profile": SenderProfile.A2A_SAMPLES, "schemes": [HTTP]}, "the JWT alone", id="samples"
        ),
        pytest.param(
            {
                "profile": SenderProfile.UNSIGNED_SECRET_ONLY,
                "keys": None,
                "issuer": None,
                "schemes": [HTTP],
            },
            "does not sign",
            id="unsigned",
        ),
    ],
)
def test_a_setting_that_cannot_be_meant_is_an_error(changes: dict[str, Any], says: str) -> None:
    key = OTHER_KEY.to_verification_key()
    settings = {"name": "agent", "issuer": ISSUER, "keys": [key]}
    with pytest.raises(ConfigError, match=says) as mistake:
        TrustedSender(**{**settings, **changes})
    assert "agent" in str(mistake.value)
    assert SECRET not in str(mistake.value)


def test_a_secret_is_in_no_repr() -> None:
    sender = TrustedSender(name="a", schemes=[WEBHOOKS], webhook_secrets=[SECRET])
    assert SECRET not in repr(sender)
    assert "verifiers" not in repr(sender)


async def test_trust_without_an_audience_is_warned_of(
    make_world: WorldFactory, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(**trusted(WEBHOOKS))
    await world.start()
    assert "names no audience" in caplog.text
