"""The dates of X.509 certificates (RFC 5280 §4.1.2.5)."""

from __future__ import annotations

from datetime import datetime


def expiry_of_certificate(pem: bytes) -> datetime | None:
    """Return when the first certificate in PEM expires; None if it cannot be read."""
    from cryptography import x509  # few senders have a certificate

    try:
        return x509.load_pem_x509_certificate(pem).not_valid_after_utc
    except ValueError:
        return None
