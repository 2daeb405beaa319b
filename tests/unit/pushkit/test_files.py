"""Files of secrets: which users may read them, and how large they may be."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from pushkit.errors import KeyFileError
from pushkit.files import locked, read_private, replace_private
from pushkit.keys.files import FileKeySource
from tests.refusals import refused_unless

MADE_BY = "pushkit keys init"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    replace_private(path, b"secret")
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400], ids=oct)
def test_a_file_for_its_owner_alone_is_read_whatever_its_group(
    path: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.chmod(mode)
    foreign = path.stat().st_gid + 1
    monkeypatch.setattr(os, "getegid", lambda: foreign)
    monkeypatch.setattr(os, "getgroups", lambda: [foreign])

    assert read_private(path, made_by=MADE_BY) == b"secret"


@pytest.mark.parametrize(
    "mode", [0o604, 0o602, 0o601, 0o620, 0o610, 0o644, 0o650, 0o660, 0o666, 0o777], ids=oct
)
def test_a_file_that_anybody_else_may_touch_is_refused_whatever_its_group(
    path: Path, mode: int
) -> None:
    path.chmod(mode)

    says = f"has mode {mode:04o}, expected 0600, as others may read or write it.*chmod 600 {path}"
    with pytest.raises(KeyFileError, match=says):
        read_private(path, made_by=MADE_BY)


@pytest.mark.parametrize(("octets", "read"), [(1024 * 1024, True), (1024 * 1024 + 1, False)])
def test_a_file_has_a_mebibyte_at_most(path: Path, octets: int, *, read: bool) -> None:
    path.write_bytes(b"x" * octets)

    with refused_unless(read, KeyFileError, "larger than 1048576"):
        assert len(read_private(path, made_by=MADE_BY)) == octets


def test_what_would_be_too_large_to_read_again_is_not_written(path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"would have 1048577 bytes.*the file is unchanged"):
        replace_private(path, b"x" * (1024 * 1024 + 1))
    assert path.read_bytes() == b"secret"
    replace_private(path, b"x" * 1024 * 1024)
    assert len(read_private(path, made_by=MADE_BY)) == 1024 * 1024


@pytest.mark.parametrize("name", ["keys", "keys[1]", "k*"])
def test_only_the_remains_of_the_same_file_are_removed(tmp_path: Path, name: str) -> None:
    mine, other = (tmp_path / f".{each}.0123456789abcdef.tmp" for each in (name, "keys.json"))
    mine.touch()
    other.touch()  # another process, with another lock, is about to move it to `keys.json`
    replace_private(tmp_path / name, b"secret")
    assert {each.name for each in tmp_path.iterdir()} == {name, other.name}


def test_the_error_of_a_lock_or_a_folder_that_may_not_be_written_names_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: Path, *_: object) -> int:
        raise PermissionError(13, "Permission denied", str(name))

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    with (
        pytest.raises(
            KeyFileError, match=r"secret\.lock: Permission denied; .*\(user 1234, .*lock"
        ),
        locked(path),
    ):
        pass


@pytest.mark.parametrize("path", ["postgresql:/agent:geheim@db/agent", "agent:geheim@db/agent"])
def test_a_dsn_in_place_of_a_file_is_not_repeated(path: str) -> None:
    with pytest.raises(KeyFileError, match="URL or DSN") as refused:
        read_private(Path(path), made_by=MADE_BY)
    with pytest.raises(KeyFileError, match="URL or DSN") as of_source:
        FileKeySource(path)

    assert "geheim" not in f"{refused.value}{of_source.value}"


def test_a_path_with_a_zero_in_it_is_refused() -> None:
    with pytest.raises(KeyFileError, match="not a path"):
        read_private(Path("a\0b"), made_by=MADE_BY)
    with pytest.raises(KeyFileError, match="not a path"):
        FileKeySource("a\0b")


def test_a_symbolic_link_leads_to_the_same_lock(path: Path) -> None:
    link = path.parent / "app" / "link"
    link.parent.mkdir()
    link.symlink_to(path)
    with (
        locked(link),
        (path.parent / "secret.lock").open() as other,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
