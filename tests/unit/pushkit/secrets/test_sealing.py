from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushkit.errors import ConfigError, KeyFileError, SealedSecretError, SecretKeyMissingError
from pushkit.secrets.sealing import (
    SEALED_HEAD_BYTES,
    SEALING_OVERHEAD,
    SecretKey,
    SecretKeys,
    add_secret_key,
    is_sealed,
)

OLD, NEW = SecretKey.generate(), SecretKey.generate()
KEYS = SecretKeys([NEW, OLD])

# The format of sealed values: later versions open those of earlier ones.
FORMER = SecretKeys.parse("psk1_000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f")
SEALED = bytes.fromhex(
    "00736c31ad7971576ee5166d"
    "32ee49f4b1a122b5d0fad93c3e4280c9"
    "fd9bb6e3dcc55f8cfe765b5f"
    "2a9c1a1013e7b8a09f0e2f3aa0f861c72b1795421423f3fe2c"
)
HEAD, SALT, NONCE = slice(0, 12), slice(12, 28), slice(28, 40)


@given(st.binary(max_size=200), st.binary(max_size=50))
def test_a_sealed_value_opens_again(secret: bytes, context: bytes) -> None:
    sealed = KEYS.seal(secret, context)
    assert is_sealed(sealed)
    assert len(sealed) == len(secret) + SEALING_OVERHEAD
    assert KEYS.open(sealed, context) == secret


def test_the_first_key_seals_and_every_key_opens() -> None:
    sealed_before = SecretKeys([OLD]).seal(b"token", b"row")
    assert KEYS.open(sealed_before, b"row") == b"token"
    assert KEYS.seal(b"token", b"row").startswith(SecretKeys([NEW]).head)


def test_the_error_of_a_missing_key_names_it() -> None:
    sealed = SecretKeys([OLD]).seal(b"token", b"row")
    with pytest.raises(SecretKeyMissingError, match=f"{OLD.id}.*expected.*{NEW.id}"):
        SecretKeys([NEW]).open(sealed, b"row")


def test_a_secret_opens_in_its_own_context_only() -> None:
    with pytest.raises(SealedSecretError, match="for another row"):
        KEYS.open(KEYS.seal(b"token", b"row 1"), b"row 2")


def test_no_single_bit_of_a_sealed_secret_can_be_changed() -> None:
    sealed = KEYS.seal(b"token", b"row")
    for position in range(len(sealed) * 8):
        changed = bytearray(sealed)
        changed[position // 8] ^= 1 << position % 8
        with pytest.raises(SealedSecretError):
            KEYS.open(bytes(changed), b"row")


@given(st.binary(max_size=100))
def test_a_value_that_is_no_sealed_secret_is_refused(data: bytes) -> None:
    for found in (data, KEYS.head + data):
        with pytest.raises(SealedSecretError):
            KEYS.open(found, b"row")


def test_keys_are_read_from_lines_with_comments() -> None:
    text = f"# of November\n{NEW.to_text()}\n\n{OLD.to_text()}  # until December\n"
    assert SecretKeys.parse(text).ids == (NEW.id, OLD.id)
    assert SecretKeys.parse(f"{NEW.to_text()},{OLD.to_text()}").ids == (NEW.id, OLD.id)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("", "found none", id="none"),
        pytest.param("# nothing\n", "found none", id="a comment"),
        pytest.param(f"{NEW.to_text()} canary", "secret key 2: expected psk1_", id="no key"),
        pytest.param(NEW.to_text()[:-1], "secret key 1: expected psk1_", id="cut short"),
        pytest.param(f"{NEW.to_text()} {NEW.to_text()}", "the same key twice", id="twice"),
    ],
)
def test_the_error_of_an_invalid_key_does_not_repeat_it(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        SecretKeys.parse(text)
    assert "canary" not in str(caught.value)
    assert NEW.to_text()[:-1] not in str(caught.value)


def test_reprs_show_ids_only() -> None:
    shown = f"{KEYS!r} {NEW!r}"
    assert NEW.id in shown
    assert NEW.material.hex() not in shown
    assert repr(NEW.material) not in shown


def test_a_file_is_made_private_and_keeps_its_keys(tmp_path: Path) -> None:
    path = tmp_path / "secret.keys"
    first = add_secret_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    second, third = add_secret_key(path), add_secret_key(path, standby=True)
    assert SecretKeys.from_file(path).ids == (second.id, first.id, third.id)


@pytest.mark.parametrize("written", ["", "\n", "# of the outbox"])  # the first by `mktemp`
@pytest.mark.parametrize("standby", [False, True])
def test_a_file_without_keys_gets_its_first_one(
    tmp_path: Path, written: str, *, standby: bool
) -> None:
    path = tmp_path / "secret.keys"
    path.touch(0o600)
    path.write_text(written, encoding="ascii")
    key = add_secret_key(path, standby=standby)
    assert SecretKeys.from_file(path).ids == (key.id,)
    assert written in path.read_text("ascii")


def test_comments_of_an_operator_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "secret.keys"
    written = f"# für Köln\n{OLD.to_text()}, {NEW.to_text()}  # made in May".encode()
    path.write_bytes(written)
    path.chmod(0o600)
    standby, first = add_secret_key(path, standby=True), add_secret_key(path)
    assert path.read_bytes() == (
        f"{first.to_text()}\n".encode() + written + f"\n{standby.to_text()}\n".encode()
    )
    assert SecretKeys.from_file(path).ids == (first.id, OLD.id, NEW.id, standby.id)


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret.keys"
    add_secret_key(path)
    path.chmod(0o644)
    with pytest.raises(KeyFileError, match="chmod 600"):
        SecretKeys.from_file(path)


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="pushkit secrets generate"):
        SecretKeys.from_file(tmp_path / "secret.keys")


