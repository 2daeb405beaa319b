from __future__ import annotations

import base64
import hmac
import string
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Protocol

import pytest
import standardwebhooks
import svix.webhooks
from hypothesis import given
from hypothesis import strategies as st

from pushkit.errors import (
    ConfigError,
    InboundError,
    InvalidSignatureError,
    MalformedRequestError,
)
from pushkit.keys.jwk import Algorithm, generate_key, verification_key
from pushkit.signing.standard_webhooks import (
    UnverifiedWebhook,
    check_webhook_signature,
    generate_webhook_secret,
    read_signer,
    read_unverified_webhook,
    read_verifier,
    sign_webhook,
    webhook_public_key,
)
from pushkit.webhook import Headers
from tests.jose import vectors

VECTORS = {vector["name"]: vector for vector in vectors("standard_webhooks")}
V1, V1A = VECTORS["v1"], VECTORS["v1a"]
NOW = datetime(2026, 1, 1, 12, 0, 0, 999_999, tzinfo=UTC)
BODY = b'{"a":1}'
SECRET = V1["secret"]
OTHER = "whsec_" + base64.b64encode(b"o" * 32).decode()


def signed(*secrets: str, delivery_id: str = "msg_1", body: bytes = BODY) -> dict[str, str]:
    signers = [read_signer(secret) for secret in secrets or (SECRET,)]
    return dict(sign_webhook(body, delivery_id=delivery_id, now=NOW, signers=signers))


def verify(headers: Headers | dict[str, str], *secrets: str, body: bytes = BODY) -> str:
    webhook = read_unverified_webhook(headers if isinstance(headers, Headers) else Headers(headers))
    check_webhook_signature(webhook, body, [read_verifier(one) for one in secrets or (SECRET,)])
    return webhook.delivery_id


# --- vectors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vector", "secret"),
    [pytest.param(V1, V1["secret"], id="v1"), pytest.param(V1A, V1A["secret_key"], id="v1a")],
)
def test_signs_as_the_specification_does(vector: dict[str, Any], secret: str) -> None:
    headers = sign_webhook(
        vector["body"].encode(),
        delivery_id=vector["id"],
        now=datetime.fromtimestamp(vector["timestamp"], UTC),
        signers=[read_signer(secret)],
    )
    assert headers[2] == ("webhook-signature", vector["signature"])


def test_an_ed25519_key_of_a_ring_is_a_webhook_key_too() -> None:
    assert webhook_public_key(verification_key(V1A["jwk"])) == V1A["public_key"]
    with pytest.raises(ConfigError, match="expected an Ed25519 key"):
        webhook_public_key(generate_key(Algorithm.ES256))


# --- both ways ----------------------------------------------------------------------------------


class Library(Protocol):
    def verify(self, data: bytes, headers: dict[str, str]) -> Any: ...

    def sign(self, msg_id: str, timestamp: datetime, data: str) -> str: ...


LIBRARIES = [
    pytest.param(standardwebhooks.Webhook, id="standardwebhooks"),
    pytest.param(svix.webhooks.Webhook, id="svix"),
]


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_reference_libraries_verify_what_is_signed_here(
    library: Callable[[str], Library],
) -> None:
    headers = dict(
        sign_webhook(
            '{"text":"Grüße"}'.encode(),
            delivery_id="msg_1",
            now=datetime.now(UTC),
            signers=[read_signer(OTHER), read_signer(SECRET), read_signer(V1A["secret_key"])],
        )
    )
    library(SECRET).verify('{"text":"Grüße"}'.encode(), headers)
    with pytest.raises(Exception, match="No matching signature"):
        library(generate_webhook_secret()).verify('{"text":"Grüße"}'.encode(), headers)


@pytest.mark.parametrize("library", LIBRARIES)
def test_verifies_what_the_reference_libraries_sign(library: Callable[[str], Library]) -> None:
    moment = datetime.now(UTC)
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(moment.timestamp())),
        "webhook-signature": library(SECRET).sign("msg_1", moment, '{"text":"Grüße"}'),
    }
    assert verify(headers, body='{"text":"Grüße"}'.encode()) == "msg_1"


