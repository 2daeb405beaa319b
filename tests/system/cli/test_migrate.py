"""What commands do with a database: looking changes nothing, and only `migrate` migrates."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from pushkit.clock import utc_now
from pushkit.errors import SchemaError
from pushkit.outbox import schema as database_of_outbox
from pushkit.outbox.schema import SENDER_MIGRATIONS, open_outbox
from pushkit.storage.database import Database, opened
from pushkit.storage.migrations import Access, Migration
from pushkit.storage.opening import open_location
from receiver import admin as database_of_inbox
from receiver.admin import open_inbox
from receiver.inbox.schema import RECEIVER_MIGRATIONS
from tests.databases import execute
from tests.long_runs import share
from tests.system.cli.conftest import RECEIVER_TOML, Ran, Run
from tests.system.cli.every_command import ARGUMENTS, RECEIVER_COMMANDS, SENDER_COMMANDS

# Each has one step yet: these tests upgrade it by another one.
STEPS = {
    "outbox": (
        *SENDER_MIGRATIONS,
        Migration(len(SENDER_MIGRATIONS) + 1, ("CREATE TABLE pushkit_invented (id TEXT)",)),
    ),
    "inbox": (
        *RECEIVER_MIGRATIONS,
        Migration(len(RECEIVER_MIGRATIONS) + 1, ("CREATE TABLE pushkit_invented_too (id TEXT)",)),
    ),
}
NEWEST = {component: steps[-1].version for component, steps in STEPS.items()}
VERSION = "UPDATE pushkit_schema SET version = version + 1"
OF_BEFORE = """
INSERT INTO pushkit_schema (component, version) VALUES ('sender', 16);
CREATE TABLE pushkit_subscriptions (id TEXT PRIMARY KEY);
"""
# Those that serve a database bring it up to date.
MIGRATING = {"gateway", "worker", "migrate"}
EVERY_COMMAND = [
    pytest.param(component, command, id=f"{program} {command}")
    for component, program, found in (
        ("outbox", "pushkit", SENDER_COMMANDS),
        ("inbox", "receiver", RECEIVER_COMMANDS),
    )
    for command in found
    if command not in MIGRATING
]


def at_each(commands: Sequence[Any], nth: int) -> pytest.MarkDecorator:
    """Try commands on a file, and the n-th third of them on PostgreSQL."""
    on_files = [pytest.param("sqlite", *each.values) for each in commands]
    on_servers = [pytest.param("postgresql", *each.values) for each in share(commands, nth, 3)]
    names = ("location", "component", "command")
    return pytest.mark.parametrize(names, [*on_files, *on_servers], indirect=["location"])


# Those that end by themselves: a dashboard goes on with what it can read.
THAT_END = [each for each in EVERY_COMMAND if each.values[1] != "dashboard"]


def test_there_are_commands_to_try() -> None:
    assert {"outbox stats", "outbox redrive", "secrets status"} <= set(SENDER_COMMANDS)
    assert {"inbox stats", "inbox redrive"} <= set(RECEIVER_COMMANDS)


def test_the_page_on_migrations_says_which_steps_may_roll() -> None:
    page = (Path(__file__).parents[3] / "docs" / "migrations.md").read_text()
    for component, migrations in (
        ("outbox", SENDER_MIGRATIONS),
        ("inbox", RECEIVER_MIGRATIONS),
    ):
        rows = page.partition(f"\n| {component} | what it adds")[2].partition("\n\n")[0]
        said: dict[int, bool] = {}
        for row in rows.splitlines()[2:]:
            _, versions, _, rolls, _ = row.split("|")
            said |= {int(version): rolls.strip()[:3] == "yes" for version in versions.split(",")}
        assert said == {each.version: each.may_roll for each in migrations}


@pytest.fixture(autouse=True)
def invented_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_of_outbox, "SENDER_MIGRATIONS", STEPS["outbox"])
    monkeypatch.setattr(database_of_inbox, "RECEIVER_MIGRATIONS", STEPS["inbox"])


@pytest.fixture
def run(pushkit_command: Run, receiver_command: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Call a component's command."""
    # A key of nobody's, for what rotates.
    monkeypatch.setenv("PUSHKIT_SECRET_KEYS", pushkit_command("secrets", "generate").out.strip())

    def call(component: str, command: str, *arguments: str) -> Ran:
        runner = pushkit_command if component == "outbox" else receiver_command
        return runner(*command.split(), *ARGUMENTS.get(command, ()), *arguments)

    return call


def make(component: str, location: str | Path) -> None:
    open_it = open_outbox if component == "outbox" else open_inbox
    asyncio.run(upgraded(open_it(location)))


async def upgraded(database: Database) -> None:
    async with opened(database, Access.UPGRADE):
        pass


def change(location: str, sql: str) -> None:
    if "://" in location:
        execute(location, sql)
        return
    with contextlib.closing(sqlite3.connect(location, isolation_level=None)) as connection:
        connection.executescript(sql)


