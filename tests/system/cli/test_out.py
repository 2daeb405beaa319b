"""A command replaces the kind of file that it writes, and no other."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.cli.conftest import Run

JWKS = ("keys", "export", "--out")
PEM = ("keys", "export", "--format", "pem", "--out")
SIGN = ("card", "sign", "card.json", "--out")


@pytest.fixture(autouse=True)
def target(pushkit_command: Run, own_folder: Path) -> Path:
    """A target beside a key file and a card."""
    assert pushkit_command("keys", "new").status == 0
    (own_folder / "card.json").write_text('{"name": "agent", "version": "1"}')
    return own_folder / "target"


def _keys(path: Path) -> None:
    path.write_bytes(Path("keys.json").read_bytes())


def _database(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE t (x)")


OTHERS: dict[str, tuple[str | Callable[[Path], None], str]] = {
    "keys": (_keys, "a file with private keys"),
    "secret-keys": (f"# ours\npsk1_{'0' * 64}\n", "a file with secret keys"),
    "database": (_database, "a database"),
    "private-jwks": ('{"keys": [{"kty": "OKP", "crv": "Ed25519", "d": "A"}]}', "another file"),
    "settings": ('{"name": "project", "keys": "none"}', "another file"),
    "notes": ("buy milk\n", "another file"),
    "certificate": ("-----BEGIN CERTIFICATE-----\nA\n-----END CERTIFICATE-----\n", "another file"),
}


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize(
    "command",
    [pytest.param(JWKS, id="jwks"), pytest.param(PEM, id="pem"), pytest.param(SIGN, id="card")],
)
def test_another_file_is_kept_unless_forced(
    pushkit_command: Run, target: Path, command: tuple[str, ...], kind: str
) -> None:
    made, found = OTHERS[kind]
    made(target) if callable(made) else target.write_text(made)
    before = target.read_bytes()
    ran = pushkit_command(*command, "target")
    assert (ran.status, target.read_bytes()) == (1, before)
    assert f"target: found {found}, expected " in ran.err
    assert "--force" in ran.err
    assert pushkit_command(*command, "target", "--force").status == 0
    assert target.read_bytes() != before


@pytest.mark.parametrize("command", [JWKS, PEM, SIGN])
def test_the_kind_that_is_written_is_replaced(
    pushkit_command: Run, target: Path, command: tuple[str, ...]
) -> None:
    target.touch()
    assert pushkit_command(*command, "target").status == 0
    target.write_bytes(target.read_bytes() + b"\n")
    before = target.read_bytes()
    assert pushkit_command(*command, "target").status == 0
    assert target.read_bytes() != before


def test_a_card_is_signed_in_place(pushkit_command: Run, own_folder: Path) -> None:
    assert pushkit_command(*SIGN, "card.json").status == 0
    assert json.loads((own_folder / "card.json").read_bytes())["signatures"]


def test_no_line_of_an_audit_log_is_added_to_another_file(pushkit_command: Run) -> None:
    assert pushkit_command("migrate", "--database", "outbox.db").status == 0
    before = Path("keys.json").read_bytes()
    ran = pushkit_command("dashboard", "--database", "outbox.db", "--audit-log", "keys.json")
    assert "audit log keys.json: found another file" in ran.err
    assert Path("keys.json").read_bytes() == before
