"""The key file, the sources of a ring, and the reports about one."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pushkit.errors import KeyFileError, KeyRingError
from pushkit.keys.files import (
    FileKeySource,
    create_key_ring,
    key_source,
    load_key_ring,
    save_key_ring,
    update_key_ring,
)
from pushkit.keys.jwk import Algorithm, VerificationKey, generate_key, signing_key_to_pem
from pushkit.keys.ring import KeyRing
from tests.eventually import DEADLINE

START = datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture(scope="module")  # made once: RSA keys are slow to generate
def ring() -> KeyRing:
    rotated = KeyRing.create(START, max_age=timedelta(seconds=60)).rotate(START)
    return rotated.add(START, Algorithm.RS256).revoke(rotated.keys[0].kid, START)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


Facts = tuple[VerificationKey, datetime, datetime | None, datetime | None]


def facts(ring: KeyRing) -> list[Facts]:
    return [
        (e.key.to_verification_key(), e.published_at, e.activates_at, e.revoked_at)
        for e in ring.keys
    ]


@pytest.mark.parametrize("passphrase", [None, b"horse"], ids=["plain", "encrypted"])
def test_a_saved_ring_is_read_back(path: Path, ring: KeyRing, passphrase: bytes | None) -> None:
    save_key_ring(path, ring, passphrase)
    read = load_key_ring(path, passphrase)
    assert facts(read) == facts(ring)
    assert (read.default_algorithm, read.max_age) == (ring.default_algorithm, ring.max_age)
    assert (read.activation_lead, read.grace) == (ring.activation_lead, ring.grace)


@pytest.mark.parametrize("other", ["psk1_00", '{"keys": []}', "SQLite format 3\0"])
def test_a_ring_is_saved_over_no_file_of_another_kind(
    path: Path, ring: KeyRing, other: str
) -> None:
    path.write_text(other)
    path.chmod(0o600)
    with pytest.raises(KeyFileError):
        save_key_ring(path, ring)
    assert path.read_text() == other


def test_the_file_is_for_its_owner_only(path: Path, ring: KeyRing) -> None:
    previous = os.umask(0)
    try:
        save_key_ring(path, ring)
    finally:
        os.umask(previous)
    assert {stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()} == {0o600}


def test_an_encrypted_file_has_no_plain_key(path: Path, ring: KeyRing) -> None:
    save_key_ring(path, ring, b"horse")
    assert "BEGIN PRIVATE KEY" not in path.read_text()
    assert path.read_text().count("BEGIN ENCRYPTED PRIVATE KEY") == len(ring.keys)


@pytest.mark.parametrize(
    ("saved_with", "read_with", "message"),
    [
        pytest.param(b"right", b"wrong", "passphrase is wrong", id="wrong"),
        pytest.param(b"right", None, "a passphrase is needed", id="missing"),
        pytest.param(None, b"right", "not encrypted", id="too many"),
    ],
)
def test_another_passphrase_is_refused(
    path: Path, saved_with: bytes | None, read_with: bytes | None, message: str
) -> None:
    save_key_ring(path, KeyRing.create(START), saved_with)
    with pytest.raises(KeyFileError, match=message):
        load_key_ring(path, read_with)


@pytest.mark.parametrize("mode", [0o440, 0o640], ids=oct)
def test_a_file_that_a_group_of_ours_may_read_is_read(
    path: Path, ring: KeyRing, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_key_ring(path, ring)
    path.chmod(mode)
    assert facts(load_key_ring(path)) == facts(ring)
    theirs = path.stat().st_gid
    monkeypatch.setattr(os, "getegid", lambda: theirs + 1)
    monkeypatch.setattr(os, "getgroups", lambda: [theirs + 2, theirs])
    assert facts(load_key_ring(path)) == facts(ring)


def test_a_file_that_a_group_of_others_may_read_is_refused_and_says_why(
    path: Path, ring: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_key_ring(path, ring)
    path.chmod(0o440)
    theirs = path.stat().st_gid
    monkeypatch.setattr(os, "getegid", lambda: theirs + 1)
    monkeypatch.setattr(os, "getgroups", lambda: [theirs + 2])
    with pytest.raises(KeyFileError) as refused:
        load_key_ring(path)
    assert f"mode 0440, so that it may be read by the group {theirs}," in str(refused.value)
    assert f"groups {theirs + 1}, {theirs + 2})" in str(refused.value)
    assert f"fsGroup: {theirs}" in str(refused.value)


def test_a_file_that_a_group_may_read_stays_so_when_it_changes(path: Path, ring: KeyRing) -> None:
    save_key_ring(path, ring)
    for mode in (0o640, 0o600):
        path.chmod(mode)
        update_key_ring(path, lambda ring: ring.add(START))
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_the_error_of_an_unreadable_file_names_the_user_and_groups(
    path: Path, ring: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_key_ring(path, ring)

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    with pytest.raises(KeyFileError, match=r"may not be read by this process \(user 1234, groups"):
        load_key_ring(path)


def test_a_named_pipe_is_refused_without_waiting(path: Path) -> None:
    os.mkfifo(path, 0o600)
    with pytest.raises(KeyFileError, match="not a regular file"):
        load_key_ring(path)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError):
        load_key_ring(tmp_path)


def test_a_missing_file_says_how_to_make_one(path: Path) -> None:
    with pytest.raises(KeyFileError, match="pushkit keys new"):
        load_key_ring(path)


def test_a_missing_folder_is_a_key_file_error(path: Path, ring: KeyRing) -> None:
    with pytest.raises(KeyFileError, match="No such file"):
        save_key_ring(path / "deeper", ring)


def test_a_private_key_in_pem_is_no_key_file(tmp_path: Path) -> None:
    path = tmp_path / "agent.pem"
    path.write_bytes(signing_key_to_pem(generate_key(Algorithm.ES256)))
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match=f"found PEM.*`pushkit keys import {path}`"):
        load_key_ring(path)


def test_an_existing_file_is_not_created_again(path: Path, ring: KeyRing) -> None:
    create_key_ring(path, ring)
    with pytest.raises(KeyFileError, match="the file exists"):
        create_key_ring(path, KeyRing.create(START))
    assert facts(load_key_ring(path)) == facts(ring)


def test_a_symbolic_link_stays_one(tmp_path: Path, path: Path, ring: KeyRing) -> None:
    real = tmp_path / "real.json"
    save_key_ring(real, KeyRing.create(START))
    path.symlink_to(real)
    save_key_ring(path, ring)
    assert path.is_symlink()
    assert facts(load_key_ring(real)) == facts(ring)


def _set(**members: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.update(members)


def _set_key(**members: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["keys"][1].update(members)


def _drop(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.pop(name)


def _same_kid(document: dict[str, Any]) -> None:
    document["keys"][1]["kid"] = document["keys"][0]["kid"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(_set(format="other"), "not a key file", id="format"),
        pytest.param(_set(version=2), "written by a newer pushkit", id="newer"),
        pytest.param(_set(version=0), "version is 0, expected 1", id="older"),
        pytest.param(_drop("version"), "version: missing", id="no version"),
        pytest.param(_drop("keys"), "keys: missing", id="no keys"),
        pytest.param(_set(keys=["x"]), r"keys\[0\]: expected an object", id="no object"),
        pytest.param(_set(default_algorithm="HS256"), "default_algorithm: expected", id="default"),
        pytest.param(_set(max_age_seconds="5"), "max_age_seconds: expected a number", id="type"),
        pytest.param(_set(max_age_seconds=True), "max_age_seconds: expected", id="boolean"),
        pytest.param(_set(grace_seconds=-1), "grace_seconds: expected 0", id="negative"),
        pytest.param(_set(grace_seconds=1e300), "grace_seconds: expected 0", id="huge"),
        pytest.param(_set(activation_lead_seconds=0), "activation_lead", id="lead"),
        pytest.param(_set_key(kid=""), r"keys\[1\]: kid: ", id="empty kid"),
        pytest.param(_set_key(kid=None), r"keys\[1\]: kid: missing", id="no kid"),
        pytest.param(_set_key(algorithm="RS256"), r"keys\[1\]: .*not for RS256", id="algorithm"),
        pytest.param(_set_key(published_at=None), r"keys\[1\]: published_at", id="unpublished"),
        pytest.param(_set_key(published_at="soon"), r"keys\[1\]: published_at", id="no time"),
        pytest.param(
            _set_key(activates_at="2026-01-01T00:00:00"), r"activates_at: .*in UTC", id="naive"
        ),
        pytest.param(
            _set_key(revoked_at="2026-01-01T00:00:00+01:00"), r"revoked_at: .*in UTC", id="zone"
        ),
        pytest.param(_set_key(private_key="x"), r"keys\[1\]: not a private key", id="pem"),
        pytest.param(_same_kid, "same kid", id="same kid"),
    ],
)
def test_one_wrong_member_refuses_the_file(
    path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    save_key_ring(path, KeyRing.create(START).add(START))
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(KeyFileError, match=message) as caught:
        load_key_ring(path)
    assert str(path) in str(caught.value)
    assert "BEGIN" not in str(caught.value)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        pytest.param(b"", "empty, expected a key file: delete it", id="empty"),
        pytest.param(b"\xff", "not UTF-8", id="no text"),
        pytest.param(b"[]", "found an array", id="array"),
        pytest.param(b"{" * 5000, "nested deeper", id="deep"),
    ],
)
def test_other_files_are_refused(path: Path, contents: bytes, message: str) -> None:
    path.touch(0o600)
    path.write_bytes(contents)
    with pytest.raises(KeyFileError, match=message):
        load_key_ring(path)


def test_a_change_that_fails_leaves_the_file(path: Path, ring: KeyRing) -> None:
    save_key_ring(path, ring)
    before = path.read_bytes()
    with pytest.raises(KeyRingError):
        update_key_ring(path, lambda ring: ring.revoke("unknown", START))
    assert path.read_bytes() == before


@pytest.mark.parametrize("broken", ["fsync", "rename"])
def test_a_failure_in_the_middle_leaves_the_old_file(
    path: Path, ring: KeyRing, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    save_key_ring(path, ring)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((os, "fsync", fail) if broken == "fsync" else (Path, "replace", fail)))
    with pytest.raises(KeyFileError, match="No space left"):
        save_key_ring(path, KeyRing.create(START))
    assert path.read_bytes() == before
    assert sorted(p.name for p in path.parent.iterdir()) == ["keys.json", "keys.json.lock"]


SPAWN = multiprocessing.get_context("spawn")


def _killed_in_the_middle(path: Path) -> None:
    def die(fd: object) -> None:  # noqa: ARG001 - the name is part of the type
        os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = die
    save_key_ring(path, KeyRing.create(START))


def test_a_process_killed_in_the_middle_leaves_the_old_file(path: Path, ring: KeyRing) -> None:
    save_key_ring(path, ring)
    process = SPAWN.Process(target=_killed_in_the_middle, args=(path,))
    process.start()
    process.join(DEADLINE)
    assert process.exitcode == -signal.SIGKILL
    assert facts(load_key_ring(path)) == facts(ring)
    assert len(list(path.parent.glob(".keys.json.*.tmp"))) == 1


def _add_often(path: Path, times: int) -> None:
    for _ in range(times):
        update_key_ring(path, lambda ring: ring.add(START))


@pytest.mark.slow
def test_changes_of_two_processes_are_both_kept(path: Path) -> None:
    save_key_ring(path, KeyRing.create(START))
    processes = [SPAWN.Process(target=_add_often, args=(path, 15)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(DEADLINE)
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(load_key_ring(path).keys) == 1 + 2 * 15


# --- sources -------------------------------------------------------------------------------------


def kids(ring: KeyRing) -> list[str]:
    return [entry.kid for entry in ring.keys]


@pytest.fixture
def saved(path: Path) -> Path:
    save_key_ring(path, KeyRing.create(START))
    return path


def test_a_ring_and_a_source_are_taken_as_they_are_and_a_path_is_a_file(saved: Path) -> None:
    for source in (KeyRing.create(START), FileKeySource(saved)):
        assert key_source(source) is source
    for path in (saved, str(saved)):
        assert isinstance(key_source(path), FileKeySource)


def test_an_encrypted_file_needs_its_passphrase(saved: Path) -> None:
    ring = KeyRing.create(START)
    save_key_ring(saved, ring, b"horse")
    assert kids(key_source(saved, b"horse").ring()) == kids(ring)


def test_an_unchanged_file_is_not_read_again(saved: Path) -> None:
    source = FileKeySource(saved)
    assert source.ring() is source.ring()


def test_a_changed_file_is_read_again(saved: Path) -> None:
    source = FileKeySource(saved)
    changed = update_key_ring(saved, lambda ring: ring.add(START))
    assert kids(source.ring()) == kids(changed)


@pytest.mark.parametrize(
    "spoil", [lambda path: path.write_text("broken"), Path.unlink], ids=["broken", "removed"]
)
def test_a_spoilt_file_keeps_the_last_good_ring_and_logs_once(
    saved: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], object]
) -> None:
    source = FileKeySource(saved)
    good = source.ring()
    spoil(saved)
    assert [source.ring(), source.ring(), source.ring()] == [good] * 3
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_file_that_could_not_be_opened_is_tried_again(
    saved: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FileKeySource(saved)
    good = source.ring()
    changed = update_key_ring(saved, lambda ring: ring.add(START))

    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        assert [source.ring(), source.ring()] == [good] * 2
    assert kids(source.ring()) == kids(changed)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_corrected_mode_is_noticed(saved: Path) -> None:
    source = FileKeySource(saved)
    changed = update_key_ring(saved, lambda ring: ring.add(START))
    saved.chmod(0o644)
    assert kids(source.ring()) != kids(changed)
    saved.chmod(0o600)
    assert kids(source.ring()) == kids(changed)


def test_a_file_is_found_after_the_process_changes_its_directory(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(saved.parent)
    source = FileKeySource(saved.name)
    monkeypatch.chdir("/")

    ring = update_key_ring(saved, lambda ring: ring.rotate(START))

    assert kids(source.ring()) == kids(ring)
