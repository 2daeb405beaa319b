"""Each limit on input: the largest accepted value, and the first refused one."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import pytest

from pushkit.errors import ConfigError, InvalidSignatureError, MalformedRequestError
from pushkit.keys.jwk import Algorithm, generate_key
from pushkit.signing.http_message_signatures import (
    read_unverified_signatures,
)
from pushkit.signing.jose import (
    DetachedJws,
    at_once,
    find_verifying_key,
    protected_header,
    sign_detached,
)
from pushkit.signing.notification_jwt import (
    read_unverified,
    verify_signature,
)
from pushkit.signing.standard_webhooks import (
    SharedSecret,
    check_webhook_signature,
    generate_webhook_secret,
    read_signers,
    read_unverified_webhook,
    sign_webhook,
    webhook_public_key,
)
from pushkit.webhook import Headers
from receiver.testing import SigningAgent
from tests.jose import b64url
from tests.refusals import refused_unless

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
BODY = b"{}"
KEY = generate_key(Algorithm.ES256)
SECRET = SharedSecret(key=bytes(24))


# --- the JWT ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("characters", "read"), [(8000, True), (8001, False)])
def test_a_jwt_has_8000_characters_at_most(characters: int, *, read: bool) -> None:
    header, payload = b64url(b'{"alg":"ES256"}'), b64url(b"{}")
    rest = characters - len(header) - len(payload) - 2
    jwt = f"{header}.{payload}.{'A' * rest}"
    assert rest % 4 != 1

    with refused_unless(read, InvalidSignatureError, "longer than 8000"):
        assert read_unverified(jwt).algorithm == "ES256"


@pytest.mark.parametrize(("seq", "accepted"), [(1, True), (2**63 - 1, True), (2**63, False)])
def test_a_seq_fits_into_64_bits(seq: int, *, accepted: bool) -> None:
    agent = SigningAgent(webhook_url="https://client.example.com/", key=KEY)
    unverified = read_unverified(agent.draft("task-1", seq).jwt())

    with refused_unless(accepted, InvalidSignatureError, "seq"):
        assert verify_signature(unverified, KEY.to_verification_key()).seq == seq


# --- detached signatures ------------------------------------------------------------------------


@pytest.mark.parametrize(("characters", "read"), [(8192, True), (8194, False)])
def test_a_protected_header_has_8192_characters_at_most(characters: int, *, read: bool) -> None:
    octets = characters * 3 // 4
    protected = b64url(b'{"alg":"%s"}' % (b"x" * (octets - 10)))
    assert len(protected) == characters

    with refused_unless(read, InvalidSignatureError, "longer than 8192"):
        assert "alg" in protected_header(protected)


def test_a_signature_of_2048_characters_is_looked_at_and_a_longer_one_is_not() -> None:
    protected = at_once(sign_detached(BODY, {}, KEY)).protected
    keys = [KEY.to_verification_key()]

    assert (
        find_verifying_key(DetachedJws(protected=protected, signature="A" * 2048), BODY, keys)
        is None
    )
    with pytest.raises(InvalidSignatureError, match="longer than 2048"):
        find_verifying_key(DetachedJws(protected=protected, signature="A" * 2050), BODY, keys)


# --- HTTP message signatures --------------------------------------------------------------------


@pytest.mark.parametrize(("count", "read"), [(64, True), (65, False)])
def test_a_signature_covers_64_components_at_most(count: int, *, read: bool) -> None:
    covered = " ".join(f'"x-{n}"' for n in range(count))
    stated = f'a2a=({covered});created=1;expires=2;keyid="k";tag="a2a-push"'
    headers = Headers([("Signature-Input", stated), ("Signature", "a2a=:AAAA:")])

    with refused_unless(read, InvalidSignatureError, "65 components"):
        [found] = read_unverified_signatures(headers)
        assert len(found.components) == count


@pytest.mark.parametrize(("created", "read"), [(0, True), (253402300799, True), (-1, False)])
@pytest.mark.parametrize("parameter", ["created", "expires"])
def test_a_moment_lies_within_the_calendar(parameter: str, created: int, *, read: bool) -> None:
    moments = {"created": 1, "expires": 2, parameter: created}
    stated = f'created={moments["created"]};expires={moments["expires"]};keyid="k";tag="a2a-push"'
    headers = Headers([("Signature-Input", f"a2a=();{stated}"), ("Signature", "a2a=:AAAA:")])

    with refused_unless(read, InvalidSignatureError, "calendar"):
        [found] = read_unverified_signatures(headers)
        read_as = {"created": found.issued_at, "expires": found.expires_at}
        assert read_as[parameter].timestamp() == created


# --- Standard Webhooks --------------------------------------------------------------------------


def webhook(signatures: int = 1, delivery_id: str = "dlv_1") -> Headers:
    """Return the headers of a request with so many signatures, of which the last is valid."""
    made = dict(sign_webhook(BODY, delivery_id=delivery_id, now=NOW, signers=[SECRET]))
    made["webhook-signature"] = " ".join(
        ["v1,AAAA"] * (signatures - 1) + [made["webhook-signature"]]
    )
    return Headers(made)


def test_the_last_of_32_signatures_counts_and_of_33_none_does() -> None:
    check_webhook_signature(read_unverified_webhook(webhook(32)), BODY, [SECRET])
    with pytest.raises(MalformedRequestError, match="33 signatures"):
        read_unverified_webhook(webhook(33))


def test_of_signatures_by_keys_the_fourth_counts_and_of_five_none_does() -> None:
    key = generate_key(Algorithm.EDDSA)
    [*_, (name, genuine)] = sign_webhook(BODY, delivery_id="dlv_1", now=NOW, signers=[key])
    others = ["v1a,AAAA"] * 3
    headers = {**dict(webhook()), name: " ".join([*others, genuine])}
    read = read_unverified_webhook(Headers(headers))
    check_webhook_signature(read, BODY, [key.to_verification_key()])
    with pytest.raises(MalformedRequestError, match="5 of v1a"):
        read_unverified_webhook(Headers({**headers, name: " ".join([*others, genuine, genuine])}))


@pytest.mark.parametrize(("prefix", "most"), [("whsec_", 32), ("whsk_", 4)])
def test_a_sender_makes_no_more_signatures_than_receivers_accept(prefix: str, most: int) -> None:
    def secret() -> str:
        if prefix == "whsec_":
            return generate_webhook_secret()
        seed = generate_key(Algorithm.EDDSA)
        raw = seed.private_key.private_bytes_raw()  # type: ignore[union-attr]  # an Ed25519 key
        public = base64.b64decode(webhook_public_key(seed).removeprefix("whpk_"))
        return prefix + base64.b64encode(raw + public).decode()

    secrets = [secret() for _ in range(most + 1)]
    assert len(read_signers(secrets[:most])) == most
    with pytest.raises(ConfigError, match=f"secrets: {most + 1}, "):
        read_signers(secrets)


def test_an_id_has_256_characters_at_most() -> None:
    longest = "x" * 256

    assert read_unverified_webhook(webhook(delivery_id=longest)).delivery_id == longest
    with pytest.raises(ConfigError, match="256"):
        sign_webhook(BODY, delivery_id=f"{longest}x", now=NOW, signers=[SECRET])
    fields = {**dict(webhook()), "webhook-id": f"{longest}x"}
    with pytest.raises(MalformedRequestError, match="256"):
        read_unverified_webhook(Headers(fields))


@pytest.mark.parametrize(
    ("timestamp", "read"), [("0", True), ("253402300799", True), ("253402300800", False)]
)
def test_a_timestamp_lies_within_the_calendar(timestamp: str, *, read: bool) -> None:
    headers = Headers({**dict(webhook()), "webhook-timestamp": timestamp})

    with refused_unless(read, MalformedRequestError, "webhook-timestamp"):
        assert read_unverified_webhook(headers).timestamp.timestamp() == int(timestamp)
