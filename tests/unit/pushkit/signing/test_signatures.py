"""Signatures by keys in other services."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

import pytest

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.errors import ConfigError, KeyFileError, NoSigningKeyError, SigningError
from pushkit.keys.files import save_key_ring
from pushkit.keys.jwk import (
    Algorithm,
    RemoteKey,
    RemoteSigner,
    SigningKey,
    generate_key,
    public_jwk,
)
from pushkit.keys.jwks import jwks_document, parse_jwks
from pushkit.keys.ring import KeyRing
from pushkit.signing.http_message_signatures import (
    read_unverified_signatures,
    sign_http_message,
    verify_http_signature,
)
from pushkit.signing.jose import at_once, sign
from pushkit.signing.notification_jwt import (
    read_unverified,
    sign_notification,
    static_claims,
    verify_signature,
)
from pushkit.webhook import Headers, WebhookRequest
from tests.kms import Kms, der

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DATA = b"header.payload"


async def signed(by: SigningKey | RemoteKey) -> str:
    """Return the JWT of a notification, signed by this key."""
    claims = static_claims(issuer="i", audience="a", task_id="task-1", config_id="config-1")
    moment = int(NOW.timestamp())
    return await sign_notification(
        claims, by, issued_at=moment, delivery_id="dlv_1", seq=1, body_sha256="0" * 64
    )


@pytest.mark.parametrize("algorithm", Algorithm)
async def test_a_notification_that_a_service_signs_is_verified_like_any(
    algorithm: Algorithm,
) -> None:
    kms = Kms(algorithm)
    remote = RemoteKey.of(kms)
    token = await signed(remote)
    ring = KeyRing.create(NOW, key=remote)
    [published] = parse_jwks(jwks_document(ring, NOW)).keys
    found = verify_signature(read_unverified(token), published)
    assert (found.delivery_id, found.seq, found.issued_at) == ("dlv_1", 1, NOW)
    assert kms.asked == [token.rpartition(".")[0].encode()]


async def test_a_remote_key_signs_the_same_jwt_as_a_local_one() -> None:
    kms = Kms(Algorithm.EDDSA)  # its signatures are deterministic
    assert await signed(RemoteKey.of(kms)) == await signed(kms.key)


def test_a_key_that_has_to_be_waited_for_does_not_sign_at_once() -> None:
    with pytest.raises(SigningError, match="in a service of its own"):
        at_once(signed(RemoteKey.of(Kms())))


@pytest.mark.parametrize("algorithm", [Algorithm.ES256, Algorithm.ES384])
async def test_an_ecdsa_signature_may_be_der_or_r_and_s(algorithm: Algorithm) -> None:
    raw = Kms(algorithm)
    as_jose = await sign(DATA, raw.key)
    raw.signs = lambda _data, _key: as_jose
    assert await sign(DATA, RemoteKey.of(raw)) == as_jose
    in_der = Kms(algorithm)
    signature = await sign(DATA, RemoteKey.of(in_der))
    assert len(signature) == len(as_jose) == {"ES256": 64, "ES384": 96}[algorithm]


@pytest.mark.parametrize(
    "signs",
    [
        pytest.param(lambda data, key: der(data + b"!", key), id="other data"),
        pytest.param(lambda data, _key: der(data, generate_key(Algorithm.ES256)), id="another key"),
        pytest.param(lambda _data, _key: b"", id="nothing"),
        pytest.param(lambda _data, _key: b"\x30\x03\x02\x01\x01", id="half a DER"),
        pytest.param(lambda _data, _key: bytes(64), id="zeroes"),
        pytest.param(lambda data, key: der(data, key)[:-1], id="cut short"),
        pytest.param(lambda data, key: der(data, key).hex(), id="text"),
        pytest.param(
            lambda _data, _key: bytes.fromhex("3046022100" + "ff" * 32 + "022100" + "ff" * 32),
            id="numbers beyond the curve",
        ),
        pytest.param(
            lambda _data, _key: bytes.fromhex("3026022100" + "ff" * 32 + "020101"), id="bad DER"
        ),
    ],
)
async def test_a_signature_that_does_not_hold_does_not_go_out(
    signs: Callable[[bytes, SigningKey], bytes],
) -> None:
    kms = Kms()
    kms.signs = signs
    with pytest.raises(SigningError, match=f"key {RemoteKey.of(kms).kid}"):
        await sign(DATA, RemoteKey.of(kms))


async def test_an_error_of_a_service_is_reported_without_its_text() -> None:
    kms = Kms()
    kms.fails = True
    with pytest.raises(SigningError, match="did not sign: ConnectionError") as caught:
        await sign(DATA, RemoteKey.of(kms))
    assert "canary" not in str(caught.value)


async def test_a_cancelled_signature_is_cancelled() -> None:
    kms = Kms()
    kms.hangs = True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await sign(DATA, RemoteKey.of(kms))


@pytest.mark.parametrize(
    ("jwk", "says"),
    [
        pytest.param({}, "kty", id="empty"),
        pytest.param({"kty": "oct", "k": "canary"}, "symmetric", id="symmetric"),
        pytest.param(
            dict(public_jwk(generate_key(Algorithm.ES256))) | {"d": "canary"},
            "private members",
            id="private",
        ),
        pytest.param(
            dict(public_jwk(generate_key(Algorithm.ES256))) | {"alg": "RS256"}, "alg", id="alg"
        ),
    ],
)
def test_a_public_key_that_is_none_is_refused_at_the_start(jwk: JsonObject, says: str) -> None:
    class Wrong(Kms):
        @property
        def public_jwk(self) -> Mapping[str, JsonValue]:
            return jwk

    with pytest.raises(ConfigError, match=f"public_jwk of Wrong: .*{says}") as caught:
        RemoteKey.of(Wrong())
    assert "canary" not in str(caught.value)


def test_local_and_remote_keys_succeed_each_other_in_one_ring() -> None:
    here, elsewhere = generate_key(Algorithm.ES256), RemoteKey.of(Kms())
    ring = KeyRing.create(NOW, key=here).add(NOW, key=elsewhere)
    later = NOW + timedelta(days=1)
    ring = ring.rotate(later, activate_now=True)
    assert ring.active_key(NOW) is here
    assert ring.active_key(later) is elsewhere
    assert [entry.kid for entry in ring.published(later)] == [here.kid, elsewhere.kid]
    with pytest.raises(NoSigningKeyError, match="a remote signer keeps"):
        ring.signing_key(later)


def test_a_remote_key_cannot_be_written_to_a_file(tmp_path: object) -> None:
    ring = KeyRing.create(NOW, key=RemoteKey.of(Kms()))
    with pytest.raises(KeyFileError, match="a remote signer keeps"):
        save_key_ring(f"{tmp_path}/keys.json", ring)


def test_a_service_is_a_signer() -> None:
    assert isinstance(Kms(), RemoteSigner)
    assert not isinstance(KeyRing.create(NOW), RemoteSigner)


URL = "https://client.example.com:443/hook"
MESSAGE = WebhookRequest(
    target=URL,
    headers=Headers([("Content-Type", "application/a2a+json"), ("webhook-id", "dlv_1")]),
    body=b"{}",
)


@pytest.mark.parametrize("algorithm", [each for each in Algorithm if each is not Algorithm.PS256])
async def test_an_http_message_that_a_service_signs_is_verified_like_any(
    algorithm: Algorithm,
) -> None:
    remote = RemoteKey.of(Kms(algorithm))
    signed = await sign_http_message(MESSAGE, remote, now=NOW)
    headers = Headers([*MESSAGE.headers, *signed])
    [unverified] = read_unverified_signatures(headers)
    verified = verify_http_signature(
        unverified, remote.public, method="POST", target_uris=[URL], headers=headers
    )
    assert (verified.keyid, verified.delivery_id) == (remote.kid, "dlv_1")


async def test_an_http_message_for_another_hash_is_refused() -> None:
    remote = RemoteKey.of(Kms(Algorithm.PS256))
    with pytest.raises(ConfigError, match="expected another algorithm"):
        await sign_http_message(MESSAGE, remote, now=NOW)
