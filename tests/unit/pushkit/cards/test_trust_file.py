"""The operator's trust, from a file."""

from __future__ import annotations

import codecs
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pushkit.cards import CardTrust, load_card_trust, load_public_keys
from pushkit.errors import ConfigError, KeyFileError, PushkitError
from pushkit.keys.files import create_key_ring
from pushkit.keys.jwk import Algorithm, generate_key, public_pem, signing_key_to_pem, thumbprint
from pushkit.keys.jwks import jwks_document
from pushkit.keys.ring import KeyRing
from tests.refusals import refused_unless
from tests.unit.pushkit.cards.vectors import FOLDER, KEY, NOW

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


KEYS = '[[origins."https://a.example.com".keys]]\n'
ORIGIN = '[origins."https://a.example.com"]\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[", "not TOML"),
        ("orgins = {}", "unknown: orgins"),
        ("origins = 5", "origins: expected a table"),
        ('[origins]\n"https://a.example.com" = 5', "expected a table"),
        ('[origins."a.example.com"]', "origins.'a.example.com': URL: expected"),
        (f"{ORIGIN}jwks_url = []", "unknown: jwks_url"),
        (f'{ORIGIN}jwks_urls = "https://a"', "jwks_urls: expected an array"),
        (f"{ORIGIN}jwks_urls = [5]", "jwks_urls: expected a string"),
        (
            f'{ORIGIN}jwks_urls = ["https://u:p@a"]',
            "cards.toml: origins.*: trusted JWK Sets: URL:",
        ),
        (f"{ORIGIN}keys = [5]", "keys: expected tables"),
        (f"{ORIGIN}revoked = {{ k = 5 }}", "revoked.k: expected a time"),
        (f"{ORIGIN}revoked = {{ k = 2026-01-01T00:00:00 }}", "with a zone"),
        (f'{KEYS}kid = "k"', "expected a `file`"),
        (f'{KEYS}file = "none.pem"', "No such file"),
        (f'{KEYS}file = "agent.pem"\nexpires = 2026-01-01T00:00:00Z', "unknown: expires"),
        (f'{KEYS}file = "agent.pem"\nexpires_at = 2026-01-01', "expires_at: expected a time"),
        (f'{KEYS}file = "agent.pem"\nexpires_at = "2026-01-01T00:00:00Z"', "without quotes"),
        (f'{KEYS}file = "agent.pem"\nalg = "none"', "alg: expected one of"),
        (f'{KEYS}file = "agent.pem"\nalg = "RS256"', "not for RS256"),
        (f'{KEYS}file = "jwks.json"\nkid = "k"', "states its own"),
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
    one_name = f'{KEYS}file = "agent.pem"\nkid = "key-1"'
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
