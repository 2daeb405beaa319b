"""Trusted senders: their configuration, and the sender that a message selects."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pushkit.errors import ConfigError, KeysUnavailableError
from pushkit.keys.files import save_key_ring
from pushkit.keys.jwk import Algorithm, VerificationKey, generate_key, public_jwk
from pushkit.keys.ring import KeyRing
from pushkit.net.connection import HttpAnswer
from pushkit.net.destination import DestinationPolicy
from pushkit.net.jwks_client import JwksClient
from pushkit.net.transport import Transport
from pushkit.webhook import Headers
from receiver import Receiver, SenderProfile, TaskPolicy, TrustedSender, fetch_trust, load_trust
from receiver.selection import Entry, UnknownSenderError
from receiver.trust import Trust, sender_keys
from tests.eventually import eventually
from tests.unit.receiver.selecting import holding, selected_by, selected_of, signed_by, unreachable

KEY = generate_key(Algorithm.ES256).to_verification_key()
OTHER = generate_key(Algorithm.ES256).to_verification_key()
ISSUER = "https://agent.example.com"
SETTINGS: Mapping[str, Any] = {"name": "agent", "issuer": ISSUER, "keys": [KEY]}


def now() -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC)


def legacy(name: str, **changes: Any) -> TrustedSender:
    settings = {**SETTINGS, "name": name, "issuer": None, "profile": SenderProfile.A2A_SAMPLES}
    return TrustedSender(**{**settings, **changes})


def trusting(*entries: Entry) -> Trust:
    return Trust("https://client.example.com", entries)


def token(kid: str | None = KEY.kid, issuer: str | None = None) -> Headers:
    """Return the headers of a request with an unverified JWT that has these claims."""
    header = {"alg": "ES256"} | ({} if kid is None else {"kid": kid})
    claims = {} if issuer is None else {"iss": issuer}
    segments = [
        base64.urlsafe_b64encode(json.dumps(members).encode()).rstrip(b"=").decode()
        for members in (header, claims)
    ]
    return Headers({"X-A2A-Signature": ".".join([*segments, "AAAA"])})


NO_TOKEN = Headers()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"keys": None}, id="no-keys"),
        pytest.param({"jwks_url": "https://agent.example.com/jwks.json"}, id="keys-from-two"),
        pytest.param({"issuer": None}, id="no-issuer"),
        pytest.param({"issuer": ""}, id="an-empty-issuer"),
        pytest.param({"path": "a2a"}, id="a-relative-path"),
        pytest.param({"path": "/a2a?x=1"}, id="a-path-with-a-query"),
        pytest.param({"path": "/a2a/{task}"}, id="a-path-that-is-a-pattern"),
        pytest.param({"path": "/a2a push"}, id="a-path-with-a-space"),
        pytest.param({"audience": ["client.example.com"]}, id="an-audience-that-is-no-url"),
        pytest.param({"tokens": ["token", ""]}, id="an-empty-token"),
        pytest.param({"credentials": [" "]}, id="an-empty-credential"),
        pytest.param({"tokens": "one-token"}, id="a-token-not-in-a-list"),
        pytest.param({"credentials": "Bearer"}, id="a-credential-not-in-a-list"),
        pytest.param({"audience": f"{ISSUER}/a2a"}, id="an-audience-not-in-a-list"),
        pytest.param({"profile": "trpc"}, id="an-unknown-profile"),
        pytest.param({"tasks": "all"}, id="an-unknown-policy-of-tasks"),
        pytest.param({"name": ""}, id="no-name"),
        pytest.param({"name": "agent\n"}, id="name-with-a-line-break"),
        pytest.param({"name": "agent\0"}, id="name-with-a-nul"),
        pytest.param({"tolerance": 300}, id="a-tolerance-without-a-unit"),
        pytest.param({"stale_for": 3600}, id="a-time-of-stale-keys-without-a-unit"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_an_error(changes: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TrustedSender(**{**SETTINGS, **changes})


def test_no_secret_is_in_the_representation() -> None:
    sender = TrustedSender(**SETTINGS, tokens=["the-token"], credentials=["Bearer the-credential"])

    assert "the-token" not in repr(sender)
    assert "the-credential" not in repr(sender)


def test_two_senders_of_one_name_are_an_error() -> None:
    sender = TrustedSender(**SETTINGS)

    with pytest.raises(ConfigError, match="two senders are called"):
        trusting(holding(sender, KEY), holding(sender, KEY))


async def test_senders_without_issuer_are_distinguished_by_their_keys() -> None:
    trust = trusting(holding(legacy("a"), KEY), holding(legacy("b"), OTHER))

    selected = await selected_by(trust, "/a2a/push", token(OTHER.kid))

    assert (selected.sender.name, list(selected.keys)) == ("b", [OTHER.kid])


@pytest.mark.parametrize(
    "claimed",
    [
        pytest.param(token("unknown"), id="unknown-kid"),
        pytest.param(token(None), id="no-kid"),
        pytest.param(NO_TOKEN, id="no-jwt"),
    ],
)
async def test_senders_that_cannot_be_distinguished_are_refused(claimed: Headers) -> None:
    trust = trusting(holding(legacy("a"), KEY), holding(legacy("b"), OTHER))

    with pytest.raises(UnknownSenderError):
        await selected_by(trust, "/a2a/push", claimed)


async def test_a_key_that_two_senders_have_says_nothing() -> None:
    trust = trusting(holding(legacy("a"), KEY), holding(legacy("b"), KEY))

    with pytest.raises(UnknownSenderError):
        await selected_by(trust, "/a2a/push", token())


async def test_a_sender_whose_keys_are_out_of_reach_does_not_stand_in_the_way() -> None:
    trust = trusting(unreachable(legacy("a")), holding(legacy("b"), KEY))

    selected = await selected_by(trust, "/a2a/push", token())

    assert selected.sender.name == "b"


async def test_a_key_that_may_be_of_a_sender_out_of_reach_is_to_come_again() -> None:
    trust = trusting(unreachable(legacy("a")), holding(legacy("b"), KEY))

    with pytest.raises(KeysUnavailableError):
        await selected_by(trust, "/a2a/push", token(OTHER.kid))


async def test_a_standard_sender_is_never_selected_without_its_issuer() -> None:
    trust = trusting(holding(TrustedSender(**SETTINGS), KEY))

    with pytest.raises(UnknownSenderError):
        await selected_by(trust, "/a2a/push", token(issuer=None))


# --- where keys are found -----------------------------------------------------------------------


def test_one_log_line_names_the_keys_of_a_file_that_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jwks.json"
    usable = public_jwk(generate_key(Algorithm.ES256))
    secrets = [{"kty": "oct", "kid": kid, "k": "c2VjcmV0"} for kid in ("first", "second")]
    path.write_text(json.dumps({"keys": [usable, *secrets, {"kid": "third"}]}))
    sender = TrustedSender(name="agent", issuer=ISSUER, jwks_file=path)

    load_trust("https://client.example.com", [sender])

    [logged] = caplog.messages
    assert logged == (
        f"sender agent: jwks_file: {path}: left out: first, second (the key is symmetric, expected"
        " a public key); third (kty and crv: expected strings)"
    )


def test_a_key_file_instead_of_a_jwk_set_is_refused_with_the_command_that_exports_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.json"
    save_key_ring(path, KeyRing.create(now()))
    sender = TrustedSender(name="agent", issuer=ISSUER, jwks_file=path)

    with pytest.raises(ConfigError, match=f"private keys.*`pushkit keys export --keys {path} "):
        load_trust("https://client.example.com", [sender])
    assert caplog.messages == []


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(None, id="missing"),
        pytest.param(b"{", id="not-json"),
        pytest.param(b'{"keys":[]}', id="empty"),
        pytest.param(b'{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}', id="symmetric"),
    ],
)
def test_a_file_without_a_usable_key_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "jwks.json"
    if content is not None:
        path.write_bytes(content)
    sender = TrustedSender(name="agent", issuer=ISSUER, jwks_file=path)

    with pytest.raises(ConfigError, match="jwks_file"):
        load_trust("https://client.example.com", [sender])


async def test_a_file_and_names_may_be_given_as_strings(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [public_jwk(KEY)]}))
    settings: Mapping[str, Any] = {"profile": "trpc-a2a-go", "tasks": "any"}
    sender = TrustedSender(name="agent", jwks_file=str(path), **settings)
    assert (sender.profile, sender.tasks) == (SenderProfile.TRPC_A2A_GO, TaskPolicy.ANY)
    snapshot = load_trust("https://client.example.com", [sender])
    assert [*snapshot.held[0].keys] == [KEY.kid]


@pytest.mark.parametrize("url", ["http://agent.example.com/jwks.json", "https://127.0.0.1/jwks"])
async def test_a_jwks_url_that_the_policy_refuses_is_an_error(url: str) -> None:
    sender = TrustedSender(name="agent", issuer=ISSUER, jwks_url=url)
    transport = Transport(DestinationPolicy())

    with pytest.raises(ConfigError):
        sender_keys(sender, transport, now)
    await transport.close()


async def test_a_sender_without_an_issuer_does_not_silence_one_that_has_it() -> None:
    standard = TrustedSender(name="agent", issuer=ISSUER, keys=[KEY])
    # It publishes a key under the name of the other's key.
    double = VerificationKey(kid=KEY.kid, algorithm=OTHER.algorithm, public_key=OTHER.public_key)
    legacy = TrustedSender(name="legacy", profile=SenderProfile.TRPC_A2A_GO, keys=[double])
    trust = trusting(holding(standard, KEY), holding(legacy, double))

    selected = await selected_by(trust, "/a2a/push", token(KEY.kid, ISSUER))

    assert selected.sender is standard


# --- snapshots ----------------------------------------------------------------------------------

BASE = "https://client.example.com"


def test_a_snapshot_without_a_socket_cannot_have_fetched_keys() -> None:
    sender = TrustedSender(name="agent", issuer=ISSUER, jwks_url="https://agent.example.com/jwks")

    with pytest.raises(ConfigError, match="fetch_trust"):
        load_trust(BASE, [sender])


async def test_a_sender_whose_keys_cannot_be_fetched_is_to_come_again(
    unused_tcp_port: int,
) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}/jwks.json"
    down = TrustedSender(name="down", issuer=ISSUER, jwks_url=url)
    up = TrustedSender(name="up", issuer="https://other.example.com", keys=[OTHER])

    trust = await fetch_trust(BASE, [down, up], allow=["127.0.0.1:*"])

    selected = selected_of(trust, "/a2a/push", token(OTHER.kid, "https://other.example.com"))
    assert (selected.sender, list(selected.keys)) == (up, [OTHER.kid])
    with pytest.raises(KeysUnavailableError) as refusal:
        await signed_by(trust, "/a2a/push", token(issuer=ISSUER))
    assert refusal.value.status == 503


async def test_a_trust_that_is_closed_ends_the_fetches_that_the_next_one_does_not_need() -> None:
    begun, ended = [], []

    async def fetch(url: str, _etag: str | None) -> HttpAnswer:
        begun.append(url)
        try:
            return await asyncio.Future()
        finally:
            ended.append(url)

    urls = ["https://kept.example.com/", "https://gone.example.com/"]
    kept, gone = [Entry(legacy(url[8:12]), JwksClient(url, fetch=fetch)) for url in urls]
    trust, following = trusting(kept, gone), trusting(kept)
    trust.load()
    await eventually(lambda: len(begun) == 2)

    await trust.close(but=following)
    assert ended == urls[1:]
    await following.close()
    assert sorted(ended) == sorted(urls)


async def test_a_snapshot_of_a_live_trust_selects_as_it_does() -> None:
    live = trusting(holding(legacy("a"), KEY), holding(legacy("b"), OTHER))

    snapshot = await live.snapshot()

    for headers in (token(KEY.kid), token(OTHER.kid)):
        selected = await selected_by(live, "/a2a/push", headers)
        assert selected_of(snapshot, "/a2a/push", headers).sender == selected.sender


@pytest.mark.parametrize("url", ["client.example.com", "https://client.example.com/?x=1"])
def test_a_snapshot_has_a_base_url(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^url: "):
        load_trust(url, [TrustedSender(**SETTINGS)])


@pytest.mark.parametrize("spelling", ["/hooks/%61", "/hooks%2Fa"])
def test_one_path_in_two_spellings_is_a_wrong_setting(spelling: str) -> None:
    senders = [
        TrustedSender(**{**SETTINGS, "name": name, "path": path})
        for name, path in (("one", "/hooks/a"), ("two", spelling))
    ]
    with pytest.raises(ConfigError, match="are one path"):
        load_trust("https://client.example.com", senders)


async def test_one_path_that_two_senders_could_mean_is_a_wrong_setting() -> None:
    senders = [
        TrustedSender(**{**SETTINGS, "name": name, "path": path})
        for name, path in (("one", "/a"), ("two", "/hooks/%61"))
    ]
    with pytest.raises(ConfigError, match="paths /a and /hooks/%61: with the path /hooks of url"):
        Receiver(url="https://client.example.com/hooks", senders=senders, database="inbox.db")


@pytest.mark.parametrize("where", ["tokens", "credentials"])
@pytest.mark.parametrize("secret", ["s3crét", "s3cret\n", " s3cret", "s3\tcret", "s3\x00cret"])
def test_a_secret_that_no_request_can_carry_is_refused_and_not_shown(
    where: str, secret: str
) -> None:
    with pytest.raises(ConfigError, match="no header can carry") as refused:
        TrustedSender(**{**SETTINGS, where: [secret]})

    assert "s3" not in str(refused.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"algorithms": []}, "algorithms: found none, expected at least one"),
        ({"algorithms": "ES256"}, "algorithms: found 'ES256', expected a list"),
        ({"algorithms": ["none"]}, "algorithms: found 'none', expected one of ES256"),
    ],
)
def test_a_sender_without_any_proof_is_refused(changed: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TrustedSender(**{**SETTINGS, **changed})
