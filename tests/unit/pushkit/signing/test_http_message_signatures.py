from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import http_message_signatures as oracle
import http_sf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushkit.errors import (
    ConfigError,
    DigestMismatchError,
    InboundError,
    InvalidSignatureError,
    MalformedRequestError,
    TimestampError,
)
from pushkit.keys.jwk import Algorithm, SigningKey, verification_key
from pushkit.keys.primitives import HTTP, sign_bytes, signature_holds
from pushkit.signing.http_message_signatures import (
    TAG,
    VerifiedHttpSignature,
    check_content_digest,
    content_digest,
    read_content_digest,
    read_dictionary,
    read_unverified_signatures,
    sign_http_message,
    signature_base,
    verify_http_signature,
    write_inner_list,
)
from pushkit.signing.jose import at_once
from pushkit.signing.scheme import check_times
from pushkit.webhook import Headers, WebhookRequest
from tests.jose import key, vectors

VECTORS = {vector["name"]: vector for vector in vectors("http_message_signatures")}
NOW = datetime(2026, 1, 1, 12, 0, 0, 999_999, tzinfo=UTC)
BODY = '{"text":"Grüße"}'.encode()
URL = "https://client.example.com/a2a/push?x=1"
FIELDS = [
    ("Content-Type", "application/a2a+json"),
    ("A2A-Version", "1.0"),
    ("X-A2A-Token", "abc"),
    ("X-A2A-Notification-Token", "abc"),
    ("webhook-id", "dlv_1"),
]
ORACLE = {
    Algorithm.ES256: oracle.algorithms.ECDSA_P256_SHA256,
    Algorithm.ES384: oracle.algorithms.ECDSA_P384_SHA384,
    Algorithm.EDDSA: oracle.algorithms.ED25519,
    Algorithm.RS256: oracle.algorithms.RSA_V1_5_SHA256,
    Algorithm.PS256: oracle.algorithms.RSA_PSS_SHA512,
}
COVERED = (
    "@method",
    "@target-uri",
    "content-type",
    "content-digest",
    "webhook-id",
    "a2a-version",
    "x-a2a-token",
    "x-a2a-notification-token",
)


def signed(
    *, signer: SigningKey | None = None, fields: Iterable[tuple[str, str]] = FIELDS, url: str = URL
) -> list[tuple[str, str]]:
    fields = list(fields)
    request = WebhookRequest(target=url, headers=Headers(fields), body=BODY)
    return [*fields, *at_once(sign_http_message(request, signer or key(), now=NOW))]


def verify(
    fields: Iterable[tuple[str, str]],
    *,
    signer: SigningKey | None = None,
    method: str = "POST",
    urls: tuple[str, ...] = (URL,),
    body: bytes = BODY,
    now: datetime = NOW,
    algorithms: frozenset[Algorithm] = frozenset(Algorithm),
) -> VerifiedHttpSignature:
    headers = Headers(fields)
    (unverified,) = read_unverified_signatures(headers)
    verified = verify_http_signature(
        unverified,
        (signer or key()).to_verification_key(),
        method=method,
        target_uris=urls,
        headers=headers,
        algorithms=algorithms,
    )
    check_content_digest(verified.digests, body)
    check_times(verified.issued_at, verified.expires_at, now)
    return verified


def with_field(name: str, value: str | None) -> list[tuple[str, str]]:
    kept = [(key, old) for key, old in signed() if key.lower() != name.lower()]
    return kept if value is None else [*kept, (name, value)]


def field(name: str) -> str:
    return next(value for key, value in signed() if key == name)


# --- vectors ------------------------------------------------------------------------------------


def test_the_example_of_the_specification_verifies() -> None:
    vector = VECTORS["b26"]
    headers = Headers(vector["headers"])
    label = "sig-b26="
    parameters = vector["headers"]["Signature-Input"].removeprefix(label)
    signature = http_sf.parse(vector["headers"]["Signature"].encode(), tltype="dictionary")
    assert isinstance(signature, dict)
    components = ["date", "@method", "@path", "@authority", "content-type", "content-length"]
    base = signature_base("POST", vector["url"], headers, components, parameters)
    assert base.decode() == "\n".join(
        [
            '"date": Tue, 20 Apr 2021 02:07:55 GMT',
            '"@method": POST',
            '"@path": /foo',
            '"@authority": example.com',
            '"content-type": application/json',
            '"content-length": 18',
            f'"@signature-params": {parameters}',
        ]
    )
    trusted = verification_key(vector["public_jwk"])
    assert trusted.kid == vector["thumbprint"]
    member = signature["sig-b26"]
    assert isinstance(member, tuple)
    assert isinstance(member[0], bytes)
    assert signature_holds(trusted, base, member[0], HTTP)
    assert not signature_holds(trusted, base + b"\n", member[0], HTTP)


