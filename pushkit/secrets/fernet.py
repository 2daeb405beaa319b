"""Fernet (github.com/fernet/spec), in which a2a-sdk encrypts its stored push configs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken

from pushkit.errors import KeyFileError
from pushkit.files import read_file


def fernet_opener(path: Path) -> Callable[[bytes], bytes]:
    """Return what decrypts with the key in a file, and leaves what it did not encrypt as it is.

    Raises:
        KeyFileError: There is no key in the file.
    """
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