def tables(location: str) -> dict[str, str]:
    """Return the tables of a database, and all that is in `pushkit_schema`."""
    if "://" in location:
        return asyncio.run(_tables_in_postgresql(location))
    with contextlib.closing(sqlite3.connect(location)) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master")]
        found = dict.fromkeys(names, "")
        if "pushkit_schema" in found:
            found["pushkit_schema"] = str(
                connection.execute("SELECT * FROM pushkit_schema ORDER BY 1").fetchall()
            )
        return found


async def _tables_in_postgresql(dsn: str) -> dict[str, str]:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            "SELECT relname AS name FROM pg_class"
            " WHERE relnamespace = current_schema()::regnamespace"
            " UNION ALL SELECT proname FROM pg_proc"
            " WHERE pronamespace = current_schema()::regnamespace"
        )
        found = dict.fromkeys((row["name"] for row in rows), "")
        if "pushkit_schema" in found:
            found["pushkit_schema"] = str(
                await connection.fetch("SELECT * FROM pushkit_schema ORDER BY 1")
            )
        return found
    finally:
        await connection.close()


def said(ran: Ran) -> str:
    assert ran.status == 1, ran
    return ran.error


# --- what is there is left alone ----------------------------------------------------------------


@at_each(EVERY_COMMAND, 0)
def test_a_strangers_database_is_left_as_it_is(
    run: Run, location: str, component: str, command: str
) -> None:
    change(location, "CREATE TABLE invoices (id INTEGER)")
    before = tables(location)

    error = said(run(component, command, "--database", location))

    assert "no database of pushkit's" in error
    assert tables(location) == before


@at_each(EVERY_COMMAND, 1)
@pytest.mark.slow
def test_no_command_makes_its_tables_beside_the_other_components(
    run: Run, location: str, component: str, command: str
) -> None:
    other = "inbox" if component == "outbox" else "outbox"
    make(other, location)
    before = tables(location)

    error = said(run(component, command, "--database", location))

    expected = "outbox here, but an inbox" if component == "outbox" else "inbox here, but an outbox"
    assert expected in error
    assert tables(location) == before


@pytest.mark.parametrize(("component", "command"), EVERY_COMMAND)
@pytest.mark.parametrize(
    ("by", "hint"), [("-", "run `{} migrate --database "), ("+", "use the newer pushkit")]
)
@pytest.mark.slow
def test_another_schema_is_refused_and_left_as_it_is(
    run: Run, own_folder: Path, *, component: str, command: str, by: str, hint: str
) -> None:
    location = str(own_folder / "found.db")
    make(component, location)
    change(location, VERSION.replace("+", by))
    before = Path(location).read_bytes()

    error = said(run(component, command, "--database", location))

    assert f"schema version {NEWEST[component] + int(f'{by}1')}" in error
    assert hint.format("pushkit" if component == "outbox" else "receiver") in error
    assert Path(location).read_bytes() == before


@pytest.mark.parametrize(("component", "command"), EVERY_COMMAND)
def test_a_file_that_is_not_there_is_not_made(
    run: Run, own_folder: Path, component: str, command: str
) -> None:
    error = said(run(component, command, "--database", "nowhere.db"))
    assert "there is no file nowhere.db" in error
    if component == "outbox":
        assert "`pushkit migrate --database nowhere.db` creates an outbox" in error
    assert list(own_folder.glob("nowhere*")) == []