@given(
    st.binary(max_size=200),
    st.from_regex(r"[!-\-/-~]{1,64}", fullmatch=True),
    st.datetimes(min_value=datetime(1970, 1, 2), timezones=st.just(UTC)),  # noqa: DTZ001
)
def test_a_signed_request_verifies(body: bytes, delivery_id: str, now: datetime) -> None:
    signers = [read_signer(SECRET), read_signer(V1A["secret_key"])]
    headers = dict(sign_webhook(body, delivery_id=delivery_id, now=now, signers=signers))
    for secret in (SECRET, V1A["public_key"]):
        assert verify(headers, secret, body=body) == delivery_id


# --- rotation -----------------------------------------------------------------------------------


def test_versions_stand_beside_each_other() -> None:
    headers = signed(SECRET, V1A["secret_key"])
    assert [entry.partition(",")[0] for entry in headers["webhook-signature"].split(" ")] == [
        "v1",
        "v1a",
    ]
    assert verify(headers, V1A["public_key"]) == verify(headers, SECRET)


def test_the_zone_of_a_time_does_not_matter() -> None:
    new_york = NOW.astimezone(timezone(timedelta(hours=-5)))
    signers = [read_signer(SECRET)]
    assert sign_webhook(BODY, delivery_id="msg_1", now=new_york, signers=signers) == sign_webhook(
        BODY, delivery_id="msg_1", now=NOW, signers=signers
    )


# --- refusals: one thing changed in what is accepted -------------------------------------------


def changed(**headers: str) -> dict[str, str]:
    return {**signed(), **{name.replace("_", "-"): value for name, value in headers.items()}}


SIGNATURE = signed()["webhook-signature"]
ALPHABET = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
ENCODED = SIGNATURE.removeprefix("v1,")


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(changed(webhook_signature=value), id=id_)
        for id_, value in {
            "no comma": "v1",
            "two commas": f"v1,a,{ENCODED}",
            "a comma after it": f"{SIGNATURE},b",
            "no padding": SIGNATURE.rstrip("="),
            "too much padding": f"{SIGNATURE}=",
            "bits left over": SIGNATURE[:-2] + ALPHABET[ALPHABET.index(SIGNATURE[-2]) + 1] + "=",
            "not ASCII": "v1,é" + ENCODED[1:],
            "junk inside": f"v1,{ENCODED[:5]}*{ENCODED[5:]}",
            "a line break inside": f"v1,{ENCODED[:5]}\n{ENCODED[5:]}",
            "url-safe": "v1," + "-_" * 21 + "-=",
            "empty signature": "v1,",
            "only spaces": "   ",
            "empty": "",
            "comma-separated": f"v1,AAAA,{SIGNATURE}",
            "tab-separated": f"v2,x\t{SIGNATURE}",
            "another version's name": SIGNATURE.replace("v1,", "v1a,"),
            "upper-case version": SIGNATURE.replace("v1,", "V1,"),
            "unknown version alone": SIGNATURE.replace("v1,", "v2,"),
            "truncated": "v1," + base64.b64encode(base64.b64decode(ENCODED)[:16]).decode(),
            "lengthened": "v1," + base64.b64encode(base64.b64decode(ENCODED) + b"x").decode(),
        }.items()
    ],
)
def test_a_signature_in_any_other_spelling_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(InboundError) as refused:
        verify(headers)
    assert 400 <= refused.value.status < 500


@pytest.mark.parametrize(
    "listed",
    [
        pytest.param(f"v2,a,b,c {SIGNATURE}", id="unknown version with commas"),
        pytest.param(f"v3 {SIGNATURE}", id="unknown version without a comma"),
        pytest.param(f"v1,AAAA {SIGNATURE}", id="another signature first"),
        pytest.param(f"v1,** {SIGNATURE}", id="a broken signature first"),
        pytest.param(f"{SIGNATURE} v9,x", id="unknown version last"),
        pytest.param(f"v1,AAAA  {SIGNATURE}", id="several spaces"),
        pytest.param(f"  {SIGNATURE} ", id="spaces around"),
    ],
)
def test_one_signature_that_holds_is_enough(listed: str) -> None:
    assert verify(changed(webhook_signature=listed)) == "msg_1"