def test_a_file_of_something_else_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "secret.keys"
    path.write_text("canary", encoding="ascii")
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="secret key 1: expected"):
        add_secret_key(path)
    assert path.read_text("ascii") == "canary"


def test_keys_come_from_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "secret.keys"
    key = add_secret_key(path)
    in_file = SecretKeys.from_environment({"PUSHKIT_SECRET_KEYS_FILE": str(path)})
    inline = SecretKeys.from_environment({"PUSHKIT_SECRET_KEYS": key.to_text()})
    assert in_file is not None
    assert inline is not None
    assert in_file.ids == inline.ids == (key.id,)
    assert SecretKeys.from_environment({}) is None


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"PUSHKIT_SECRET_KEYS": ""}, "^PUSHKIT_SECRET_KEYS: found an empty value"),
        ({"PUSHKIT_SECRET_KEYS_FILE": ""}, "^PUSHKIT_SECRET_KEYS_FILE: found an empty value"),
        ({"PUSHKIT_SECRET_KEYS": "canary"}, "PUSHKIT_SECRET_KEYS: secret key 1"),
        (
            {"PUSHKIT_SECRET_KEYS": NEW.to_text(), "PUSHKIT_SECRET_KEYS_FILE": os.devnull},
            "expected one",
        ),
    ],
    ids=["empty", "no file", "no key", "two sources"],
)
def test_a_mistake_in_the_environment_is_named(variables: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SecretKeys.from_environment(variables)


# --- the format ----------------------------------------------------------------------------------


def test_a_value_sealed_by_an_earlier_version_is_opened() -> None:
    assert is_sealed(SEALED)
    assert FORMER.open(SEALED, b"row 1") == b"the token"


def test_the_format_is_that_of_the_page() -> None:
    sealed = FORMER.seal(b"the token", b"row 1")

    assert HEAD.stop == SEALED_HEAD_BYTES
    assert sealed[HEAD] == SEALED[HEAD] == b"\x00sl1" + bytes.fromhex(FORMER.ids[0])
    assert len(sealed) == NONCE.stop + len(b"the token") + 16


def test_salt_and_nonce_are_new_for_every_value() -> None:
    sealed = [FORMER.seal(b"the token", b"row 1") for _ in range(20)]

    assert len({one[SALT] for one in sealed}) == len({one[NONCE] for one in sealed}) == 20


def test_a_key_is_32_random_bytes() -> None:
    made = [SecretKey.generate() for _ in range(20)]

    assert {len(key.material) for key in made} == {32}
    assert len({key.material for key in made}) == 20


def test_an_empty_value_can_be_sealed_and_nothing_shorter_opens() -> None:
    sealed = FORMER.seal(b"", b"row 1")

    assert FORMER.open(sealed, b"row 1") == b""
    with pytest.raises(SealedSecretError, match="cut short"):
        FORMER.open(sealed[:-1], b"row 1")