def test_what_only_reads_goes_on_beside_a_writer_of_the_file(run: Run, own_folder: Path) -> None:
    location = str(own_folder / "found.db")
    make("outbox", location)
    with contextlib.closing(sqlite3.connect(location, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        ran = run("outbox", "outbox stats", "--database", location)
    assert ran.status == 0


@at_each(THAT_END, 2)
@pytest.mark.slow
def test_every_command_takes_a_database_of_its_own(
    run: Run, location: str, component: str, command: str
) -> None:
    make(component, location)
    ran = run(component, command, "--database", location)
    # Not found is an answer, too.
    assert ran.status in {0, 1}
    assert "schema" not in ran.err


# --- migrate ------------------------------------------------------------------------------------


@pytest.mark.parametrize("component", ["outbox", "inbox"])
def test_migrate_makes_what_is_missing_and_check_says_what_it_would_do(
    run: Run, location: str, component: str
) -> None:
    checked = run(component, "migrate", "--check", "--database", location)
    assert (checked.status, "would be created" in checked.out) == (1, True)
    assert "://" in location or not Path(location).exists()

    made = run(component, "migrate", "--database", location)
    assert (made.status, f"created with schema version {NEWEST[component]}" in made.out) == (
        0,
        True,
    )

    for arguments in (("--check",), ()):
        again = run(component, "migrate", *arguments, "--database", location)
        assert (again.status, "nothing to do" in again.out) == (0, True)


@pytest.mark.parametrize("component", ["outbox", "inbox"])
def test_migrate_applies_what_is_missing(run: Run, location: str, component: str) -> None:
    older = open_location(
        location, component=component, migrations=STEPS[component][:-1], clock=utc_now
    )
    asyncio.run(upgraded(older))
    checked = run(component, "migrate", "--check", "--database", location)
    assert (checked.status, f"it needs migration {NEWEST[component]}" in checked.out) == (1, True)

    done = run(component, "migrate", "--database", location)
    assert (done.status, f"to {NEWEST[component]}\n" in done.out) == (0, True)
    assert run(component, "migrate", "--check", "--database", location).status == 0


@pytest.mark.parametrize("component", ["outbox", "inbox"])
def test_migrate_makes_functions_of_another_version_anew(
    run: Run, postgres_dsn: str, component: str
) -> None:
    make(component, postgres_dsn)
    wake = "CREATE OR REPLACE FUNCTION pushkit_wake() RETURNS integer LANGUAGE sql AS $$ {} $$"
    change(postgres_dsn, wake.format("SELECT 1"))

    checked = run(component, "migrate", "--check", "--database", postgres_dsn)
    assert (checked.status, "functions of another version" in checked.out) == (1, True)

    done = run(component, "migrate", "--database", postgres_dsn)
    assert (done.status, "its functions were replaced" in done.out) == (0, True)
    assert run(component, "migrate", "--check", "--database", postgres_dsn).status == 0


@pytest.mark.parametrize("component", ["outbox", "inbox"])
@pytest.mark.parametrize("arguments", [(), ("--check",)])
def test_migrate_refuses_what_newer_code_wrote(
    run: Run, location: str, component: str, arguments: tuple[str, ...]
) -> None:
    make(component, location)
    change(location, VERSION)
    before = tables(location)
    ran = run(component, "migrate", *arguments, "--database", location)
    assert "use the newer pushkit that wrote it" in said(ran)
    assert tables(location) == before


@pytest.mark.parametrize("command", [*sorted(set(SENDER_COMMANDS) - MIGRATING), "migrate --check"])
def test_an_outbox_of_before_this_schema_is_refused_and_left_as_it_is(
    run: Run, own_folder: Path, command: str
) -> None:
    location = str(own_folder / "found.db")
    make("inbox", location)  # beside it
    change(location, OF_BEFORE)
    before = Path(location).read_bytes()

    error = said(run("outbox", command, "--database", location))

    for part in ("outbox is of a pushkit before this schema", "nothing was", "docs/upgrading.md"):
        assert part in error
    assert Path(location).read_bytes() == before


def test_a_service_refuses_an_outbox_of_before_this_schema(location: str) -> None:
    make("inbox", location)
    change(location, OF_BEFORE)
    before = tables(location)
    with pytest.raises(SchemaError, match="outbox is of a pushkit before this schema"):
        make("outbox", location)
    assert tables(location) == before
    make("inbox", location)  # an inbox beside it is none of the outbox's business


def test_the_configuration_names_the_inbox_to_migrate(
    receiver_command: Run, own_folder: Path
) -> None:
    (own_folder / "receiver.toml").write_text(RECEIVER_TOML)
    assert receiver_command("migrate").status == 0
    assert receiver_command("inbox", "stats").status == 0


# --- receiver check and expect ------------------------------------------------------------------


@pytest.fixture
def config(jwks: Path) -> Path:
    path = jwks.with_name("receiver.toml")
    path.write_text(RECEIVER_TOML)
    return path


def test_check_makes_no_inbox(receiver_command: Run, config: Path, location: str) -> None:
    config.write_text(f'database = "{location}"\n{RECEIVER_TOML}')
    ran = receiver_command("check")
    assert (ran.status, "no inbox yet" in ran.out) == (0, True)
    assert list(config.parent.glob("*.db*")) == []
    assert "://" not in location or tables(location) == {}


@pytest.mark.parametrize(("by", "status"), [("-", 0), ("+", 1)])
def test_check_says_what_a_start_would_find(
    receiver_command: Run, config: Path, by: str, status: int
) -> None:
    inbox = config.parent / "inbox.db"
    make("inbox", inbox)
    change(str(inbox), VERSION.replace("+", by))
    before = inbox.read_bytes()
    ran = receiver_command("check")
    assert ran.status == status
    assert f"schema version {NEWEST['inbox'] + int(f'{by}1')}" in ran.out + ran.err
    assert inbox.read_bytes() == before


def test_a_token_is_minted_into_no_inbox_of_an_earlier_schema(
    receiver_command: Run, config: Path
) -> None:
    inbox = config.parent / "inbox.db"
    make("inbox", inbox)
    change(str(inbox), VERSION.replace("+", "-"))
    assert "run `receiver migrate --database " in receiver_command("expect").error
