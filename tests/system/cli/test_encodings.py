"""A file that an editor saved with a byte order mark is read; one in UTF-16 is refused by name."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pushkit import KeyRing
from pushkit.clock import utc_now
from pushkit.keys.files import save_key_ring
from pushkit.keys.jwk import signing_key_to_pem
from pushkit.signing.standard_webhooks import generate_webhook_secret
from tests.system.cli.conftest import ISSUER, RECEIVER_TOML, TOKEN, UPDATE, Ran, Run

RING = KeyRing.create(utc_now())
WEBHOOKS = "standard-webhooks"
CARD = json.dumps({"name": "agent", "version": "1", "capabilities": {}, "skills": []})
TRUST = '[[origins."https://agent.example.com".keys]]\nfile = "jwks.json"\n'
REQUEST = json.dumps({"method": "POST", "target": "/", "headers": {}, "body": UPDATE.decode()})

# The file, the command that reads it, and what it prints if it could.
FILES = {
    "key file": ("keys.json", "pushkit keys list", "ES256"),
    "passphrase": ("pass", "pushkit keys list --keys sealed.json --passphrase-file pass", "ES256"),
    "PEM": ("own.pem", "pushkit keys import own.pem --keys new.json", "is active"),
    "PEM passphrase": (
        "pass",
        "pushkit keys import sealed.pem --pem-passphrase-file pass --keys new.json",
        "is active",
    ),
    "secret keys": ("secret.keys", "pushkit secrets generate secret.keys", "is in secret.keys"),
    "card": ("card.json", "pushkit card inspect card.json", "agent"),
    "JWK Set": ("jwks.json", "pushkit verify request.json --jwks jwks.json", "no JWT"),
    "JWK Set for a card": (
        "jwks.json",
        "pushkit card verify card.json --key jwks.json",
        "REFUSED",
    ),
    "trust file": (
        "cards.toml",
        "pushkit card verify card.json --trust cards.toml --origin https://agent.example.com",
        "REFUSED",
    ),
    "request": ("request.json", "pushkit verify request.json --jwks jwks.json", "no JWT"),
    "replayed request": (
        "request.json",
        "pushkit replay request.json http://127.0.0.1:1/",
        "request.json",
    ),
    "update": (
        "update.json",
        f"pushkit send update.json --to http://127.0.0.1:1/ --issuer {ISSUER}",
        "127.0.0.1",
    ),
    "webhook secrets": (
        "webhook.secrets",
        f"pushkit verify request.json --scheme {WEBHOOKS} --webhook-secrets-file webhook.secrets",
        "no webhook-id",
    ),
    "settings": ("receiver.toml", "receiver check", "agent: 1 key"),
    "JWK Set of a sender": ("jwks.json", "receiver check", "agent: 1 key"),
    "tokens": ("tokens", "receiver check", "agent: 1 key"),
    "card of a sender": ("card.json", "receiver check", "agent: 1 key"),
    "replaced token": ("replaced", "receiver expect --replaces replaced", '"token"'),
}


@pytest.fixture(autouse=True)
def folder(pushkit_command: Run, receiver_command: Run, own_folder: Path) -> Path:
    """A folder with every kind of file."""
    save_key_ring("keys.json", RING)
    save_key_ring("sealed.json", RING, "pässphrase".encode())
    assert pushkit_command("keys", "export", "--out", "jwks.json").status == 0
    assert pushkit_command("secrets", "generate", "secret.keys").status == 0
    [entry] = RING.keys
    Path("own.pem").write_bytes(signing_key_to_pem(entry.key))  # type: ignore[arg-type]
    Path("sealed.pem").write_bytes(
        signing_key_to_pem(entry.key, "pässphrase".encode())  # type: ignore[arg-type]
    )
    for name, text in {
        "pass": "pässphrase\n",
        "card.json": CARD,
        "cards.toml": TRUST,
        "request.json": REQUEST,
        "update.json": UPDATE.decode(),
        "webhook.secrets": generate_webhook_secret(),
        "tokens": f"{TOKEN}\n",
        "receiver.toml": f'{RECEIVER_TOML}tokens_file = "tokens"\ncard = "card.json"\n',
    }.items():
        Path(name).write_text(text, "utf-8")
    minted = json.loads(receiver_command("expect").out)["token"]
    Path("replaced").write_text(minted)
    for name in ("own.pem", "sealed.pem", "tokens", "pass"):
        Path(name).chmod(0o600)
    return own_folder


@pytest.mark.parametrize("kind", FILES)
def test_a_byte_order_mark_is_no_part_of_the_file(
    run_line: Callable[[str], Ran], kind: str
) -> None:
    name, command, says = FILES[kind]
    Path(name).write_bytes(codecs.BOM_UTF8 + Path(name).read_bytes())
    ran = run_line(command)
    assert says in ran.out + ran.err


@pytest.mark.parametrize("kind", FILES)
def test_utf_16_is_refused_by_its_name(run_line: Callable[[str], Ran], kind: str) -> None:
    name, command, _ = FILES[kind]
    Path(name).write_bytes(codecs.BOM_UTF16_LE + Path(name).read_text("utf-8").encode("utf-16-le"))
    ran = run_line(command)
    assert ran.status != 0
    assert "found UTF-16, expected UTF-8" in ran.err
    assert name in ran.err
