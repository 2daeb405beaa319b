r"""Secrets at rest: AES-256-GCM (NIST SP 800-38D) under the operator's keys.

    sealed value = "\0sl1" | key id (8) | salt (16) | nonce (12) | ciphertext and tag

Each value is sealed under a key of its own, derived from the operator's key and the salt
(HKDF-Expand, RFC 5869 §2.3): one key is limited to 2^32 random nonces (SP 800-38D §8.3), which an
outbox of a thousand updates a second uses up within two months.

The row of a value is authenticated with it: in another row, the value cannot be opened.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from pushkit.errors import ConfigError, KeyFileError, SealedSecretError, SecretKeyMissingError
from pushkit.files import locked, read_file, read_private, replace_private
from pushkit.programs import secret_variable

SEALED: Final = b"\x00sl1"
"""The prefix of a sealed value: no JSON text and no header value begins with it."""

_ID_BYTES: Final = 8
_SALT_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_KEY_BYTES: Final = 32

SEALED_HEAD_BYTES: Final = len(SEALED) + _ID_BYTES
"""The length of the prefix and the key id."""
SEALING_OVERHEAD: Final = SEALED_HEAD_BYTES + _SALT_BYTES + _NONCE_BYTES + _TAG_BYTES

# Scanners for leaked secrets can search for the prefix.
_TEXT: Final = re.compile(r"psk1_([0-9a-f]{64})")
_VARIABLE: Final = "PUSHKIT_SECRET_KEYS"
_FILE_VARIABLE: Final = "PUSHKIT_SECRET_KEYS_FILE"
_MADE_BY: Final = "pushkit secrets generate"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretKey:
    """One key, and its id in sealed values, which reveals nothing of the key."""

    id: str
    material: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> SecretKey:
        """Return a new random key."""
        return cls.of(secrets.token_bytes(_KEY_BYTES))

    @classmethod
    def of(cls, material: bytes) -> SecretKey:
        """Return the key of 32 random bytes."""
        digest = hashlib.sha256(b"pushkit secret key id\0" + material).hexdigest()
        return cls(id=digest[: 2 * _ID_BYTES], material=material)

    def to_text(self) -> str:
        """Return the key as text for a key file: the secret itself."""
        return f"psk1_{self.material.hex()}"


class SecretKeys:
    """The keys of secrets, at least one: the first one seals, all of them open.

    Raises:
        ConfigError: There is no key, or the same one twice.
    """

    def __init__(self, keys: Sequence[SecretKey]) -> None:
        if not keys:
            raise ConfigError(f"secret keys: found none, expected one; `{_MADE_BY}` makes one")
        self._by_id = {bytes.fromhex(key.id): key for key in keys}
        if len(self._by_id) != len(keys):
            raise ConfigError("secret keys: found the same key twice, expected each once")
        self._first = keys[0]

    @classmethod
    def generate(cls) -> SecretKeys:
        """Return one new key, for a test."""
        return cls([SecretKey.generate()])

    @classmethod
    def parse(cls, text: str) -> SecretKeys:
        """Read keys, one per line or separated by commas; `#` begins a comment.

        Raises:
            ConfigError: An entry is no key, or there is none.
        """
        words = re.split(r"[\s,]+", re.sub(r"#.*", "", text))
        return cls([_key(number, word) for number, word in enumerate(filter(None, words), 1)])

    @classmethod
    def from_file(cls, path: str | Path) -> SecretKeys:
        """Read keys from a file of mode 0600.

        Raises:
            KeyFileError: It cannot be read, others may read it, or it holds no keys.
        """
        path = Path(path)
        return _keys_in(path, read_private(path, made_by=_MADE_BY))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> SecretKeys | None:
        """Read keys from `PUSHKIT_SECRET_KEYS`, or the file that `PUSHKIT_SECRET_KEYS_FILE` names.

        Returns None if neither is set.

        Raises:
            ConfigError: Both are set, one is empty, or an entry is no key.
        """
        text = secret_variable(_VARIABLE, environment)
        path = secret_variable(_FILE_VARIABLE, environment)
        if text and path:
            raise ConfigError(f"{_VARIABLE} and {_FILE_VARIABLE} are both set, expected one")
        if path:
            return cls.from_file(path)
        try:
            return cls.parse(text) if text else None
        except ConfigError as exc:
            raise ConfigError(f"{_VARIABLE}: {exc}") from exc

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the keys, in order: the first one seals."""
        return tuple(key.id for key in self._by_id.values())

    @property
    def head(self) -> bytes:
        """The first bytes of every value that is sealed with the first key."""
        return SEALED + bytes.fromhex(self._first.id)

    def seal(self, secret: bytes, context: bytes) -> bytes:
        """Seal a value with the first key; only the same context opens it."""
        salt, nonce = secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(_NONCE_BYTES)
        sealed = _cipher(self._first, salt).encrypt(nonce, secret, context)
        return self.head + salt + nonce + sealed

    def open(self, sealed: bytes, context: bytes) -> bytes:
        """Open a sealed value.

        Raises:
            SecretKeyMissingError: It is sealed with none of these keys.
            SealedSecretError: It was changed, or sealed with another context.
        """
        key_id, rest = sealed[len(SEALED) : SEALED_HEAD_BYTES], sealed[SEALED_HEAD_BYTES:]
        if not is_sealed(sealed) or len(sealed) < SEALING_OVERHEAD:
            raise SealedSecretError("a sealed secret is cut short, or is none")
        key = self._by_id.get(key_id)
        if key is None:
            raise SecretKeyMissingError(
                f"sealed with the secret key {key_id.hex()}, expected one of"
                f" {', '.join(self.ids)}; add that key to {_VARIABLE}"
            )
        salt, nonce = rest[:_SALT_BYTES], rest[_SALT_BYTES : _SALT_BYTES + _NONCE_BYTES]
        try:
            return _cipher(key, salt).decrypt(nonce, rest[_SALT_BYTES + _NONCE_BYTES :], context)
        except InvalidTag as exc:
            raise SealedSecretError(
                f"sealed with the secret key {key.id}, but changed since, or for another row"
            ) from exc

    def __repr__(self) -> str:
        return f"SecretKeys({', '.join(self.ids)})"


