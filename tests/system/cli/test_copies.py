"""Commands on a copy of a database that they may only read, as of a backup."""

from __future__ import annotations

import ctypes
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.long_runs import share
from tests.system.cli.conftest import Webhook, enqueue, environment

_DROP_FROM_BOUNDING_SET = 24  # prctl(2)
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1, 2  # capabilities(7): what lets root write anything


def _obey_permissions() -> None:
    libc = ctypes.CDLL(None)
    for capability in (_DAC_OVERRIDE, _DAC_READ_SEARCH):
        libc.prctl(_DROP_FROM_BOUNDING_SET, capability, 0, 0, 0)  # without effect unless root


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a process that may write only what the permissions say."""
    return subprocess.run(  # noqa: S603  # our own command
        [sys.executable, "-m", "pushkit.cli.main", *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=_obey_permissions,
    )


def copied(source: Path, copy: Path) -> None:
    shutil.copy(source, copy)


def vacuumed(source: Path, copy: Path) -> None:
    with sqlite3.connect(source) as connection:
        connection.execute("VACUUM INTO ?", (str(copy),))
    connection.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a folder that a test makes read-only."""
    folder = tmp_path / "backup"
    folder.mkdir()
    yield folder
    folder.chmod(0o700)


@pytest.fixture
def backup(request: pytest.FixtureRequest, folder: Path, outbox: Path, webhook: Webhook) -> Path:
    """Return a read-only copy of an outbox with one delivery, in a read-only folder."""
    make: Callable[[Path, Path], None] = request.param
    enqueue(outbox, webhook, 1)
    make(outbox, folder / "outbox.db")
    (folder / "outbox.db").chmod(0o400)
    folder.chmod(0o500)
    return folder / "outbox.db"


READING = ("outbox stats", "outbox list", "subscriptions list", "secrets status", "migrate --check")


@pytest.mark.parametrize(
    ("backup", "command"), [*share(product([copied, vacuumed], READING), 0, 2)], indirect=["backup"]
)
def test_a_copy_in_a_read_only_folder_is_read(backup: Path, command: str) -> None:
    ran = run(*command.split(), "--database", str(backup))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout
    assert [each.name for each in backup.parent.iterdir()] == ["outbox.db"]


@pytest.mark.parametrize("backup", [copied], indirect=True)
def test_a_copy_that_is_read_only_is_not_changed(backup: Path) -> None:
    ran = run("outbox", "redrive", "--all", "--database", str(backup))
    assert ran.returncode == 1
    assert "readonly" in ran.stderr


def test_a_copy_whose_log_cannot_be_read_is_refused(
    folder: Path, outbox: Path, webhook: Webhook
) -> None:
    enqueue(outbox, webhook, 1)
    writer = sqlite3.connect(outbox)  # keeps the log
    writer.execute("UPDATE pushkit_deliveries SET attempts = 1")
    writer.commit()
    for end in ("", "-wal"):
        shutil.copy(f"{outbox}{end}", folder)
    writer.close()
    folder.chmod(0o500)
    ran = run("outbox", "stats", "--database", str(folder / "outbox.db"))
    assert ran.returncode == 1
    assert "this process has to read and write it, and its folder" in ran.stderr
