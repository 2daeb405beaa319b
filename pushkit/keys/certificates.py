"""The dates of X.509 certificates (RFC 5280 §4.1.2.5)."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path


def expiry_of_certificate(path: Path) -> datetime | None:
    """Return when the first certificate in a PEM file expires; None if it cannot be read."""
    from cryptography import x509  # few senders have a certificate

    try:
        return x509.load_pem_x509_certificate(Path(path).read_bytes()).not_valid_after_utc
    except ValueError:
        return None