def test_digests_are_those_of_the_specification() -> None:
    vector = VECTORS["content-digest"]
    body = vector["body"].encode()
    assert content_digest(body) == vector["sha-256"]
    for name in ("sha-256", "sha-512"):
        digests = read_content_digest(Headers({"content-digest": vector[name]}))
        assert list(digests) == [name]
        check_content_digest(digests, body)
        said = f"received, of {len(body) + 1} bytes; signed are 18$"
        with pytest.raises(DigestMismatchError, match=said):
            check_content_digest(digests, body + b" ", length="18")


# --- both ways ----------------------------------------------------------------------------------


def by_kid(signer: SigningKey) -> Any:
    """Return what finds its key, private or public, for the reference library."""
    return SimpleNamespace(
        resolve_private_key={signer.kid: signer.private_key}.__getitem__,
        resolve_public_key={signer.kid: signer.private_key.public_key()}.__getitem__,
    )


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_the_reference_library_verifies_what_is_signed_here(algorithm: Algorithm) -> None:
    now, request = datetime.now(UTC), WebhookRequest(target=URL, headers=Headers(FIELDS), body=BODY)
    fields = dict([*FIELDS, *at_once(sign_http_message(request, key(algorithm), now=now))])
    verifier = oracle.HTTPMessageVerifier(
        signature_algorithm=ORACLE[algorithm], key_resolver=by_kid(key(algorithm))
    )
    (result,) = verifier.verify(
        SimpleNamespace(method="POST", url=URL, headers=fields),
        expect_tag=TAG,
        require_components=COVERED,
        body=BODY,
    )
    assert result.parameters["alg"] == HTTP[algorithm].name
    assert result.parameters["keyid"] == key(algorithm).kid


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_verifies_what_the_reference_library_signs(algorithm: Algorithm) -> None:
    message = SimpleNamespace(method="POST", url=URL, headers=dict(FIELDS))
    oracle.HTTPMessageSigner(
        signature_algorithm=ORACLE[algorithm], key_resolver=by_kid(key(algorithm))
    ).sign(
        message,
        key_id=key(algorithm).kid,
        created=NOW,
        expires=NOW + timedelta(seconds=60),
        tag=TAG,
        label="theirs",
        covered_component_ids=(*COVERED, "@authority", "@scheme", "@path", "@query"),
        body=BODY,
    )
    verified = verify(message.headers.items(), signer=key(algorithm))
    assert verified.delivery_id == "dlv_1"
    assert verified.issued_at == NOW.replace(microsecond=0)


# --- what is signed -----------------------------------------------------------------------------


def test_a_signature_has_all_parameters_of_the_profile() -> None:
    fields = dict(signed())
    parsed = http_sf.parse(fields["Signature-Input"].encode(), tltype="dictionary")
    assert isinstance(parsed, dict)
    member = parsed["a2a"]
    assert isinstance(member, tuple)
    covered, parameters = member
    assert isinstance(covered, list)
    assert isinstance(parameters, dict)
    created = int(NOW.timestamp())
    assert covered == [(name, {}) for name in COVERED]
    assert len(str(parameters.pop("nonce"))) >= 22
    assert parameters == {
        "created": created,
        "expires": created + 300,
        "keyid": key().kid,
        "alg": "ecdsa-p256-sha256",
        "tag": "a2a-push",
    }


def test_a_request_without_a_required_component_is_not_signed() -> None:
    for name in ("Content-Type", "webhook-id"):
        fields = [(key, value) for key, value in FIELDS if key != name]
        with pytest.raises(ConfigError, match=name.lower()):
            signed(fields=fields)
    with pytest.raises(ConfigError, match="x-a2a-token"):
        signed(fields=[*FIELDS[:1], ("X-A2A-Token", "a\nb"), *FIELDS[4:]])
    with pytest.raises(ConfigError, match="target-uri"):
        signed(url="https://client.example.com/ü")


# --- verifying ----------------------------------------------------------------------------------


def test_a_verified_signature_names_delivery_key_and_times() -> None:
    verified = verify(signed())
    created = NOW.replace(microsecond=0)
    assert (verified.keyid, verified.delivery_id) == (key().kid, "dlv_1")
    assert (verified.issued_at, verified.expires_at) == (created, created + timedelta(seconds=300))