@pytest.mark.parametrize(
    "timestamp",
    [
        pytest.param(value, id=id_)
        for id_, value in {
            "float": "1767268800.0",
            "exponent": "1767268800e0",
            "underscore": "1_767_268_800",
            "plus": "+1767268800",
            "minus": "-1767268800",
            "leading zero": "01767268800",
            "Arabic digits": "١٧٦٧٢٦٨٨٠٠",
            "full-width digits": "".join(chr(0xFEE0 + ord(digit)) for digit in "1767268800"),
            "superscript": "176726880²",
            "hexadecimal": "0x695665C0",
            "huge": "9" * 300,
            "nan": "nan",
            "infinity": "inf",
            "inner space": "17672 68800",
            "trailing line break": "1767268800\n",
            "another script's space": "1767268800\u00a0",
            "a list": "1767268800,1767268800",
            "ISO 8601": "2026-01-01T12:00:00Z",
        }.items()
    ],
)
def test_a_timestamp_in_any_other_spelling_is_refused(timestamp: str) -> None:
    with pytest.raises(MalformedRequestError, match="whole seconds"):
        verify(changed(webhook_timestamp=timestamp))


@pytest.mark.parametrize(
    "delivery_id",
    [
        pytest.param(value, id=id_)
        for id_, value in {
            "dot": "msg.1",
            "space": "msg 1",
            "line break": "msg\n1",
            "nul": "msg\x00",
            "not ASCII": "msgé",
        }.items()
    ],
)
def test_an_id_that_could_be_split_otherwise_is_refused(delivery_id: str) -> None:
    with pytest.raises(MalformedRequestError, match="webhook-id"):
        verify(changed(webhook_id=delivery_id))
    with pytest.raises(ConfigError, match="webhook-id"):
        signed(delivery_id=delivery_id)


def test_the_same_signature_does_not_hold_for_another_split() -> None:
    body = b"5." + BODY  # signed: msg_1.T.5.{"a":1}
    headers = signed(body=body)
    assert verify(headers, body=body) == "msg_1"
    shifted = {**headers, "webhook-timestamp": headers["webhook-timestamp"] + ".5"}
    with pytest.raises(MalformedRequestError):
        verify(shifted)
    into_the_id = {
        **headers,
        "webhook-id": f"msg_1.{headers['webhook-timestamp']}",
        "webhook-timestamp": "5",
    }
    with pytest.raises(MalformedRequestError):
        verify(into_the_id)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_header_that_is_missing_empty_or_doubled_is_refused(name: str) -> None:
    headers = signed()
    with pytest.raises(InvalidSignatureError, match=name):
        verify({key: value for key, value in headers.items() if key != name})
    with pytest.raises(InvalidSignatureError, match=name):
        verify({**headers, name: ""})
    with pytest.raises(MalformedRequestError, match=name):
        verify(Headers([*headers.items(), (name.upper(), headers[name])]))


def test_header_names_have_no_case_and_the_body_no_encoding() -> None:
    body = b"\xff\xfe\x00"
    headers = {name.title(): value for name, value in signed(body=body).items()}
    assert verify(headers, body=body) == "msg_1"


def test_nothing_is_proven_without_a_secret() -> None:
    webhook = read_unverified_webhook(Headers(signed()))
    with pytest.raises(InvalidSignatureError):
        check_webhook_signature(webhook, BODY, [])


@given(st.dictionaries(st.sampled_from(list(signed())), st.text(max_size=60)))
def test_no_header_raises_anything_but_a_refusal(headers: dict[str, str]) -> None:
    try:
        verify({**signed(), **headers})
    except InboundError as refused:
        assert 400 <= refused.status < 500  # noqa: PT017
    else:
        assert all(headers[name].strip() for name in headers)


