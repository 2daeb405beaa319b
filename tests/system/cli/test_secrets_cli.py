"""`pushkit secrets` on a file that a sender left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pushkit import SecretKeys
from tests.system.cli.conftest import Run, Webhook, enqueue


@pytest.fixture
def outbox(outbox: Path, webhook: Webhook) -> str:
    """An outbox of one plain subscription with one plain delivery; its id."""
    return enqueue(outbox, webhook, 1)[0]


@pytest.fixture
def key(pushkit_command: Run, own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of the one key in the file that the environment names."""
    assert pushkit_command("secrets", "generate", "secret.keys").status == 0
    path = own_folder / "secret.keys"
    monkeypatch.setenv("PUSHKIT_SECRET_KEYS_FILE", str(path))
    return SecretKeys.from_file(path).ids[0]


def status(run: Run) -> list[dict[str, object]]:
    ran = run("secrets", "status", "--json")
    assert ran.status == 0
    found: list[dict[str, object]] = json.loads(ran.out)
    return found


def row(key: str | None, state: str, subscriptions: int, bodies: int) -> dict[str, object]:
    return {
        "key": key,
        "state": state,
        "tokens_and_credentials": subscriptions,
        "bodies": bodies,
        "answers": 0,
    }


def test_a_key_on_standard_output_is_one_that_can_be_used(
    pushkit_command: Run, monkeypatch: pytest.MonkeyPatch, outbox: str
) -> None:
    made = pushkit_command("secrets", "generate").out.strip()
    monkeypatch.setenv("PUSHKIT_SECRET_KEYS", made)
    assert pushkit_command("secrets", "rotate").status == 0
    assert status(pushkit_command) == [
        row(SecretKeys.parse(made).ids[0], "encrypts", 1, 0),
        row(None, "plain", 0, 1),
    ]
    assert outbox


def test_a_key_in_a_file_is_shown_by_its_id_only(pushkit_command: Run, own_folder: Path) -> None:
    ran = pushkit_command("secrets", "generate", "secret.keys")
    path = own_folder / "secret.keys"
    [key_id] = SecretKeys.from_file(path).ids
    assert key_id in ran.out
    assert "psk1_" not in ran.out + ran.err
    standby = pushkit_command("secrets", "generate", "secret.keys", "--standby")
    assert "from now on decrypt with it, and encrypt once it is first" in standby.out
    assert SecretKeys.from_file(path).ids[0] == key_id
    moved, rotated = standby.err.index("move its line to the front"), standby.err.index("rotate")
    assert moved < rotated


def test_a_new_key_comes_with_what_is_still_to_do(
    pushkit_command: Run, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = pushkit_command("secrets", "generate", "secret.keys").err
    assert f"PUSHKIT_SECRET_KEYS_FILE={own_folder / 'secret.keys'}" in said
    assert "restart" in said
    assert "pushkit secrets rotate" in said
    monkeypatch.setenv("PUSHKIT_SECRET_KEYS_FILE", "secret.keys")
    again = pushkit_command("secrets", "generate", "secret.keys").err
    assert "PUSHKIT_SECRET_KEYS_FILE" not in again
    assert "pushkit secrets rotate" in again
    assert "PUSHKIT_SECRET_KEYS of" in pushkit_command("secrets", "generate").err


@pytest.mark.usefixtures("outbox")
def test_status_counts_what_is_plain_and_what_is_not(pushkit_command: Run, key: str) -> None:
    assert status(pushkit_command) == [row(key, "encrypts", 0, 0), row(None, "plain", 1, 1)]
    assert "TOKENS AND CREDENTIALS" in pushkit_command("secrets", "status").out


@pytest.mark.usefixtures("outbox")
def test_rotate_encrypts_what_was_plain(pushkit_command: Run, key: str) -> None:
    ran = pushkit_command("secrets", "rotate")
    assert f"1 tokens and credentials, 0 bodies and 0 answers with key {key}" in ran.out
    ran = pushkit_command("secrets", "rotate", "--bodies")
    assert "0 tokens and credentials, 1 bodies" in ran.out
    assert status(pushkit_command) == [row(key, "encrypts", 1, 1)]


@pytest.mark.usefixtures("outbox")
def test_rotate_writes_the_file_anew_on_request(pushkit_command: Run, key: str) -> None:
    ran = pushkit_command("secrets", "rotate", "--bodies", "--vacuum")
    assert (ran.status, ran.err) == (0, "")
    assert status(pushkit_command) == [row(key, "encrypts", 1, 1)]


@pytest.mark.usefixtures("outbox")
def test_rotate_takes_everything_to_a_new_first_key(
    pushkit_command: Run, own_folder: Path, key: str
) -> None:
    pushkit_command("secrets", "rotate", "--bodies")
    pushkit_command("secrets", "generate", "secret.keys")
    new = SecretKeys.from_file(own_folder / "secret.keys").ids[0]
    assert status(pushkit_command) == [row(new, "encrypts", 0, 0), row(key, "decrypts", 1, 1)]
    assert "1 tokens and credentials, 1 bodies" in pushkit_command("secrets", "rotate").out
    assert status(pushkit_command) == [row(new, "encrypts", 1, 1), row(key, "decrypts", 0, 0)]


@pytest.mark.usefixtures("outbox", "key")
def test_rotate_without_the_old_key_fails_and_says_which_is_missing(
    pushkit_command: Run, own_folder: Path, key: str
) -> None:
    pushkit_command("secrets", "rotate", "--bodies")
    (own_folder / "secret.keys").unlink()
    pushkit_command("secrets", "generate", "secret.keys")
    ran = pushkit_command("secrets", "rotate")
    assert ran.status == 1
    assert "2 cannot be decrypted" in ran.err
    assert key in ran.err
    assert row(key, "missing here", 1, 1) in status(pushkit_command)


@pytest.mark.usefixtures("outbox")
def test_rotate_without_keys_says_where_they_come_from(pushkit_command: Run) -> None:
    ran = pushkit_command("secrets", "rotate")
    assert ran.status == 1
    assert "PUSHKIT_SECRET_KEYS" in ran.error


def test_a_body_is_shown_with_its_key_and_named_sealed_without(
    pushkit_command: Run, outbox: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushkit_command("secrets", "rotate", "--bodies")
    assert key
    assert "TASK_STATE_WORKING" in pushkit_command("outbox", "show", outbox, "--body").out
    monkeypatch.delenv("PUSHKIT_SECRET_KEYS_FILE")
    without = pushkit_command("outbox", "show", outbox, "--body").out
    assert "(encrypted with a secret key that this command does not have)" in without
    as_json = json.loads(pushkit_command("outbox", "show", outbox, "--body", "--json").out)
    assert as_json["body"] is None