def test_one_of_several_urls_is_enough() -> None:
    assert verify(signed(), urls=("https://other.example.com/", URL)).delivery_id == "dlv_1"


def test_names_have_no_case_and_values_no_outer_space() -> None:
    fields = [(name.upper(), f" \t{value} ") for name, value in signed()]
    assert verify(fields).delivery_id == "dlv_1"


def test_lines_of_one_field_are_joined() -> None:
    fields = signed(fields=[*FIELDS, ("Accept", "a"), ("Accept", " b ")])
    base = signature_base("POST", URL, Headers(fields), ["accept"], "()")
    assert base == b'"accept": a, b\n"@signature-params": ()'
    split = [
        part
        for name, value in fields
        for part in (
            [(name, value), (name, "other=:AAAA:")] if name == "Signature" else [(name, value)]
        )
    ]
    assert verify(split).delivery_id == "dlv_1"


def test_an_empty_field_is_covered_as_it_is() -> None:
    base = signature_base("POST", URL, Headers({"X-Empty": ""}), ["x-empty"], "()")
    assert base == b'"x-empty": \n"@signature-params": ()'


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        pytest.param(
            "https://Example.COM:443/a%20b?x=1&y", ("example.com", "/a%20b", "?x=1&y"), id="https"
        ),
        pytest.param("http://example.com:80", ("example.com", "/", "?"), id="http"),
        pytest.param("http://example.com:443/", ("example.com:443", "/", "?"), id="other port"),
        pytest.param("https://[::1]:8443/a", ("[::1]:8443", "/a", "?"), id="IPv6"),
    ],
)
def test_components_are_derived_from_the_url(url: str, expected: tuple[str, str, str]) -> None:
    components = ["@authority", "@path", "@query", "@scheme"]
    base = signature_base("POST", url, Headers(), components, "()").decode()
    lines = [line.partition(": ")[2] for line in base.split("\n")]
    assert lines[:3] == list(expected)
    assert lines[3] == url.partition(":")[0]


# --- refusals: one thing changed in what is accepted -------------------------------------------


PARAMETERS = field("Signature-Input").removeprefix("a2a=")


def resigned(
    components: Iterable[str] = COVERED,
    *,
    fields: Iterable[tuple[str, str]] = (),
    **changes: object,
) -> list[tuple[str, str]]:
    """Sign any claims with the trusted key, as a careless sender might."""
    components = tuple(components)
    parameters: dict[str, object] = {
        "created": int(NOW.timestamp()),
        "expires": int(NOW.timestamp()) + 300,
        "keyid": key().kid,
        "tag": TAG,
        **changes,
    }
    stated = {name: value for name, value in parameters.items() if value is not None}
    written = write_inner_list(([(name, {}) for name in components], stated))
    headers = [*FIELDS, ("Content-Digest", content_digest(BODY)), *fields]
    covered = [name for name in components if name.startswith("@") or Headers(headers).all(name)]
    base = signature_base("POST", URL, Headers(headers), list(dict.fromkeys(covered)), written)
    signature = sign_bytes(key(), base, HTTP)
    return [
        *headers,
        ("Signature-Input", f"a2a={written}"),
        ("Signature", http_sf.ser({"a2a": signature})),
    ]


def test_a_signature_made_by_hand_is_accepted() -> None:
    assert verify(resigned()).delivery_id == "dlv_1"
    assert verify(resigned(reversed(COVERED))).delivery_id == "dlv_1"
    assert verify(resigned(nonce="n", context="unknown parameters are signed too"))


@pytest.mark.parametrize("missing", COVERED)
def test_a_signature_that_covers_less_is_refused(missing: str) -> None:
    with pytest.raises(InvalidSignatureError, match=f"does not cover {missing}"):
        verify(resigned(name for name in COVERED if name != missing))


