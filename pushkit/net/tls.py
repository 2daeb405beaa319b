"""TLS contexts for clients. They always verify certificate and host name."""

from __future__ import annotations

import functools
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from pushkit.errors import ConfigError
from pushkit.url import shown_path


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCertificate:
    """The client's own certificate (mutual TLS)."""

    certificate: Path  # a PEM file: the certificate, and those between it and its root
    key: Path | None = None  # a PEM file with the private key; None if `certificate` holds it
    password: str | None = field(default=None, repr=False)  # of the key


def tls_context(
    *,
    client: ClientCertificate | None = None,
    ca_file: Path | None = None,  # trusted roots in PEM
    system_roots: bool = True,  # trust the system's roots, too; always, without a `ca_file`
) -> ssl.SSLContext:
    """Return a context that verifies.

    Raises:
        ConfigError: A file is missing, or has other contents.
    """
    if client is None and ca_file is None:
        return _plain()
    context = _verifying(ca_file, system_roots=system_roots)
    if client is not None:
        path = client.certificate
        try:
            for path in filter(None, (client.key, client.certificate)):
                Path(path).open("rb").close()  # OpenSSL does not say which of them is missing
            # Always a callable: without one OpenSSL would ask the terminal for a password.
            context.load_cert_chain(
                client.certificate, client.key, password=lambda: client.password or ""
            )
        except (OSError, ValueError) as exc:
            reason = _reason(exc, "PEM that fits together, and the right password")
            raise ConfigError(f"client certificate: {shown_path(path)}: {reason}") from exc
    return context


@functools.cache
def _plain() -> ssl.SSLContext:
    # Cached, because reading the system's roots takes a tenth of a second.
    return _verifying(None, system_roots=True)


def _verifying(ca_file: Path | None, *, system_roots: bool) -> ssl.SSLContext:
    try:
        if ca_file is not None and not system_roots:
            context = ssl.create_default_context(cafile=ca_file)
        else:
            context = ssl.create_default_context()
            if ca_file is not None:
                context.load_verify_locations(cafile=ca_file)
    except (OSError, ValueError) as exc:
        reason = _reason(exc, "certificates in PEM")
        raise ConfigError(f"ca_file: {shown_path(ca_file or '')}: {reason}") from exc
    context.set_alpn_protocols(["http/1.1"])
    return context


def _reason(exc: OSError | ValueError, expected: str) -> str:
    if isinstance(exc, ssl.SSLError):
        return f"expected {expected}"
    return (exc.strerror if isinstance(exc, OSError) else None) or "cannot be read"
