# ruff: noqa: S608  # the SQL is this file's own
"""`pushkit import a2a-sdk` on databases whose tables and rows the SDK's own stores made."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from pushkit import PushConfig, PushSender, StatusUpdate, TaskState, TaskStatus
from tests.system.cli.conftest import Ran, Run, on_outbox

VECTORS = Path(__file__).resolve().parents[2] / "vectors" / "a2a_sdk_stores"
DUMPS = {path.stem: json.loads(path.read_text("utf-8")) for path in VECTORS.glob("*.json")}
OLD, NEW = "a2a_sdk_0.3.26", "a2a_sdk_1.3.0"
CONFIGS = "push_notification_configs"
JSON_COLUMNS = {"status", "artifacts", "history", "metadata"}
# What the dumps hold, by task and config; the other tasks have ended, or are in no table.
RESULTS = {
    ("task-asking", "task-asking"): "imported",
    ("task-local", "c1"): "refused",
    ("task-working", "c1"): "imported",
    ("task-working", "c2"): "imported",
}
AGAIN = {key: "known" if found == "imported" else found for key, found in RESULTS.items()}

Import = Callable[..., Ran]


def write(location: str, dump: str, *, encrypted: bool = False, more: Sequence[str] = ()) -> None:
    """Make a database as the SDK left it; `more` is SQL that is run afterwards."""
    found = DUMPS[dump]
    rows: dict[str, list[dict[str, Any]]] = dict(found["rows"])
    if encrypted:
        rows[CONFIGS] = found["encrypted"]
    if location.startswith("postgresql"):
        asyncio.run(write_postgres(location, found["tables"]["postgresql"], rows, more))
        return
    with closing(sqlite3.connect(location)) as connection, connection:
        for statement in found["tables"]["sqlite"]:
            connection.execute(statement)
        for table, each in rows.items():
            for row in each:
                values = [v.encode() if k == "config_data" else v for k, v in row.items()]
                places = ", ".join("?" * len(row))
                connection.execute(
                    f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})",
                    values,
                )
        for statement in more:
            connection.execute(statement)


async def write_postgres(
    dsn: str, tables: Sequence[str], rows: dict[str, list[dict[str, Any]]], more: Sequence[str]
) -> None:
    connection = await asyncpg.connect(dsn)
    for statement in tables:
        await connection.execute(statement)
    for table, each in rows.items():
        for stored_row in each:
            row = {k: json.loads(v) if k in JSON_COLUMNS else v for k, v in stored_row.items()}
            # The texts of `config_data` have no backslash, which bytea would read.
            await connection.execute(
                f"INSERT INTO {table} SELECT * FROM json_populate_record(NULL::{table}, $1)",
                json.dumps(row),
            )
    for statement in more:
        await connection.execute(statement)
    await connection.close()


@pytest.fixture
def source(tmp_path: Path) -> str:
    return str(tmp_path / "agent.db")


@pytest.fixture
def command(pushkit_command: Run, outbox: Path, source: str) -> Import:
    """Call the command, with an outbox that exists."""
    assert pushkit_command("migrate").status == 0
    assert outbox.exists()

    def run(*arguments: str, location: str = source) -> Ran:
        return pushkit_command("import", "a2a-sdk", "--from", location, *arguments)

    return run


def results(ran: Ran) -> dict[tuple[str, str], str]:
    """Return what became of the configs that are listed, by task and config."""
    rows = [re.split(r"  +", line) for line in ran.out.splitlines()]
    assert not rows or rows[0] == ["TASK", "OWNER", "CONFIG", "A2A", "HOST", "RESULT", "REASON"]
    return {(row[0], row[2]): row[5] for row in rows[1:]}


def stored(outbox: Path) -> dict[tuple[str, str, str], tuple[str, PushConfig]]:
    """Return the version and config of each subscription, by task, owner and config."""

    async def look(
        sender: PushSender,
    ) -> dict[tuple[str, str, str], tuple[str, PushConfig]]:
        found = {}
        for each in await sender.subscription_admin.find():
            task_id = each.key.task_id
            configs = await sender.configs_to_send_with(task_id)
            [config] = [config for config in configs if config.id == each.key.config_id]
            found[each.key[1:]] = (str(each.version), config)
        return found

    return on_outbox(outbox, look)


@pytest.mark.parametrize("dump", sorted(DUMPS))
def test_configs_of_running_tasks_become_subscriptions(
    command: Import, outbox: Path, location: str, dump: str
) -> None:
    write(location, dump)
    ran = command("--owner", "clara", location=location)

    assert ran.status == 1  # one is refused
    assert results(ran) == RESULTS
    assert "169.254.169.254     refused   URL: http://169.254.169.254:80: expected https" in ran.out
    assert ran.err == "3 imported, 0 known, 3 ended, 1 refused\n"
    alice, bob = ("clara", "clara") if dump == OLD else ("alice", "bob")
    found = stored(outbox)
    assert set(found) == {
        ("task-asking", alice, "task-asking"),
        ("task-working", alice, "c1"),
        ("task-working", bob, "c2"),
    }
    version, config = found["task-working", alice, "c1"]
    assert version == ("0.3" if dump == OLD else "1.0")
    assert config.url == "https://client.example.org/a2a/push"
    assert config.token == "token-of-the-client"
    assert config.authentication is not None
    assert config.authentication.scheme == "Bearer"
    assert config.authentication.credentials == "credentials-of-the-client"


def test_a_second_run_changes_nothing(command: Import, outbox: Path, source: str) -> None:
    write(source, NEW)
    first = command()
    before = stored(outbox)
    again = command()

    assert results(first) == RESULTS
    assert results(again) == AGAIN
    assert stored(outbox) == before


def test_what_a_client_changed_since_stays(command: Import, outbox: Path, source: str) -> None:
    write(source, NEW)
    command()

    async def change(sender: PushSender) -> None:
        moved = {"id": "c1", "url": "https://moved.example.org/push"}
        await sender.subscribe("task-working", moved, version="1.0", owner="alice")

    on_outbox(outbox, change)
    command()
    _, config = stored(outbox)["task-working", "alice", "c1"]
    assert config.url == "https://moved.example.org/push"


def test_a_dry_run_says_what_would_be_done_and_does_nothing(
    command: Import, outbox: Path, source: str
) -> None:
    write(source, NEW)
    dry = command("--dry-run")

    assert dry.status == 1
    assert results(dry) == RESULTS
    assert dry.err == "dry run: 3 imported, 0 known, 3 ended, 1 refused\n"
    assert stored(outbox) == {}
    command()
    assert results(command("--dry-run")) == AGAIN


@pytest.mark.parametrize("dump", sorted(DUMPS))
def test_encrypted_configs_need_the_sdks_key(
    command: Import, tmp_path: Path, source: str, dump: str
) -> None:
    write(source, dump, encrypted=True)
    without = command("--owner", "alice")
    assert set(results(without).values()) == {"refused"}
    assert "expected the key of --fernet-key-file" in without.out

    key = tmp_path / "fernet.key"
    key.write_text(DUMPS[dump]["fernet_key"] + "\n")
    ran = command("--owner", "alice", "--fernet-key-file", str(key))
    assert results(ran) == RESULTS


def test_plain_configs_are_read_beside_encrypted_ones(
    command: Import, tmp_path: Path, source: str
) -> None:
    write(source, NEW)
    key = tmp_path / "fernet.key"
    key.write_text(DUMPS[NEW]["fernet_key"])
    assert results(command("--fernet-key-file", str(key))) == RESULTS


@pytest.mark.parametrize("content", ["", "no-key", "AAECAwQFBgcICQoLDA0ODw=="])
def test_a_file_without_a_key_is_refused(command: Import, tmp_path: Path, content: str) -> None:
    key = tmp_path / "fernet.key"
    key.write_text(content)
    error = command("--fernet-key-file", str(key)).error
    assert error == f"{key}: expected 32 bytes in URL-safe base64"


@pytest.mark.parametrize(
    ("dump", "more"),
    [
        pytest.param(OLD, (), id="no column"),
        pytest.param(NEW, (f"UPDATE {CONFIGS} SET owner = NULL",), id="null"),
        pytest.param(
            # As the SDK's migration from 0.3 fills the column.
            NEW,
            (f"UPDATE {CONFIGS} SET owner = 'legacy_v03_no_user_info'",),
            id="of the SDK's migration",
        ),
    ],
)
def test_configs_without_an_owner_need_one(
    command: Import, outbox: Path, source: str, dump: str, more: Sequence[str]
) -> None:
    write(source, dump, more=more)
    assert "has no owner: expected --owner NAME" in command().error
    assert "has no owner" in command("--dry-run").error
    assert stored(outbox) == {}

    command("--owner", "")
    assert {owner for _, owner, _ in stored(outbox)} == {""}


def test_owners_that_are_named_stay(command: Import, outbox: Path, source: str) -> None:
    write(source, NEW, more=[f"UPDATE {CONFIGS} SET owner = NULL WHERE config_id = 'c2'"])
    command("--owner", "clara")
    assert {owner for _, owner, _ in stored(outbox)} == {"alice", "clara"}


@pytest.mark.parametrize("version", ["0.1", "1.0"])
def test_the_version_of_old_clients_is_an_option(
    command: Import, outbox: Path, source: str, version: str
) -> None:
    write(source, OLD)
    command("--owner", "alice", "--old-version", version)
    assert {found for found, _ in stored(outbox).values()} == {version}


def test_old_rows_in_new_tables_stay_of_the_old_version(
    command: Import, outbox: Path, source: str
) -> None:
    old = next(row for row in DUMPS[OLD]["rows"][CONFIGS] if row["config_id"] == "c2")
    column = f"config_data = CAST('{old['config_data']}' AS BLOB), protocol_version = NULL"
    write(source, NEW, more=[f"UPDATE {CONFIGS} SET {column} WHERE config_id = 'c2'"])
    command()
    assert {key[2]: version for key, (version, _) in stored(outbox).items()} == {
        "task-asking": "1.0",
        "c1": "1.0",
        "c2": "0.3",
    }


def test_the_destination_rules_are_those_of_the_workers(
    command: Import, tmp_path: Path, source: str
) -> None:
    write(source, NEW)
    rules = tmp_path / "destinations.toml"
    rules.write_text('[rules]\ndomains = ["example.com"]\n')
    assert set(results(command("--destinations", str(rules))).values()) == {"refused"}
    assert set(results(command("--allow", "169.254.169.254:80")).values()) == {"imported"}


def test_without_a_table_of_tasks_all_are_imported(command: Import, source: str) -> None:
    write(source, NEW, more=["DROP TABLE tasks"])
    assert "no such table: tasks" in command().error
    ended = {("task-done", "c1"), ("task-failed", "c1"), ("task-gone", "c1")}
    assert results(command("--tasks-table", "")) == RESULTS | dict.fromkeys(ended, "imported")


def test_tables_may_have_other_names(command: Import, source: str) -> None:
    write(
        source,
        NEW,
        more=[f"ALTER TABLE {CONFIGS} RENAME TO configs", "ALTER TABLE tasks RENAME TO my_tasks"],
    )
    names = ("--configs-table", "configs", "--tasks-table", "my_tasks")
    assert results(command(*names)) == RESULTS


def test_a_url_of_sqlalchemy_is_a_path_too(command: Import, source: str) -> None:
    write(source, NEW)
    found = command(location=f"sqlite+aiosqlite:///{source}")
    assert results(found) == RESULTS


@pytest.mark.parametrize(
    ("location", "says"),
    [
        pytest.param("missing.db", "--from: there is no file missing.db", id="no file"),
        pytest.param("mysql+aiomysql://a:hush@db/agent", "expected postgresql://", id="mysql"),
        pytest.param(
            "postgresql://a:hush@127.0.0.1:1/agent",
            "127.0.0.1:1: Connection refused",
            id="no server",
        ),
        pytest.param("postgresql://a:hu@sh@127.0.0.1:1/agent", "percent-encode", id="two hosts"),
    ],
)
def test_a_source_that_cannot_be_read_is_an_error(
    command: Import, location: str, says: str
) -> None:
    error = command(location=location).error
    assert says in error
    assert "hush" not in error
    assert "sh@" not in error


def test_a_quota_refuses_what_is_too_many(command: Import, source: str) -> None:
    many = ", ".join(
        f"('task-working', 'x{number:03}', '{{\"url\": \"https://c.example.org/\"}}', 'bob', '1.0')"
        for number in range(120)
    )
    columns = "task_id, config_id, config_data, owner, protocol_version"
    cast = f"UPDATE {CONFIGS} SET config_data = CAST(config_data AS BLOB)"
    write(source, NEW, more=[f"INSERT INTO {CONFIGS} ({columns}) VALUES {many}", cast])
    ran = command()
    assert "expected at most" in ran.out
    assert "22 refused" in ran.err


def test_an_imported_client_is_notified(command: Import, outbox: Path, source: str) -> None:
    write(source, NEW)
    command()

    async def notify(sender: PushSender) -> list[str]:
        status = TaskStatus(state=TaskState.COMPLETED)
        update = StatusUpdate(task_id="task-working", context_id="context-1", status=status)
        return (await sender.notify(update)).ids

    assert len(on_outbox(outbox, notify)) == 2
