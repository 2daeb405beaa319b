from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from pushkit.errors import KeyFileError
from pushkit.keys.files import save_key_ring, update_key_ring
from pushkit.keys.ring import KeyRing
from pushkit.keys.source import FileKeySource, key_source

START = datetime(2026, 1, 1, tzinfo=UTC)


def kids(ring: KeyRing) -> list[str]:
    return [entry.kid for entry in ring.keys]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    save_key_ring(path, KeyRing.create(START))
    return path


def test_a_ring_is_its_own_source() -> None:
    ring = KeyRing.create(START)
    assert key_source(ring).ring() is ring


def test_a_source_is_taken_as_it_is(path: Path) -> None:
    save_key_ring(path, KeyRing.create(START))
    source = FileKeySource(path)
    assert key_source(source) is source


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_a_file_source(path: Path, kind: type[str] | type[Path]) -> None:
    assert isinstance(key_source(kind(path)), FileKeySource)


def test_an_encrypted_file_needs_its_passphrase(path: Path) -> None:
    ring = KeyRing.create(START)
    save_key_ring(path, ring, b"horse")
    assert kids(key_source(path, b"horse").ring()) == kids(ring)


def test_a_file_that_is_missing_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError):
        FileKeySource(tmp_path / "keys.json")


def test_an_unchanged_file_is_not_read_again(path: Path) -> None:
    source = FileKeySource(path)
    assert source.ring() is source.ring()


def test_a_changed_file_is_read_again(path: Path) -> None:
    source = FileKeySource(path)
    changed = update_key_ring(path, lambda ring: ring.add(START))
    assert kids(source.ring()) == kids(changed)


def test_a_broken_file_keeps_the_last_good_ring_and_logs_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = FileKeySource(path)
    good = source.ring()
    path.write_text("broken")
    assert [source.ring(), source.ring(), source.ring()] == [good] * 3
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_removed_file_keeps_the_last_good_ring_and_logs_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = FileKeySource(path)
    good = source.ring()
    path.unlink()
    assert [source.ring(), source.ring()] == [good] * 2
    assert len(caplog.records) == 1


def test_a_corrected_mode_is_noticed(path: Path) -> None:
    source = FileKeySource(path)
    changed = update_key_ring(path, lambda ring: ring.add(START))
    path.chmod(0o644)
    assert kids(source.ring()) != kids(changed)
    path.chmod(0o600)
    assert kids(source.ring()) == kids(changed)


def test_a_file_is_found_after_the_process_changes_its_directory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    source = FileKeySource(path.name)
    monkeypatch.chdir("/")

    ring = update_key_ring(path, lambda ring: ring.rotate(START))

    assert kids(source.ring()) == kids(ring)
