"""Whose keys count, and until when."""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pushkit.cards import (
    CardTrust,
    OriginTrust,
    TrustedKey,
    TrustedKeys,
    load_card_trust,
    load_public_keys,
    sign_card,
    verify_card,
)
from pushkit.errors import CardRefusedError, ConfigError, JwksError, KeyFileError, PushkitError
from pushkit.keys.files import create_key_ring
from pushkit.keys.jwk import (
    Algorithm,
    VerificationKey,
    generate_key,
    public_pem,
    signing_key_to_pem,
    thumbprint,
)
from pushkit.keys.jwks import jwks_document
from pushkit.keys.ring import KeyRing
from pushkit.net.connection import HttpAnswer
from pushkit.webhook import Headers
from tests.refusals import refused_unless
from tests.unit.pushkit.cards.vectors import FOLDER, KEY, NOW, SIGNING_KEY, TRUST, load

CARD = load("cards_v10")["c01_minimal"]
ORIGIN = "https://agent.example.com"
URL = f"{ORIGIN}/.well-known/agent-card.json"
JWKS = f"{ORIGIN}/.well-known/jwks.json"
OTHER_JWKS = f"{ORIGIN}/keys/other.json"
DAY = timedelta(days=1)


class Sets:
    """JWK Sets by URL, and what was fetched."""

    def __init__(self, **rings: KeyRing) -> None:
        self.rings = {JWKS: rings.get("main"), OTHER_JWKS: rings.get("other")}
        self.fetched: list[str] = []

    async def __call__(self, url: str, _etag: str | None) -> HttpAnswer:
        self.fetched.append(url)
        ring = self.rings[url]
        if ring is None:
            raise JwksError("down")
        return HttpAnswer(status=200, headers=Headers(), body=jwks_document(ring, NOW))


PUBLISHED = OriginTrust(jwks_urls=(JWKS,))


def trusting(sets: Sets, origin: OriginTrust = PUBLISHED, **options: Any) -> CardTrust:
    return CardTrust({ORIGIN: origin}, fetch=sets, **options)


def signed(*keys: Any, jku: str | None = None) -> bytes:
    return sign_card(CARD, list(keys) or SIGNING_KEY, now=NOW, jku=jku).content


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        pytest.param(TrustedKey(key=KEY, expires_at=NOW + DAY), None, id="expires-later"),
        pytest.param(TrustedKey(key=KEY, expires_at=NOW), "expired", id="expired"),
        pytest.param(TrustedKey(key=KEY, revoked_at=NOW - DAY), "revoked", id="revoked"),
        pytest.param(TrustedKey(key=KEY, not_before=NOW + DAY), "counts from", id="not-yet"),
        pytest.param(TrustedKey(key=KEY, not_before=NOW), None, id="from-now"),
    ],
)
def test_a_key_counts_for_as_long_as_it_is_good(key: TrustedKey, reason: str | None) -> None:
    verdict = verify_card(signed(), TrustedKeys(keys=(key,)), now=NOW)
    assert verdict.verified is (reason is None)
    assert reason is None or reason in verdict.reason


def test_times_need_a_zone() -> None:
    with pytest.raises(ConfigError, match="time zone"):
        TrustedKey(key=KEY, expires_at=datetime(2030, 1, 1))  # noqa: DTZ001 - the point


def test_now_needs_a_zone_whether_or_not_a_key_has_dates() -> None:
    with pytest.raises(
        ConfigError, match="now is 2026-06-01T00:00:00, expected a time with a zone"
    ):
        verify_card(b'{"name": "A"}', TrustedKeys(), now=NOW.replace(tzinfo=None))


def test_no_trusted_key_means_no_verified_card() -> None:
    verdict = verify_card(signed(), TrustedKeys(), now=NOW)
    assert "no key is trusted" in verdict.reason
    with pytest.raises(CardRefusedError, match="no key is trusted"):
        verdict.require()


def test_the_key_says_which_algorithm_it_is_for() -> None:
    rsa = generate_key(Algorithm.RS256)
    pinned = VerificationKey(
        kid=rsa.kid, algorithm=Algorithm.PS256, public_key=rsa.private_key.public_key()
    )
    verdict = verify_card(signed(rsa), TrustedKeys.pinned(pinned), now=NOW)
    assert "no trusted key is for RS256" in verdict.reason


