"""`TlsFiles`: the certificate and key of the service, which can be reloaded without a restart."""

from __future__ import annotations

import ssl
from pathlib import Path

from pushkit.errors import ConfigError


class TlsFiles:
    """A certificate and its key.

    Args:
        certificate: The file of the certificate and its chain, PEM.
        key: The file of its private key, PEM, without a passphrase.

    Raises:
        ConfigError: A file cannot be read, or the two do not match.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key
        self.context: ssl.SSLContext = self._read()

    def reload(self) -> None:
        """Read the files again, for new connections.

        Raises:
            ConfigError: As above; the files loaded before stay in use.
        """
        self._read()  # first into a new context: a failure must not leave one file's half in use
        self._load_into(self.context)

    def _read(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["http/1.1"])
        self._load_into(context)
        return context

    def _load_into(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_passphrase)
        except ssl.SSLError as exc:
            reason = exc.reason or "not PEM"
            raise ConfigError(f"tls: {self._certificate}, {self._key}: {reason}") from exc
        except (OSError, ValueError) as exc:
            reason = getattr(exc, "strerror", None) or str(exc)
            raise ConfigError(f"tls: {self._certificate}, {self._key}: {reason}") from exc


def _no_passphrase() -> str:
    # Without this, OpenSSL asks at the terminal, and the service hangs.
    raise ValueError("the key is under a passphrase, expected one without")
