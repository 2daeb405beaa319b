"""`[[mailbox]]` tables, and the commands that know them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pushkit.errors import ConfigError
from receiver import MailboxOptions
from receiver.cli import cli
from receiver.settings import load_settings

FILE = """
url = "https://client.example.com"

[[senders]]
name = "agent"
profile = "unsigned-secret-only"
tokens = ["a-token-of-sixteen-or-more"]

[[mailbox]]
name = "laptop"
"""
TOKEN = "the-token-of-the-laptop-is-private"


def built(folder: Path, more: str) -> list[MailboxOptions]:
    path = folder / "receiver.toml"
    path.write_text(FILE + more)
    return load_settings(path).build().mailboxes


def test_a_table_says_who_fetches_and_how_much_it_holds(tmp_path: Path) -> None:
    more = f'tokens = ["{TOKEN}"]\nlease_seconds = 300\nmax_backlog = 7\nmax_polls = 2\n'

    [mailbox] = built(tmp_path, more)

    assert mailbox.tokens == [TOKEN]
    assert mailbox.lease.total_seconds() == 300
    assert (mailbox.max_backlog, mailbox.max_polls) == (7, 2)


def test_tokens_may_be_in_a_file_and_in_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokens").write_text(f"{TOKEN}\n\n{TOKEN}-2\n")
    monkeypatch.setenv("RECEIVER_MAILBOX_TOKEN_LAPTOP", f"{TOKEN}-3")

    [mailbox] = built(tmp_path, 'tokens_file = "tokens"\n')

    assert mailbox.tokens == [TOKEN, f"{TOKEN}-2", f"{TOKEN}-3"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        pytest.param("", "tokens: expected at least one", id="no-token"),
        pytest.param('tokens = ["short"]', "each of 20 to 512", id="short"),
        pytest.param('tokens_file = "nowhere"', "tokens_file: cannot read", id="no-file"),
        pytest.param(f'tokens = ["{TOKEN}"]\nsenders = ["x"]', "found 'x'", id="no-such-sender"),
        pytest.param(f'tokens = ["{TOKEN}"]\nlease_seconds = 1', "lease_seconds", id="lease"),
        pytest.param(
            f'tokens = ["{TOKEN}"]\n[[mailbox]]\nname = "laptop"\ntokens = ["{TOKEN}"]',
            "give each its own name",
            id="twice",
        ),
        pytest.param(
            f'tokens = ["{TOKEN}"]\n[[mailbox]]\nname = "Lap top"\ntokens = ["{TOKEN}"]',
            "lower case letters",
            id="name",
        ),
    ],
)
def test_a_mistake_has_its_place_and_no_token(tmp_path: Path, more: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        built(tmp_path, more)

    assert says in str(refused.value)
    assert str(tmp_path / "receiver.toml") in str(refused.value)
    assert TOKEN not in str(refused.value)


def test_check_knows_mailboxes_and_masks_their_tokens(tmp_path: Path) -> None:
    built(tmp_path, f'tokens = ["{TOKEN}"]\n')

    path = str(tmp_path / "receiver.toml")
    checked = CliRunner().invoke(cli, ["check", "--config", path, "--settings"])

    assert "laptop: mailbox, 1 token" in checked.output
    assert TOKEN not in checked.output


def test_commands_list_redrive_and_drop(tmp_path: Path) -> None:
    database = str(tmp_path / "inbox.db")
    runner = CliRunner()
    assert runner.invoke(cli, ["migrate", "--database", database]).exit_code == 0
    for command, says in (
        (["list", "--json"], "[]\n"),
        (["redrive", "laptop"], "0 dead letters handed out again\n"),
        (["drop", "laptop", "--all"], "dropped 0\n"),
    ):
        done = runner.invoke(cli, ["mailbox", *command, "--database", database])
        assert (done.exit_code, done.output) == (0, says)


def test_a_receiver_loads_no_http_client() -> None:
    code = "from receiver import Receiver; import sys; print('aiohttp' in sys.modules)"
    found = subprocess.run(  # noqa: S603  # our own interpreter
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )

    assert found.stdout == "False\n"