@pytest.mark.parametrize("algorithm", Algorithm)
def test_every_algorithm(algorithm: Algorithm) -> None:
    key = generate_key(algorithm)
    trust = TrustedKeys.pinned(key.to_verification_key())
    assert verify_card(signed(key), trust, now=NOW).verified


def test_a_revoked_key_does_not_shadow_a_good_signature() -> None:
    good = generate_key(Algorithm.ES256)
    trust = TrustedKeys(
        keys=(
            TrustedKey(key=KEY, revoked_at=NOW),
            TrustedKey(key=good.to_verification_key()),
        )
    )
    verdict = verify_card(signed(SIGNING_KEY, good), trust, now=NOW)
    assert verdict.verified
    assert [found.accepted for found in verdict.signatures] == [False, True]


async def test_keys_are_those_of_the_cards_origin_and_of_no_other() -> None:
    trust = CardTrust({ORIGIN: OriginTrust(keys=(TrustedKey(key=KEY),))})
    assert (await trust.keys_for(URL)).keys
    assert (await trust.keys_for("https://AGENT.example.com:443/x")).keys
    for other in (
        "https://evil.example.com/",
        "https://agent.example.com.evil.example/",
        "https://agent.example.com:8443/",
        "http://agent.example.com/",
    ):
        assert await trust.keys_for(other) == TrustedKeys()
        assert not trust.knows(other)


async def test_keys_of_a_trusted_jwks_url() -> None:
    ring = KeyRing.create(NOW)
    trust = trusting(Sets(main=ring))
    keys = await trust.keys_for(URL)
    verdict = verify_card(signed(ring.signing_key(NOW), jku=JWKS), keys, now=NOW)
    assert verdict.verified
    assert verdict.best is not None
    assert verdict.best.key is not None
    assert verdict.best.key.jwks_url == JWKS
    assert verdict.trusted.jwks_urls == (JWKS,)
    assert verdict.jwks_url == JWKS
    assert verdict.warnings == ()
    await trust.close()


async def test_a_set_counts_no_longer_than_it_is_fresh() -> None:
    sets, now = Sets(main=KeyRing.create(NOW)), NOW
    trust = trusting(sets, clock=lambda: now)
    assert (await trust.keys_for(URL)).keys
    sets.rings[JWKS] = None
    now += timedelta(seconds=299)
    assert (await trust.keys_for(URL)).keys
    now += timedelta(seconds=1)
    found = await trust.keys_for(URL)
    assert (found.keys, found.unavailable) == ((), (JWKS,))
    await trust.close()


async def test_a_jku_is_never_fetched_because_a_card_says_so() -> None:
    forger = generate_key(Algorithm.ES256)
    sets = Sets(main=KeyRing.create(NOW))
    trust = trusting(sets)
    forged = signed(forger, jku="https://evil.example.com/jwks.json")
    verdict = verify_card(forged, await trust.keys_for(URL), now=NOW)
    assert not verdict.verified
    assert sets.fetched == [JWKS]


async def test_a_key_that_the_signer_changed_to_is_looked_for_in_its_set() -> None:
    old, new, now = KeyRing.create(NOW), KeyRing.create(NOW), NOW
    sets = Sets(main=old)
    trust = trusting(sets, clock=lambda: now)
    assert verify_card(signed(old.signing_key(NOW)), await trust.keys_for(URL), now=NOW).verified
    sets.rings[JWKS] = new
    card = signed(new.signing_key(NOW))

    for _ in range(3):  # a stranger's `kid` is worth one fetch in a while, not one each
        await trust.keys_for(URL, signed(generate_key(Algorithm.ES256)))
        assert verify_card(card, await trust.keys_for(URL, card), now=NOW).verified
    assert sets.fetched == [JWKS] * 2

    now += timedelta(seconds=30)
    await trust.keys_for(URL, signed(generate_key(Algorithm.ES256)))
    assert sets.fetched == [JWKS] * 3
    await trust.close()


async def test_a_key_that_its_set_dropped_counts_no_longer() -> None:
    ring = KeyRing.create(NOW)
    old = ring.signing_key(NOW)
    trust = trusting(Sets(main=ring.revoke(old.kid, NOW)))
    assert not verify_card(signed(old), await trust.keys_for(URL), now=NOW).verified


async def test_a_trusted_jku_selects_the_keys_published_there() -> None:
    main, other = KeyRing.create(NOW), KeyRing.create(NOW)
    both = OriginTrust(jwks_urls=(JWKS, OTHER_JWKS))
    keys = await trusting(Sets(main=main, other=other), both).keys_for(URL)
    key = main.signing_key(NOW)
    assert verify_card(signed(key, jku=JWKS), keys, now=NOW).verified
    assert verify_card(signed(key), keys, now=NOW).verified
    assert not verify_card(signed(key, jku=OTHER_JWKS), keys, now=NOW).verified


