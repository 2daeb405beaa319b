"""Several processes of one service count together, in files of a folder."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from pathlib import Path
from subprocess import PIPE, Popen
from sys import executable

import prometheus_client
import pytest

from pushkit.telemetry.metrics import Metrics
from pushkit.telemetry.sides import SENDER_METRICS
from pushkit.telemetry.together import DIRECTORY, count_in_place, counted_together
from tests.metrics_page import MetricsRead

FILES = ["counter_7-1.db", "gauge_livesum_7-1.db", "histogram_7-1.db"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    monkeypatch.setattr(prometheus_client.values, "ValueClass", prometheus_client.values.ValueClass)
    monkeypatch.setattr("pushkit.telemetry.together._own", [])
    return tmp_path


SERVICE = """
import sys, time
from pushkit.telemetry.together import counted_together
with counted_together():
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_the_folders_of_killed_services_are_removed_and_those_of_others_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(DIRECTORY)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (stranger := tmp_path / "pushkit-metrics-of-an-older-version").mkdir()
    variables = os.environ | {"TMPDIR": str(tmp_path)}

    def begun(known: set[Path]) -> tuple[Popen[bytes], Path]:
        process = Popen([executable, "-c", SERVICE], stdin=PIPE, stdout=PIPE, env=variables)  # noqa: S603
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        [folder] = set(tmp_path.iterdir()) - known
        return process, folder

    with contextlib.ExitStack() as ending:
        running, its = begun({stranger})
        ending.callback(running.communicate)
        killed, left = begun({stranger, its})
        killed.kill()
        killed.communicate()
        assert left.exists()
        with counted_together():
            own = Path(os.environ[DIRECTORY])
            assert set(tmp_path.iterdir()) == {stranger, its, own}
    assert list(tmp_path.iterdir()) == [stranger]


def test_files_have_their_room_on_the_disk_before_anything_is_counted(folder: Path) -> None:
    count_in_place("7-1")

    found = {path.name: path.stat() for path in folder.iterdir()}
    assert sorted(found) == FILES
    assert all(each.st_blocks * 512 >= each.st_size > 0 for each in found.values())


def test_on_a_full_disk_no_file_is_left_that_has_no_room(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_some(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[:4096])
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", write_some)
    with pytest.raises(OSError, match="No space left"):
        count_in_place("7-1")

    assert not list(folder.iterdir())


def test_a_reused_place_keeps_counters_and_drops_gauges(folder: Path) -> None:
    count_in_place("7-1")
    for name in FILES:
        (folder / name).write_bytes(b"counted")
    count_in_place("7-1")

    kept = [name for name in FILES if (folder / name).read_bytes() == b"counted"]
    assert kept == ["counter_7-1.db", "histogram_7-1.db"]


@pytest.mark.parametrize("removed", ["counter_*", "*", None], ids=["a file", "all", "the folder"])
async def test_files_that_were_removed_are_written_anew_with_all_counts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    removed: str | None,
) -> None:
    monkeypatch.setenv(DIRECTORY, str(folder := tmp_path / "counted"))
    count_in_place("7-1")
    metrics = a_metrics()
    for times in range(1, 4):
        metrics.count("pushkit_enqueued")
        if removed is None:
            shutil.rmtree(folder)
        for path in folder.glob(removed) if removed else ():
            path.unlink()
        page = await metrics.page()
        assert MetricsRead.of(page.body).value("pushkit_enqueued_total") == times
    assert len(list(folder.iterdir())) == 3
    assert caplog.messages == [f"metrics: files in {folder} were removed, and are written anew"] * 3
    count_in_place("7-1")  # one that replaces this process goes on
    assert MetricsRead.of((await a_metrics().page()).body).value("pushkit_enqueued_total") == 3


def a_metrics() -> Metrics:
    async def read() -> dict[str, dict[tuple[str, ...], float]]:
        return {}

    return Metrics("pushkit", SENDER_METRICS, read=read, slots=lambda: (0, 1))
