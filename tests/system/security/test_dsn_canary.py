"""A database's password comes out nowhere, whatever is wrong with its DSN."""

from __future__ import annotations

import logging
import subprocess
import traceback
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import pushkit.cli.main
import receiver.cli
from pushkit import KeyRing, PushSender
from pushkit.clock import utc_now
from pushkit.errors import ConfigError, PushkitError
from receiver import Receiver, TrustedSender
from receiver.forwards import StreamForward
from tests.eventually import DEADLINE
from tests.forked import forked
from tests.system.cli.conftest import ISSUER, RECEIVER_TOML, environment
from tests.system.cli.every_command import ARGUMENTS, RECEIVER_COMMANDS, SENDER_COMMANDS
from tests.system.security.canaries import Canaries

DSNS = {
    "out of reach": "postgresql://pushkit:{0}@127.0.0.1:1/agent",
    "out of reach, in the query": "postgresql://127.0.0.1:1/agent?user=pushkit&password={0}",
    "SQLAlchemy's spelling": "postgresql+asyncpg://pushkit:{0}@127.0.0.1:1/agent",
    "another driver": "postgresql+psycopg://pushkit:{0}@127.0.0.1:1/agent",
    "another database": "mysql://pushkit:{0}@127.0.0.1:1/agent",
    "one slash": "postgresql:/pushkit:{0}@127.0.0.1:1/agent",
    "no scheme": "pushkit:{0}@127.0.0.1:1/agent",
    "no colon": "postgresql//pushkit:{0}@127.0.0.1:1/agent",
    "words of libpq": "host=127.0.0.1 port=1 user=pushkit password={0}",
    "a slash in the password": "postgresql://localhost:1/{0}@127.0.0.1/agent",  # the user's name
    "no host": "postgresql://pushkit:{0}/agent",
    "a bracket": "postgresql://pushkit:[{0}@127.0.0.1:1/agent",
}
EVERY_DSN = [pytest.param(dsn, id=name) for name, dsn in DSNS.items()]


def invoke(group: click.Group, command: str, *arguments: str) -> str:
    """Run a command that must fail; return all that it printed, logged or raised."""
    ran = CliRunner().invoke(group, [*command.split(), *ARGUMENTS.get(command, ()), *arguments])
    assert ran.exit_code == 1, (command, ran.output)
    raised = "".join(traceback.format_exception(*ran.exc_info)) if ran.exc_info else ""
    return f"{ran.output}\n{raised}\n{ran.exception!r}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where keys, secret keys and a configuration without a database are."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "receiver.toml").write_text(f'listen = "127.0.0.1:0"\n{RECEIVER_TOML}')
    runner = CliRunner()
    assert runner.invoke(pushkit.cli.main.cli, ["keys", "new"]).exit_code == 0
    exported = runner.invoke(pushkit.cli.main.cli, ["keys", "export", "--out", "jwks.json"])
    assert exported.exit_code == 0
    generated = runner.invoke(pushkit.cli.main.cli, ["secrets", "generate"])
    monkeypatch.setenv("PUSHKIT_SECRET_KEYS", generated.output.strip())
    return tmp_path


@pytest.mark.parametrize("dsn", EVERY_DSN)
def test_no_command_prints_the_password_of_its_database(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, dsn: str
) -> None:
    caplog.set_level(logging.DEBUG)
    canaries = Canaries()
    location = dsn.format(canaries.plant("password"))
    before = sorted(folder.iterdir())
    said = {
        **{
            f"pushkit {command}": invoke(pushkit.cli.main.cli, command, "--database", location)
            for command in SENDER_COMMANDS
        },
        **{
            f"receiver {command}": invoke(receiver.cli.cli, command, "--database", location)
            for command in RECEIVER_COMMANDS
        },
    }
    monkeypatch.setenv("PUSHKIT_DATABASE", location)
    monkeypatch.setenv("RECEIVER_DATABASE", location)
    said["pushkit, from the environment"] = invoke(pushkit.cli.main.cli, "outbox stats")
    for command in ("inbox stats", "migrate", "check", "expect"):
        said[f"receiver {command}, configured"] = invoke(receiver.cli.cli, command)
    said["the log"] = caplog.text

    assert {"pushkit worker", "pushkit migrate", "receiver migrate"} <= set(said)
    assert {where: found for where in said if (found := canaries.found_in(said[where]))} == {}
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize("name", ["out of reach", "another driver"])
def test_no_service_prints_it_when_it_starts(folder: Path, name: str, processes: str) -> None:
    canaries = Canaries()
    database = DSNS[name].format(canaries.plant("password"))
    ran = subprocess.run(  # noqa: S603  # our own command
        [*forked("receiver.cli"), "serve", "--verbose", "--processes", processes],
        cwd=folder,
        env=environment(RECEIVER_DATABASE=database),
        capture_output=True,
        timeout=DEADLINE,
        check=False,
    )
    assert ran.returncode == 1
    assert canaries.found_in(ran.stdout + ran.stderr) == set()


@pytest.mark.parametrize("dsn", EVERY_DSN)
async def test_no_error_of_sender_and_receiver_holds_the_password(
    folder: Path, caplog: pytest.LogCaptureFixture, dsn: str
) -> None:
    caplog.set_level(logging.DEBUG)
    canaries = Canaries()
    location = dsn.format(canaries.plant("password"))

    async def start_sender() -> None:
        keys = KeyRing.create(utc_now())
        async with PushSender(issuer=ISSUER, keys=keys, database=location):
            raise AssertionError("it started")

    async def start_receiver() -> None:
        trusted = TrustedSender(name="agent", issuer=ISSUER, jwks_file=folder / "jwks.json")
        async with Receiver(url="https://c.example", senders=[trusted], database=location):
            raise AssertionError("it started")

    for start in (start_sender, start_receiver):
        with pytest.raises(PushkitError) as refused:
            await start()
        error = refused.value
        written = f"{''.join(traceback.format_exception(error))}{error!r}{error.__context__!r}"
        assert canaries.found_in(written) == set()
    assert canaries.found_in(caplog.text) == set()


def test_a_redis_url_that_cannot_be_read_is_not_repeated() -> None:
    canaries = Canaries()
    url = f"redis://user:{canaries.plant('password')}@127.0.0.1:port/0?stream=s"
    with pytest.raises(ConfigError) as refused:
        StreamForward(url)
    written = "".join(traceback.format_exception(refused.value))
    assert canaries.found_in(f"{written}{refused.value.__context__!r}") == set()


def test_check_shows_the_configuration_without_the_password(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canaries = Canaries()
    password = canaries.plant("password")
    monkeypatch.setenv("RECEIVER_DATABASE", f"postgresql+asyncpg://u:{password}@127.0.0.1:1/inbox")
    assert folder.exists()
    said = invoke(receiver.cli.cli, "check", "--settings")
    assert "postgresql+asyncpg://u:***@127.0.0.1:1/inbox" in said
    assert "cannot connect to 127.0.0.1:1: " in said
    assert canaries.found_in(said) == set()
