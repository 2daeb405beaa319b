from __future__ import annotations

import errno
import json
import os
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pushkit.cli.keys import keys
from pushkit.errors import KeyFileError, KeyRingError
from pushkit.keys.files import load_key_ring, save_key_ring
from pushkit.keys.jwk import Algorithm, generate_key, public_pem, signing_key_to_pem
from pushkit.keys.jwks import parse_jwks
from pushkit.keys.ring import KeyRing, KeyState

FORMER = '{"keys": []}'


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("PUSHKIT_KEYS", "PUSHKIT_KEY_PASSPHRASE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "keys.json"


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(keys, arguments)
    assert "PRIVATE" not in result.output
    return result


def done(*arguments: str) -> Result:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result


def ring(path: Path) -> KeyRing:
    return load_key_ring(path)


def test_new_makes_a_file_whose_key_signs(path: Path) -> None:
    result = done("new")
    now = datetime.now(UTC)
    assert ring(path).signing_key(now).kid in result.stdout
    assert "is active" in result.stdout
    assert result.stderr == ""


def test_new_takes_a_path_an_algorithm_and_a_max_age(tmp_path: Path) -> None:
    done("new", "other.json", "--alg", "Ed25519", "--max-age", "60")
    made = ring(tmp_path / "other.json")
    assert made.default_algorithm is Algorithm.EDDSA
    assert made.max_age == timedelta(seconds=60)


def test_new_on_a_file_that_exists_adds_a_pending_key(path: Path) -> None:
    done("new")
    assert "is pending; `pushkit keys rotate`" in done("new").stdout
    assert len(ring(path).keys) == 2


def test_the_command_that_makes_a_key_of_another_algorithm_sign_names_it(path: Path) -> None:
    done("new")
    for _ in range(2):
        told = done("new", "--alg", "EdDSA").stdout
    [line] = [line for line in told.splitlines() if "makes it sign" in line]
    done(*line.split("`")[1].split()[2:])
    assert ring(path).keys[-1].kid in line
    assert ring(path).keys[-1].activates_at is not None


@pytest.mark.parametrize("words", [("other keys.json",), ("--keys", "other keys.json")])
def test_a_command_that_is_advised_is_for_the_same_file(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    done("new", *words)
    told = done("new", *words).stdout
    done(*shlex.split(told.split("`")[1])[2:])
    assert ring(tmp_path / "other keys.json").keys[-1].activates_at is not None
    told = done("new", *words, "--alg", "EdDSA").stdout
    assert "`pushkit keys use EdDSA --keys 'other keys.json'` changes that" in told


def test_list_shows_every_key() -> None:
    done("new")
    done("rotate")
    header, *rows = done("list").stdout.splitlines()
    columns = ["KID", "ALG", "STATE", "SIGNS", "PUBLISHED", "ACTIVATES", "RETIRES", "REVOKED"]
    assert header.split() == columns
    assert [row.split()[2:4] for row in rows] == [["active", "now"], ["pending", "-"]]


def test_list_can_write_json(path: Path) -> None:
    done("new")
    [row] = json.loads(done("list", "--json").stdout)
    assert (row["kid"], row["state"]) == (ring(path).keys[0].kid, "active")
    times = {"published_at", "activates_at", "retires_at", "revoked_at"}
    assert set(row) == {"kid", "alg", "state", "signs"} | times
    assert row["signs"] is True


def test_list_says_when_a_key_retires_and_when_one_was_revoked(path: Path) -> None:
    done("new")
    done("rotate")
    [first, second] = json.loads(done("list", "--json").stdout)
    ends = ring(path).grace
    assert datetime.fromisoformat(first["retires_at"]) == ends + datetime.fromisoformat(
        second["activates_at"]
    )
    assert (second["retires_at"], second["revoked_at"]) == (None, None)
    done("revoke", second["kid"])
    rows = {row["kid"]: row for row in json.loads(done("list", "--json").stdout)}
    revoked_at = rows[second["kid"]]["revoked_at"]
    assert datetime.fromisoformat(revoked_at) <= datetime.now(UTC)
    assert rows[first["kid"]]["retires_at"] is None
    shown = {row.split()[0]: row for row in done("list").stdout.splitlines()}
    assert revoked_at[:16].replace("T", " ") in shown[second["kid"]].replace("T", " ")


@pytest.mark.slow
def test_a_second_algorithm_signs_when_it_is_used(path: Path) -> None:
    done("new", "--alg", "RS256")
    told = done("new", "--alg", "ES256").stdout
    assert "RS256 signs, unless a subscription asks for ES256; `pushkit keys use ES256`" in told
    early = run("use", "ES256").exception
    assert isinstance(early, KeyRingError)
    assert "the next one signs from" in str(early)
    long_ago = datetime.now(UTC) - timedelta(days=1)
    save_key_ring(path, KeyRing.create(long_ago, Algorithm.RS256).add(long_ago, Algorithm.ES256))
    [rsa, ec] = [line.split("  ") for line in done("list").stdout.splitlines()[1:]]
    assert "now" in map(str.strip, rsa)
    assert "where ES256 is asked for" in map(str.strip, ec)
    assert "signs from now on" in done("use", "ES256").stdout
    now = datetime.now(UTC)
    assert ring(path).signing_key(now).algorithm is Algorithm.ES256
    assert ring(path).signing_key(now, Algorithm.RS256).algorithm is Algorithm.RS256
    assert [row["signs"] for row in json.loads(done("list", "--json").stdout)] == [False, True]


def test_an_algorithm_without_a_key_cannot_be_used(path: Path) -> None:
    done("new")
    before = path.read_bytes()
    refused = run("use", "RS256").exception
    assert isinstance(refused, KeyRingError)
    assert "no RS256 key is active; add one" in str(refused)
    assert path.read_bytes() == before


def test_a_private_key_that_exists_is_imported(path: Path, tmp_path: Path) -> None:
    key = generate_key(Algorithm.RS256)
    pem = tmp_path / "agent.pem"
    pem.write_bytes(signing_key_to_pem(key))
    pem.chmod(0o600)
    result = done("import", "agent.pem", "--alg", "PS256", "--kid", "key-1")
    assert "PS256 key key-1 is active" in result.stdout
    assert result.stderr == ""
    signs = ring(path).signing_key(datetime.now(UTC))
    assert (signs.kid, signs.algorithm) == ("key-1", Algorithm.PS256)
    assert public_pem(signs) == public_pem(key)


def test_a_key_that_is_imported_into_a_file_waits_like_a_new_one(
    path: Path, tmp_path: Path
) -> None:
    done("new")
    pem = tmp_path / "agent.pem"
    key = generate_key(Algorithm.ES256)
    pem.write_bytes(signing_key_to_pem(key, b"secret"))
    pem.chmod(0o644)
    (tmp_path / "pass").write_text("secret\n")
    result = done("import", "agent.pem", "--pem-passphrase-file", "pass")
    assert "is pending; `pushkit keys rotate` makes it sign" in result.stdout
    assert "other users can read agent.pem" in result.stderr
    assert ring(path).state(key.kid, datetime.now(UTC)) is KeyState.PENDING
    again = run("import", "agent.pem", "--pem-passphrase-file", "pass").exception
    assert isinstance(again, KeyRingError)


def test_a_kid_that_is_not_unicode_is_refused_and_the_file_stays_readable(path: Path) -> None:
    done("new")
    before = path.read_bytes()
    Path("own.pem").write_bytes(signing_key_to_pem(generate_key(Algorithm.ES256)))
    # How Python reads the byte E9, an é in Latin-1, in an argument.
    result = run("import", "own.pem", "--kid", "caf\udce9")
    assert result.exit_code == 1
    assert isinstance(result.exception, KeyFileError)
    assert "own.pem: kid: found half of a surrogate pair" in str(result.exception)
    assert path.read_bytes() == before


def test_rotate_that_is_repeated_names_the_same_key(path: Path) -> None:
    done("new")
    first = done("rotate").stdout
    done("new", "--alg", "EdDSA")
    assert done("rotate").stdout == first
    assert len(ring(path).keys) == 3


def test_rotate_now_is_refused_until_the_key_is_known() -> None:
    done("new")
    done("new")
    assert isinstance(run("rotate", "--now").exception, KeyRingError)


def test_rotate_now_can_be_forced_with_a_warning(path: Path) -> None:
    done("new")
    result = done("rotate", "--now", "--force")
    assert "is active" in result.stdout
    assert "warning: receivers may hold a JWK Set without this key" in result.stderr
    assert result.stderr.endswith("for up to 300 seconds\n")
    assert len(ring(path).keys) == 2


def test_rotate_drops_keys_that_ended_long_ago(path: Path) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=90)
    old = KeyRing.create(long_ago).rotate(long_ago)
    save_key_ring(path, old)
    done("rotate")
    assert old.keys[0].kid not in {entry.kid for entry in ring(path).keys}


def test_revoke_replaces_the_signing_key_with_a_warning(path: Path) -> None:
    done("new")
    kid = ring(path).keys[0].kid
    result = done("revoke", kid)
    assert f"revoked {kid}" in result.stdout
    assert "is active" in result.stdout
    assert "warning:" in result.stderr
    assert ring(path).state(kid, datetime.now(UTC)) is KeyState.REVOKED


def test_revoke_of_another_key_leaves_the_signer(path: Path) -> None:
    done("new")
    done("rotate")
    result = done("revoke", ring(path).keys[1].kid)
    assert "is active" not in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize("kid", ["-hyphen", "--two", "--keys-x"])
def test_revoke_takes_a_kid_that_begins_with_a_hyphen(path: Path, kid: str) -> None:
    made = generate_key(Algorithm.ES256)
    key = type(made)(kid=kid, algorithm=made.algorithm, private_key=made.private_key)
    save_key_ring(path, KeyRing.create(datetime.now(UTC), key=key))
    assert f"revoked {kid}" in done("revoke", kid).stdout


def test_export_writes_the_public_set(path: Path) -> None:
    done("new")
    exported = done("export").stdout_bytes
    assert [key.kid for key in parse_jwks(exported).keys] == [ring(path).keys[0].kid]


def test_export_replaces_a_file_as_a_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    done("new")
    served, link = tmp_path / "jwks.json", tmp_path / "link.json"
    served.write_text(FORMER)
    served.chmod(0o640)
    link.symlink_to(served)
    with served.open() as reader:
        done("export", "--out", "link.json")
        assert reader.read() == FORMER
    assert parse_jwks(served.read_bytes()).keys
    assert served.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()


def test_an_export_that_fails_leaves_the_former_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done("new")
    served = tmp_path / "jwks.json"
    served.write_text(FORMER)

    def fill_disk(path: Path, content: bytes) -> None:
        path.write_text(content[:10].decode())
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fill_disk)
    result = run("export", "--out", "jwks.json")
    assert result.exit_code == 1
    assert "'jwks.json': No space left on device" in result.stderr
    assert served.read_text() == FORMER
    assert not list(tmp_path.glob(".jwks.json.*"))