async def test_a_set_that_is_down_takes_only_its_own_keys_away() -> None:
    pinned = OriginTrust(keys=(TrustedKey(key=KEY),), jwks_urls=(JWKS,))
    trust = trusting(Sets(), pinned)
    keys = await trust.keys_for(URL)
    assert keys.unavailable == (JWKS,)
    verdict = verify_card(signed(jku=JWKS), keys, now=NOW)
    assert verdict.verified
    assert f"keys from {JWKS} could not be fetched" in verdict.warnings
    forger = generate_key(Algorithm.EDDSA)
    assert "could not be fetched" in verify_card(signed(forger), keys, now=NOW).reason


@pytest.mark.parametrize("by", ["kid", "thumbprint"])
async def test_the_operator_can_revoke_what_is_still_published(by: str) -> None:
    ring = KeyRing.create(NOW)
    key = ring.signing_key(NOW)
    name = key.kid if by == "kid" else thumbprint(key.private_key.public_key())
    origin = OriginTrust(jwks_urls=(JWKS,), revoked={name: NOW - DAY})
    trust = trusting(Sets(main=ring), origin)
    verdict = verify_card(signed(key), await trust.keys_for(URL), now=NOW)
    assert not verdict.verified
    assert "revoked" in verdict.reason


async def test_a_pinned_key_that_is_revoked_counts_in_no_set_either() -> None:
    ring = KeyRing.create(NOW)
    key = ring.signing_key(NOW)
    pinned = TrustedKey(key=replace(key.to_verification_key(), kid="pinned"), revoked_at=NOW)
    origin = OriginTrust(keys=(pinned,), jwks_urls=(JWKS,))
    trust = trusting(Sets(main=ring), origin)
    verdict = verify_card(signed(key), await trust.keys_for(URL), now=NOW)
    assert "revoked" in verdict.reason


@pytest.mark.parametrize("when", [NOW - DAY, NOW + DAY], ids=["first-of-all", "later"])
async def test_a_key_that_is_revoked_by_a_name_is_so_under_its_other_names(when: datetime) -> None:
    ring = KeyRing.create(NOW)
    key = ring.signing_key(NOW)
    pinned = TrustedKey(
        key=replace(key.to_verification_key(), kid="pinned"), revoked_at=max(NOW, when)
    )
    revoked = {"pinned": when, key.kid: NOW}
    origin = OriginTrust(keys=(pinned,), jwks_urls=(JWKS,), revoked=revoked)
    trust = trusting(Sets(main=ring), origin)

    keys = await trust.keys_for(URL)

    assert [entry.revoked_at for entry in keys.keys] == [min(NOW, when)] * 2


@pytest.mark.parametrize("url", ["nonsense", "https://user:pass@agent.example.com/jwks.json"])
def test_a_jwks_url_that_cannot_be_fetched_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigError, match="trusted JWK Sets: URL: expected") as refused:
        OriginTrust(jwks_urls=(url,))
    assert "pass" not in str(refused.value)


async def test_the_query_of_a_jwks_url_is_in_no_verdict() -> None:
    origin = OriginTrust(jwks_urls=(f"{JWKS}?token=secret",))
    trusted = TrustedKeys(jwks_urls=origin.jwks_urls, unavailable=origin.jwks_urls)
    reason = verify_card(signed(), trusted, now=NOW).reason
    assert f"keys from {JWKS}?*** could not be fetched" in reason


