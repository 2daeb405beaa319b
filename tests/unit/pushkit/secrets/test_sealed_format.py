"""The format of sealed values: later versions open those of earlier ones."""

from __future__ import annotations

from typing import Final

import pytest

from pushkit.errors import SealedSecretError
from pushkit.secrets.sealing import SEALED_HEAD_BYTES, SecretKey, SecretKeys, is_sealed

KEY: Final = "psk1_000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
SEALED: Final = bytes.fromhex(
    "00736c31ad7971576ee5166d"
    "32ee49f4b1a122b5d0fad93c3e4280c9"
    "fd9bb6e3dcc55f8cfe765b5f"
    "2a9c1a1013e7b8a09f0e2f3aa0f861c72b1795421423f3fe2c"
)
HEAD, SALT, NONCE = slice(0, 12), slice(12, 28), slice(28, 40)


def test_a_value_sealed_by_an_earlier_version_is_opened() -> None:
    assert is_sealed(SEALED)
    assert SecretKeys.parse(KEY).open(SEALED, b"row 1") == b"the token"


def test_the_format_is_that_of_the_page() -> None:
    keys = SecretKeys.parse(KEY)
    sealed = keys.seal(b"the token", b"row 1")

    assert HEAD.stop == SEALED_HEAD_BYTES
    assert sealed[HEAD] == SEALED[HEAD] == b"\x00sl1" + bytes.fromhex(keys.ids[0])
    assert len(sealed) == NONCE.stop + len(b"the token") + 16


def test_salt_and_nonce_are_new_for_every_value() -> None:
    keys = SecretKeys.parse(KEY)
    sealed = [keys.seal(b"the token", b"row 1") for _ in range(20)]

    assert len({one[SALT] for one in sealed}) == len({one[NONCE] for one in sealed}) == 20


def test_a_key_is_32_random_bytes() -> None:
    made = [SecretKey.generate() for _ in range(20)]

    assert {len(key.material) for key in made} == {32}
    assert len({key.material for key in made}) == 20


def test_an_empty_value_can_be_sealed_and_nothing_shorter_opens() -> None:
    keys = SecretKeys.parse(KEY)
    sealed = keys.seal(b"", b"row 1")

    assert keys.open(sealed, b"row 1") == b""
    with pytest.raises(SealedSecretError, match="cut short"):
        keys.open(sealed[:-1], b"row 1")