def test_export_overwrites_a_file_that_is_a_mount_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done("new")
    mounted = tmp_path / "jwks.json"
    mounted.write_text(FORMER)

    def refuse(*_: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(Path, "replace", refuse)
    done("export", "--out", "jwks.json")
    assert parse_jwks(mounted.read_bytes()).keys
    assert not list(tmp_path.glob(".jwks.json.*"))


def test_export_writes_into_a_pipe(tmp_path: Path) -> None:
    done("new")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        done("export", "--out", "pipe")
        assert parse_jwks(os.read(reader, 4096)).keys
    finally:
        os.close(reader)


def test_export_writes_pem() -> None:
    done("new")
    done("new", "--alg", "EdDSA")
    assert done("export", "--format", "pem").stdout.count("BEGIN PUBLIC KEY") == 2


def test_export_warns_that_pem_does_not_say_ps256() -> None:
    done("new", "--alg", "PS256")
    assert done("export").stderr == ""
    assert "is for PS256; it is read as one for RS256" in done("export", "--format", "pem").stderr


def test_the_file_can_be_named_by_option_or_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done("new", "--keys", "a.json")
    assert (tmp_path / "a.json").exists()
    monkeypatch.setenv("PUSHKIT_KEYS", "b.json")
    done("new")
    assert (tmp_path / "b.json").exists()


def test_the_passphrase_comes_from_a_file_or_the_environment(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "passphrase").write_text("correct horse\n")
    done("new", "--passphrase-file", "passphrase")
    assert len(load_key_ring(path, b"correct horse").keys) == 1
    assert isinstance(run("list").exception, KeyFileError)
    monkeypatch.setenv("PUSHKIT_KEY_PASSPHRASE", "correct horse")
    done("list")


def test_an_empty_passphrase_is_no_word_to_do_without(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUSHKIT_KEY_PASSPHRASE", "")
    assert "PUSHKIT_KEY_PASSPHRASE: found an empty value" in str(run("new").exception)
    assert not path.exists()