@pytest.mark.parametrize(
    ("origins", "reason"),
    [
        *(({url: OriginTrust()}, "URL: expected") for url in ("a.example.com", "ftp://a", "")),
        ({"https://u@h": OriginTrust()}, "URL: "),
        # What is pinned for a path would count for every card of the host.
        ({"https://a.example.com/tenant": OriginTrust()}, "without a path"),
        ({"https://a.example.com/?tenant=1": OriginTrust()}, "without a path"),
        ({ORIGIN: OriginTrust(), f"{ORIGIN}:443": OriginTrust()}, "is given twice"),
        ({ORIGIN: PUBLISHED}, r"need a transport: use `CardTrust\.open`"),
    ],
    ids=str,
)
def test_trust_that_means_nothing_is_refused(origins: dict[str, OriginTrust], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        CardTrust(origins)


def test_pinned_keys_do_not_end() -> None:
    assert verify_card(signed(), TRUST, now=NOW + 10_000 * DAY).verified


def test_the_jwks_url_of_a_pinned_key_is_the_jku_that_it_signed_if_that_is_trusted() -> None:
    trusted = TrustedKeys(keys=TRUST.keys, jwks_urls=(JWKS,))
    for jku, expected in ((JWKS, JWKS), (None, None), ("https://evil.example.com/jwks", None)):
        verdict = verify_card(signed(jku=jku), trusted, now=NOW)
        assert verdict.verified
        assert verdict.jwks_url == expected
    forged = verify_card(signed(generate_key(Algorithm.ES256), jku=JWKS), trusted, now=NOW)
    assert forged.jwks_url is None


# --- from files ----------------------------------------------------------------------------------


EVERYTHING = """
[origins."https://agent.example.com"]
jwks_urls = ["https://agent.example.com/.well-known/jwks.json"]
revoked = { "old-key" = 2026-05-01T12:00:00Z }

[[origins."https://agent.example.com".keys]]
file = "agent.pem"
kid = "key-1"
alg = "ES256"
not_before = 2026-01-01T00:00:00Z
expires_at = 2027-01-01T00:00:00+01:00
revoked_at = 2026-06-01T00:00:00Z

[[origins."https://agent.example.com".keys]]
file = "jwks.json"

[origins."https://other.example.com"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pem = (FOLDER / "es256_public.pem").read_bytes()
    (tmp_path / "agent.pem").write_bytes(pem)
    (tmp_path / "jwks.json").write_bytes(jwks_document(KeyRing.create(NOW), NOW))
    return tmp_path


def write(folder: Path, text: str) -> Path:
    path = folder / "cards.toml"
    path.write_text(text, "utf-8")
    return path


def test_everything_that_can_be_said(folder: Path) -> None:
    origins = load_card_trust(write(folder, EVERYTHING))
    assert list(origins) == ["https://agent.example.com", "https://other.example.com"]
    trust = origins["https://agent.example.com"]
    assert trust.jwks_urls == ("https://agent.example.com/.well-known/jwks.json",)
    assert trust.revoked == {"old-key": datetime(2026, 5, 1, 12, tzinfo=UTC)}
    pinned, from_set = trust.keys
    assert (pinned.key.kid, pinned.key.algorithm) == ("key-1", Algorithm.ES256)
    assert pinned.not_before == datetime(2026, 1, 1, tzinfo=UTC)
    assert pinned.expires_at == datetime(2026, 12, 31, 23, tzinfo=UTC)
    assert pinned.revoked_at == datetime(2026, 6, 1, tzinfo=UTC)
    assert from_set.expires_at is None


def test_files_may_begin_with_a_byte_order_mark(folder: Path) -> None:
    jwks = folder / "jwks.json"
    jwks.write_bytes(codecs.BOM_UTF8 + jwks.read_bytes())
    [origin, _] = load_card_trust(write(folder, f"\ufeff{EVERYTHING}")).values()
    assert len(origin.keys) == 2


@pytest.mark.parametrize(
    "name", ["https://agent:geheim@a.example.com", "https://a.example.com/?k=geheim"]
)
def test_an_origin_with_a_secret_is_refused_without_it(folder: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"a\.example\.com") as refused:
        CardTrust(load_card_trust(write(folder, f"[origins.'{name}']")))
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize("by", ["kid", "thumbprint", "the signer's kid"])
def test_a_revocation_that_names_no_pinned_key_is_refused(folder: Path, by: str) -> None:
    kid = "" if by == "the signer's kid" else ', kid = "key-1"'
    name = thumbprint(KEY.public_key) if by == "thumbprint" else "key-1"
    text = (
        f'[origins."https://agent.example.com"]\nkeys = [{{ file = "agent.pem"{kid} }}]\n'
        f'revoked = {{ "{name}" = 2026-05-01T12:00:00Z }}\n'
    )
    with refused_unless(bool(kid), ConfigError, "revoked: 'key-1': found no pinned key"):
        assert load_card_trust(write(folder, text))


KEY_TABLE = '[[origins."https://a.example.com".keys]]\n'
ORIGIN_TABLE = '[origins."https://a.example.com"]\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[", "not TOML"),
        ("orgins = {}", "unknown: orgins"),
        ("origins = 5", "origins: expected a table"),
        ('[origins]\n"https://a.example.com" = 5', "expected a table"),
        ('[origins."a.example.com"]', "origins.'a.example.com': URL: expected"),
        (f"{ORIGIN_TABLE}jwks_url = []", "unknown: jwks_url"),
        (f'{ORIGIN_TABLE}jwks_urls = "https://a"', "jwks_urls: expected an array"),
        (f"{ORIGIN_TABLE}jwks_urls = [5]", "jwks_urls: expected a string"),
        (
            f'{ORIGIN_TABLE}jwks_urls = ["https://u:p@a"]',
            "cards.toml: origins.*: trusted JWK Sets: URL:",
        ),
        (f"{ORIGIN_TABLE}keys = [5]", "keys: expected tables"),
        (f"{ORIGIN_TABLE}revoked = {{ k = 5 }}", "revoked.k: expected a time"),
        (f"{ORIGIN_TABLE}revoked = {{ k = 2026-01-01T00:00:00 }}", "with a zone"),
        (f'{KEY_TABLE}kid = "k"', "expected a `file`"),
        (f'{KEY_TABLE}file = "none.pem"', "No such file"),
        (f'{KEY_TABLE}file = "a\\u0000b"', r"a\\x00b': not a path"),
        (f'{KEY_TABLE}file = "agent.pem"\nexpires = 2026-01-01T00:00:00Z', "unknown: expires"),
        (f'{KEY_TABLE}file = "agent.pem"\nexpires_at = 2026-01-01', "expires_at: expected a time"),
        (f'{KEY_TABLE}file = "agent.pem"\nexpires_at = "2026-01-01T00:00:00Z"', "without quotes"),
        (f'{KEY_TABLE}file = "agent.pem"\nalg = "none"', "alg: expected one of"),
        (f'{KEY_TABLE}file = "agent.pem"\nalg = "RS256"', "not for RS256"),
        (f'{KEY_TABLE}file = "jwks.json"\nkid = "k"', "states its own"),
    ],
)
def test_what_is_not_understood_is_refused(folder: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        load_card_trust(write(folder, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_card_trust(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"not a key", id="text"),
        pytest.param(b"{}", id="no-set"),
        pytest.param(b'{"keys": []}', id="empty-set"),
        pytest.param(
            signing_key_to_pem(generate_key(Algorithm.ES256)),
            id="private",
        ),
    ],
)
def test_a_file_without_a_public_key(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(PushkitError, match=f"^{re.escape(str(path))}: "):
        load_public_keys(path)


@pytest.mark.parametrize("algorithm", Algorithm)
def test_public_keys_in_pem(tmp_path: Path, algorithm: Algorithm) -> None:
    key = generate_key(algorithm)
    path = tmp_path / "key.pem"
    path.write_bytes(public_pem(key))
    [found] = load_public_keys(path, algorithm=algorithm)
    assert found == key.to_verification_key()


def test_a_pem_file_holds_each_key_that_is_published_during_a_rotation(folder: Path) -> None:
    keys = [generate_key(Algorithm.ES256) for _ in range(3)]
    (folder / "agent.pem").write_bytes(b"".join(map(public_pem, keys)))

    found = load_public_keys(folder / "agent.pem")

    assert found == [key.to_verification_key() for key in keys]
    one_name = f'{KEY_TABLE}file = "agent.pem"\nkid = "key-1"'
    with pytest.raises(ConfigError, match=r"agent.pem: `kid` names one key, found 3"):
        load_card_trust(write(folder, one_name))


def test_a_pem_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError):
        load_public_keys(tmp_path)


def test_a_key_of_a_set_that_cannot_be_used_is_told(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "jwks.json"
    document = json.loads(path.read_bytes())
    document["keys"].append({"kty": "oct", "k": "AA", "kid": "symmetric"})
    path.write_text(json.dumps(document), "utf-8")

    [key] = load_public_keys(path)

    assert key.kid == document["keys"][0]["kid"]
    assert f"{path}: left out: symmetric (" in caplog.text


@pytest.mark.parametrize("passphrase", [None, b"secret"], ids=["plain", "encrypted"])
def test_a_file_of_private_keys_is_refused_in_one_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, passphrase: bytes | None
) -> None:
    path = tmp_path / "keys.json"
    create_key_ring(path, KeyRing.create(NOW).add(NOW), passphrase)

    with pytest.raises(KeyFileError, match=f"private keys.*`pushkit keys export --keys {path} "):
        load_public_keys(path)

    assert not caplog.text
