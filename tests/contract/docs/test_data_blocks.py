"""What README.md and docs/ show of TOML, JSON and YAML is read by what reads it in earnest."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from pushkit.cards import load_card_trust
from pushkit.cli.destinations import load_destinations
from pushkit.cli.main import cli as pushkit
from pushkit.secrets import vault
from receiver.cli import cli as receiver
from receiver.settings import load_settings
from tests.contract.docs.blocks import ROOT, Block, of, pages_with
from tests.contract.docs.conftest import World

BLOCKS = [each for page in pages_with("toml") for each in of(page, "toml")]
# What parts of a `receiver.toml` leave out.
URL = 'url = "https://client.example.com"\n'
SENDER = """
[[senders]]
name = "another"
path = "/another"
issuer = "https://agent.example.com"
jwks_file = "jwks.json"
"""


@pytest.mark.parametrize("block", BLOCKS, ids=lambda each: f"{each.page}:{each.line}")
def test_its_reader_takes_the_toml(
    block: Block, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OAUTH_SECRET", "a-secret")
    for secret in ("partner.key", "billing-secrets.txt"):
        Path(secret).write_text("whsec_c2VjcmV0LXRoYXQtaXMtbG9uZy1lbm91Z2g=\n")
        Path(secret).chmod(0o600)
    Path("handlers.py").write_text("def completed(notification): ...\n\n\nupdated = completed\n")
    file = world.folder / "block.toml"
    file.write_text(block.text)
    if block.page == "docs/cards.md":
        assert load_card_trust(file)
    elif block.page == "docs/credentials.md":
        assert load_destinations(file)
    else:
        said = tomllib.loads(block.text)
        missing = "" if "url" in said else URL
        file.write_text(missing + block.text + ("" if "senders" in said else SENDER))
        assert load_settings(file).senders


@pytest.mark.parametrize("page", pages_with("json"))
def test_the_json_is_json(page: str) -> None:
    assert all(json.loads(block.text) for block in of(page, "json"))


@pytest.mark.parametrize("page", pages_with("yaml"))
def test_the_yaml_is_yaml(page: str) -> None:
    assert all(yaml.safe_load(block.text) for block in of(page, "yaml"))


def test_the_statements_for_an_incident_find_their_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    statements = re.findall(r"`(SELECT [^`]+)`", (ROOT / "docs/incident.md").read_text())
    assert len(statements) == 2
    for command, database in ((pushkit, "outbox.db"), (receiver, "inbox.db")):
        assert CliRunner().invoke(command, ["migrate", "--database", database]).exit_code == 0
    with contextlib.closing(sqlite3.connect("outbox.db")) as connection:
        connection.execute("ATTACH 'inbox.db' AS inbox")
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize("page", ["docs/incident.md", "docs/secrets.md"])
def test_the_statement_after_a_change_of_secret_keys_names_each_table_with_secrets(
    page: str,
) -> None:
    [tables] = re.findall(r"`VACUUM FULL ([^`]+)`", (ROOT / page).read_text())
    columns = [each for each in vars(vault).values() if isinstance(each, vault.SecretColumn)]
    assert set(tables.split(", ")) == {column.table for column in columns}