@pytest.mark.parametrize(
    ("added", "says"),
    [
        pytest.param(["webhook-id"], "a component twice", id="one twice"),
        pytest.param(
            ["x-missing"], "x-missing, which is not in the request", id="one that is not there"
        ),
        pytest.param(["@status"], "@status, which is not supported", id="one of answers"),
        pytest.param(["@signature-params"], "not supported", id="itself"),
        pytest.param(["@unknown"], "not supported", id="one that is not known"),
        pytest.param(["Content-Type"], "in lower case", id="one in capitals"),
        pytest.param([""], "not a field name", id="an empty one"),
        pytest.param(['a" b'], "not a field name", id="a quote"),
    ],
)
def test_components_that_cannot_be_covered_are_refused(added: list[str], says: str) -> None:
    components = [*COVERED, *added]
    written = "(" + " ".join(http_sf.ser(name) for name in components) + ")"
    rest = PARAMETERS.partition(")")[2]
    changed = [one for one in resigned() if one[0] != "Signature-Input"]
    with pytest.raises(InvalidSignatureError, match=says):
        verify([*changed, ("Signature-Input", f"a2a={written}{rest}")])


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"created": None}, id="no created"),
        pytest.param({"expires": None}, id="no expires"),
        pytest.param({"keyid": None}, id="no keyid"),
        pytest.param({"created": "1767268800"}, id="created a string"),
        pytest.param({"created": True}, id="created a boolean"),
        pytest.param({"created": 1767268800.5}, id="created a decimal"),
        pytest.param({"created": NOW}, id="created a date"),
        pytest.param({"expires": 999999999999999}, id="expires beyond the calendar"),
        pytest.param({"keyid": http_sf.Token("abc")}, id="keyid a token"),
        pytest.param({"keyid": b"abc"}, id="keyid bytes"),
        pytest.param({"alg": http_sf.Token("ed25519")}, id="alg a token"),
        pytest.param({"alg": "ed25519"}, id="alg of another key"),
        pytest.param({"alg": "hmac-sha256"}, id="alg with the public key as a secret"),
        pytest.param({"alg": "ES256"}, id="alg by its JOSE name"),
        pytest.param({"alg": ""}, id="alg empty"),
    ],
)
def test_parameters_of_another_kind_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidSignatureError):
        verify(resigned(**change))


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(PARAMETERS.replace('"webhook-id"', '"webhook-id";sf'), id="component sf"),
        pytest.param(PARAMETERS.replace('"webhook-id"', '"webhook-id";bs'), id="component bs"),
        pytest.param(PARAMETERS.replace('"@method"', '"@method";req'), id="component req"),
        pytest.param(
            PARAMETERS.replace('"content-digest"', '"content-digest";key="sha-256"'),
            id="component key",
        ),
        pytest.param(PARAMETERS.replace('"@method"', "post"), id="component a token"),
        pytest.param(PARAMETERS.replace('"@method"', "1"), id="component a number"),
        pytest.param('"@method"' + PARAMETERS.partition(")")[2], id="no list"),
        pytest.param(PARAMETERS.replace(';tag="a2a-push"', ""), id="no tag"),
        pytest.param(PARAMETERS.replace('"a2a-push"', "a2a-push"), id="tag a token"),
        pytest.param(PARAMETERS.replace("a2a-push", "A2A-Push"), id="tag in capitals"),
        pytest.param(PARAMETERS + ";created=1", id="parameter twice"),
        pytest.param(PARAMETERS + ", a2a=()", id="label twice"),
        pytest.param(PARAMETERS + ",", id="a comma at the end"),
        pytest.param(PARAMETERS[:-1], id="cut off"),
        pytest.param(PARAMETERS.replace('"', "'"), id="other quotes"),
        pytest.param(PARAMETERS.replace("a2a-push", "a2a-püsh"), id="not ASCII"),
        pytest.param(PARAMETERS.replace(" ", "\r\n ", 1), id="folded"),
        pytest.param("", id="empty"),
    ],
)
def test_an_input_that_is_none_of_ours_is_refused(changed: str) -> None:
    assert changed != PARAMETERS
    headers = Headers(with_field("Signature-Input", f"a2a={changed}"))
    try:
        found = read_unverified_signatures(headers)
    except InboundError as refused:
        assert 400 <= refused.status < 500  # noqa: PT017
    else:
        assert found == []


@pytest.mark.parametrize("value", ["a\r\n b", "a\nb", "a\rb", "a\x00b", "a\x7fb", "é", "a\u2028b"])
def test_a_field_that_cannot_be_signed_is_refused(value: str) -> None:
    with pytest.raises(MalformedRequestError, match="x-a2a-token"):
        verify(with_field("x-a2a-token", value))


# --- several signatures -------------------------------------------------------------------------


def test_signatures_with_another_tag_are_ignored() -> None:
    fields = [
        *signed(),
        ("Signature-Input", 'proxy=("@method");created=1;keyid="p";tag="proxy"'),
        ("Signature-Input", "bare, other=1"),
        ("Signature", "proxy=:AAAA:"),
    ]
    assert verify(fields).delivery_id == "dlv_1"