def is_sealed(value: bytes) -> bool:
    """Return whether a value is sealed, with any key."""
    return value.startswith(SEALED)


def add_secret_key(path: str | Path, *, standby: bool = False) -> SecretKey:
    """Add a new key to a file, which is made if it is missing, and return the key.

    The rest of the file is kept, comments too. With `standby` the key is the last one, which opens
    but does not seal yet; otherwise it is the first one.

    Raises:
        KeyFileError: The file cannot be read or written, or holds something else than keys.
    """
    path, key = Path(path), SecretKey.generate()
    with locked(path):
        present = read_private(path, made_by=_MADE_BY) if path.exists() else b""
        line = f"{key.to_text()}\n".encode("ascii")
        end = b"\n" if present and not present.endswith(b"\n") else b""
        _keys_in(path, present + end + line)  # or the file is another one
        replace_private(path, present + end + line if standby else line + present)
    return key


def fernet_opener(path: Path) -> Callable[[bytes], bytes]:
    """Return what decrypts with the Fernet key in a file, and leaves anything else as it is.

    Fernet (github.com/fernet/spec) is how a2a-sdk encrypts its stored push configs.

    Raises:
        KeyFileError: There is no key in the file.
    """
    from cryptography.fernet import Fernet, InvalidToken  # takes 7 ms, and only an import needs it

    try:
        key = Fernet(read_file(path).strip())
    except OSError as exc:
        raise KeyFileError(f"{path}: {exc.strerror}") from exc
    except ValueError:
        raise KeyFileError(f"{path}: expected 32 bytes in URL-safe base64") from None

    def opened(data: bytes) -> bytes:
        try:
            return key.decrypt(data)
        except InvalidToken:  # the SDK takes it for plain, too
            return data

    return opened


def _keys_in(path: Path, contents: bytes) -> SecretKeys:
    try:
        return SecretKeys.parse(contents.decode("ascii", "replace"))
    except ConfigError as exc:
        raise KeyFileError(f"{path}: {exc}") from exc


def _key(number: int, text: str) -> SecretKey:
    found = _TEXT.fullmatch(text)
    if found is None:  # the message never holds the text: it may be another secret
        raise ConfigError(
            f"secret key {number}: expected psk1_ and 64 hexadecimal digits; `{_MADE_BY}` makes one"
        )
    return SecretKey.of(bytes.fromhex(found[1]))


def _cipher(key: SecretKey, salt: bytes) -> AESGCM:
    expand = HKDFExpand(algorithm=SHA256(), length=_KEY_BYTES, info=b"pushkit sealed 1\0" + salt)
    return AESGCM(expand.derive(key.material))