def test_every_secret_is_compared_with_every_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[object, object]] = []
    genuine = hmac.compare_digest

    def compare_digest(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return genuine(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare_digest)
    verify(signed(SECRET, OTHER), SECRET, OTHER)
    assert len(compared) == 4


@pytest.mark.parametrize("listed", [1, 2, 32])
@pytest.mark.parametrize("secrets", [1, 2])
def test_the_body_is_read_once_for_each_secret_however_many_signatures_are_listed(
    monkeypatch: pytest.MonkeyPatch, secrets: int, listed: int
) -> None:
    headers = changed(webhook_signature=" ".join(["v1,AAAA"] * listed))
    read, genuine = [], hmac.digest

    def digest(key: bytes, message: bytes, kind: str) -> bytes:
        read.append(key)
        return genuine(key, message, kind)

    monkeypatch.setattr(hmac, "digest", digest)
    with pytest.raises(InvalidSignatureError):
        verify(headers, *(SECRET, OTHER)[:secrets])
    assert len(read) == secrets


def test_no_secret_reads_the_body_for_a_list_without_its_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    headers = changed(webhook_signature="v1a,AAAA")
    monkeypatch.setattr(hmac, "digest", None)
    with pytest.raises(InvalidSignatureError):
        verify(headers)


# --- secrets ------------------------------------------------------------------------------------


def test_a_secret_needs_neither_prefix_nor_padding() -> None:
    padded = base64.b64encode(b"k" * 25).decode()
    assert padded.endswith("==")
    spellings = [f"whsec_{padded}", padded, f"whsec_{padded.rstrip('=')}", padded.rstrip("=")]
    assert len({read_signer(spelling) for spelling in spellings}) == 1


@pytest.mark.parametrize("length", [24, 64])
def test_a_secret_may_have_24_to_64_bytes(length: int) -> None:
    secret = "whsec_" + base64.b64encode(b"k" * length).decode()
    assert verify(signed(secret), secret) == "msg_1"


@pytest.mark.parametrize(
    "secret",
    [
        pytest.param("", id="empty"),
        pytest.param("whsec_", id="prefix alone"),
        pytest.param("whsec_====", id="padding alone"),
        pytest.param("whsec_" + base64.b64encode(b"k" * 23).decode(), id="too short"),
        pytest.param("whsec_" + base64.b64encode(b"k" * 65).decode(), id="too long"),
        pytest.param("whsec_not base64 at all, not at all", id="not base64"),
        pytest.param(f"{SECRET}\n", id="a line break"),
        pytest.param(SECRET.replace("whsec_", "whsec-"), id="another prefix"),
        pytest.param("whsec_" + "é" * 40, id="not ASCII"),
        pytest.param(f"{SECRET}===", id="too much padding"),
    ],
)
def test_a_secret_that_is_none_is_refused_and_not_repeated(secret: str) -> None:
    for read in (read_signer, read_verifier):
        with pytest.raises(ConfigError) as refused:
            read(secret)
        assert len(secret) < 10 or secret.removeprefix("whsec_")[:8] not in str(refused.value)


def test_a_key_of_the_other_side_is_refused_with_advice() -> None:
    with pytest.raises(ConfigError, match="whsk_… signs"):
        read_signer(V1A["public_key"])
    with pytest.raises(ConfigError, match="expected whpk_…"):
        read_verifier(V1A["secret_key"])


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"k" * 32, id="the seed alone"),
        pytest.param(b"k" * 64, id="another public half"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_a_private_key_that_does_not_fit_is_refused(raw: bytes) -> None:
    with pytest.raises(ConfigError):
        read_signer("whsk_" + base64.b64encode(raw).decode())


def test_a_public_key_has_32_bytes() -> None:
    with pytest.raises(ConfigError, match="32"):
        read_verifier("whpk_" + base64.b64encode(b"k" * 31).decode())


def test_a_generated_secret_signs_and_is_never_the_same() -> None:
    one, other = generate_webhook_secret(), generate_webhook_secret()
    assert one != other
    assert verify(signed(one), one) == "msg_1"
    with pytest.raises(InvalidSignatureError):
        verify(signed(one), other)


def test_a_secret_is_in_no_repr() -> None:
    shown = repr(read_signer(SECRET)) + repr(read_signer(V1A["secret_key"]))
    assert "key=" not in shown.replace("private_key=", "")
    webhook = read_unverified_webhook(Headers(signed()))
    assert isinstance(webhook, UnverifiedWebhook)
    assert "signatures" not in repr(webhook)


def test_signing_needs_a_secret_and_an_aware_time() -> None:
    with pytest.raises(ConfigError, match="at least one secret"):
        sign_webhook(BODY, delivery_id="msg_1", now=NOW, signers=[])
    with pytest.raises(ConfigError, match="zone"):
        sign_webhook(
            BODY,
            delivery_id="msg_1",
            now=NOW.replace(tzinfo=None),
            signers=[read_signer(SECRET)],
        )