def test_more_of_our_signatures_than_a_rotation_has_are_refused() -> None:
    page = (Path(__file__).parents[4] / "docs" / "signatures.md").read_text("utf-8")
    assert '`tag="a2a-push"` count, at most four' in page
    fields = dict(signed())
    inputs = [fields["Signature-Input"].replace("a2a=", f"s{n}=") for n in range(5)]
    made = [fields["Signature"].replace("a2a=", f"s{n}=") for n in range(5)]
    four = Headers({"Signature-Input": ", ".join(inputs[:4]), "Signature": ", ".join(made[:4])})
    assert len(read_unverified_signatures(four)) == 4
    five = Headers({"Signature-Input": ", ".join(inputs), "Signature": ", ".join(made)})
    with pytest.raises(InvalidSignatureError, match="expected at most 4"):
        read_unverified_signatures(five)


def test_a_request_without_signatures_has_none() -> None:
    assert read_unverified_signatures(Headers(FIELDS)) == []
    assert read_unverified_signatures(Headers({"Signature": "a2a=:AAAA:"})) == []


# --- digests ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("md5=:AAAA:", id="md5"),
        pytest.param("sha=:AAAA:", id="SHA-1"),
        pytest.param("unixsum=:AAAA:", id="a checksum"),
        pytest.param("sha3-256=:AAAA:", id="unknown"),
        pytest.param("sha-256", id="no value"),
        pytest.param('sha-256="AAAA"', id="a string"),
        pytest.param("sha-256=AAAA", id="a token"),
        pytest.param("", id="empty"),
    ],
)
def test_a_digest_that_proves_nothing_is_refused(value: str) -> None:
    with pytest.raises(InvalidSignatureError, match="Content-Digest"):
        read_content_digest(Headers({"Content-Digest": value}))


@pytest.mark.parametrize("name", ["Signature-Input", "Signature", "Content-Digest"])
def test_a_field_that_takes_long_to_parse_is_refused(name: str) -> None:
    value = ", ".join(f"k{n}=1" for n in range(1000))
    with pytest.raises(MalformedRequestError, match=f"{name}: found .* at most 4096"):
        read_dictionary(Headers({name: value}), name)
    assert read_dictionary(Headers({name: value[:4094]}), name)


@pytest.mark.parametrize("value", ["sha-256=:", "sha-256=:*:", "SHA-256=:AAAA:", "sha-256 :A:"])
def test_a_digest_that_is_no_dictionary_is_refused(value: str) -> None:
    with pytest.raises(MalformedRequestError, match="Content-Digest"):
        read_content_digest(Headers({"Content-Digest": value}))


def test_every_digest_that_is_trusted_must_be_the_bodys() -> None:
    vector = VECTORS["content-digest"]
    both = Headers({"Content-Digest": f"{vector['sha-512']}, {content_digest(b'other')}, md5=:AA:"})
    with pytest.raises(DigestMismatchError, match="sha-256"):
        check_content_digest(read_content_digest(both), vector["body"].encode())


def test_a_digest_twice_is_refused() -> None:
    good = content_digest(BODY)
    with pytest.raises(MalformedRequestError, match="without duplicates"):
        read_content_digest(Headers([("Content-Digest", good), ("content-digest", good)]))


# --- times --------------------------------------------------------------------------------------


def test_a_signature_ends_when_it_says_so() -> None:
    fields = resigned(expires=int(NOW.timestamp()) + 10)
    verify(fields, now=NOW + timedelta(seconds=69))
    with pytest.raises(TimestampError, match="expired"):
        verify(fields, now=NOW + timedelta(seconds=71))


# --- fuzzing ------------------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.sampled_from(["Signature", "Signature-Input", "Content-Digest", "webhook-id"]),
        st.text(max_size=80) | st.text(alphabet='a2=();:,"@- \t', max_size=80),
    )
)
def test_no_header_raises_anything_but_a_refusal(changed: dict[str, str]) -> None:
    fields = [(name, changed.get(name, value)) for name, value in signed()]
    headers = Headers(fields)
    try:
        for unverified in read_unverified_signatures(headers):
            verify_http_signature(
                unverified,
                key().to_verification_key(),
                method="POST",
                target_uris=[URL],
                headers=headers,
            )
    except InboundError as refused:
        assert 400 <= refused.status < 500  # noqa: PT017
