"""Standard Webhooks signatures (specification 1.0.0): v1 (HMAC-SHA256) and v1a (Ed25519).

The signed text is `{id}.{timestamp}.{body}`. It names no audience: a notification for one webhook
is valid at every other one with the same secret or key, so each webhook needs its own.

A sender signs with every current secret, `webhook-signature` lists the signatures, and a receiver
accepts any one of them. A secret is replaced that way.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from pushkit.errors import ConfigError, InvalidSignatureError, MalformedRequestError
from pushkit.files import unmarked
from pushkit.keys.jwk import SigningKey, VerificationKey
from pushkit.keys.primitives import (
    ed25519_public_bytes,
    ed25519_signing_key,
    ed25519_verification_key,
    sign_bytes,
    signature_holds,
)
from pushkit.record import field, record
from pushkit.signing.scheme import LARGEST_EPOCH
from pushkit.webhook import Headers

ID_HEADER = "webhook-id"
TIMESTAMP_HEADER = "webhook-timestamp"
SIGNATURE_HEADER = "webhook-signature"

_SECRET_PREFIX, _PRIVATE_PREFIX, _PUBLIC_PREFIX = "whsec_", "whsk_", "whpk_"
_MIN_SECRET_BYTES, _MAX_SECRET_BYTES = 24, 64
_SEED_BYTES, _PRIVATE_BYTES = 32, 64
_MAX_FILE_BYTES = 64 * 1024

# A rotation needs few. One of v1a costs a pass over the body for each key of the receiver.
_MAX_SIGNATURES = 32
_MAX_V1A_SIGNATURES = 4

# No `.`: with one in the id or the timestamp, the same signature would be valid for another split
# of id, timestamp and body.
_ID = re.compile(r"[!-\-/-~]{1,256}")
# One spelling of each time: no sign, fraction, exponent, leading zero or digit of another script.
_TIMESTAMP = re.compile(r"(?:0|[1-9][0-9]{0,11})", re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSecret:
    """The key of v1, which both sides have. A repr does not show it."""

    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not _MIN_SECRET_BYTES <= len(self.key) <= _MAX_SECRET_BYTES:
            raise ConfigError(
                f"a webhook secret of {len(self.key)} bytes,"
                f" expected {_MIN_SECRET_BYTES} to {_MAX_SECRET_BYTES}"
            )


WebhookSigner: TypeAlias = SharedSecret | SigningKey
WebhookVerifier: TypeAlias = SharedSecret | VerificationKey


@record(frozen=True, slots=True, kw_only=True)
class UnverifiedWebhook:
    """The three headers, well-formed. Nothing in them is proven."""

    delivery_id: str  # `webhook-id`
    timestamp: datetime  # `webhook-timestamp`
    # Version and signature, for the known versions.
    signatures: tuple[tuple[str, bytes], ...] = field(repr=False)


# --- keys ---------------------------------------------------------------------------------------


def generate_webhook_secret() -> str:
    """Return a fresh secret for v1: `whsec_` and 256 random bits."""
    return _SECRET_PREFIX + _base64_of(secrets.token_bytes(32))


def webhook_public_key(key: SigningKey | VerificationKey) -> str:
    """Return the public key for receivers of v1a, as `whpk_…`.

    Raises:
        ConfigError: Not an Ed25519 key.
    """
    return _PUBLIC_PREFIX + _base64_of(ed25519_public_bytes(key))


def read_signer(secret: str) -> WebhookSigner:
    """Read a sender's secret: `whsec_…` (also without its prefix) or `whsk_…`.

    Raises:
        ConfigError: Not such a secret; the message does not quote it.
    """
    if secret.startswith(_PUBLIC_PREFIX):
        raise ConfigError("a webhook secret: found whpk_…, which verifies; whsk_… signs")
    if not secret.startswith(_PRIVATE_PREFIX):
        return SharedSecret(key=_decoded_secret(secret.removeprefix(_SECRET_PREFIX)))
    raw = _decoded_secret(secret.removeprefix(_PRIVATE_PREFIX))
    if len(raw) != _PRIVATE_BYTES:
        raise ConfigError(f"whsk_…: {len(raw)} bytes, expected {_PRIVATE_BYTES}: seed, public key")
    key = ed25519_signing_key(raw[:_SEED_BYTES])
    if ed25519_public_bytes(key) != raw[_SEED_BYTES:]:
        raise ConfigError("whsk_…: its second half is not the public key of its first")
    return key


def read_signers(secrets: Sequence[str]) -> tuple[WebhookSigner, ...]:
    """Read a sender's secrets.

    Raises:
        ConfigError: One is no such secret, or there are more than receivers accept signatures.
    """
    signers = tuple(map(read_signer, secrets))
    keys = sum(isinstance(signer, SigningKey) for signer in signers)
    if len(signers) > _MAX_SIGNATURES or keys > _MAX_V1A_SIGNATURES:
        raise ConfigError(
            f"webhook secrets: {len(signers)}, of them {keys} whsk_…, expected at most"
            f" {_MAX_SIGNATURES} and {_MAX_V1A_SIGNATURES}: receivers refuse more signatures"
        )
    return signers


def read_verifier(secret: str) -> WebhookVerifier:
    """Read a receiver's secret: `whsec_…` (also without its prefix) or `whpk_…`.

    Raises:
        ConfigError: Not such a secret; the message does not quote it.
    """
    if secret.startswith(_PRIVATE_PREFIX):
        raise ConfigError("a webhook secret: found whsk_…, the sender's own; expected whpk_…")
    if secret.startswith(_PUBLIC_PREFIX):
        return ed25519_verification_key(_decoded_secret(secret.removeprefix(_PUBLIC_PREFIX)))
    return SharedSecret(key=_decoded_secret(secret.removeprefix(_SECRET_PREFIX)))


def load_webhook_secrets(path: Path | None) -> tuple[str, ...]:
    """Return the secrets in a file, one a line; none without a file.

    Raises:
        ConfigError: The file cannot be read, or holds no secret.
    """
    if path is None:
        return ()
    try:
        with path.open("rb") as file:
            lines = unmarked(file.read(_MAX_FILE_BYTES)).decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not UTF-8"
        raise ConfigError(
            f"{path}: {reason}; expected a text file with one webhook secret a line"
        ) from exc
    found = tuple(line.strip() for line in lines if line.strip())
    if not found:
        raise ConfigError(f"{path}: expected one webhook secret a line, found none")
    return found


def _decoded_secret(encoded: str) -> bytes:
    # Secrets are copied by hand, and some systems omit the padding.
    unpadded = encoded.rstrip("=")
    decoded = _base64(unpadded + "=" * (-len(unpadded) % 4))
    if decoded is None or len(encoded) - len(unpadded) > 2:
        raise ConfigError("a webhook secret: expected whsec_, whsk_ or whpk_ and base64")
    return decoded


# --- signing ------------------------------------------------------------------------------------


def sign_webhook(
    body: bytes, *, delivery_id: str, now: datetime, signers: Sequence[WebhookSigner]
) -> list[tuple[str, str]]:
    """Return the three header fields of one attempt.

    The id is the same on every retry. There are several signers while one is being replaced.

    Raises:
        ConfigError: There is no signer, the id cannot be signed, or `now` has no zone.
    """
    if not signers:
        raise ConfigError("Standard Webhooks: expected at least one secret")
    if not _ID.fullmatch(delivery_id):
        raise ConfigError("webhook-id: expected 1 to 256 visible ASCII characters without `.`")
    if now.utcoffset() is None:
        raise ConfigError("webhook-timestamp: expected an aware time, found one without a zone")
    timestamp = str(int(now.timestamp()))
    content = _signed_content(delivery_id, timestamp, body)
    signatures = [
        f"v1,{_base64_of(_mac(signer, content))}"
        if isinstance(signer, SharedSecret)
        else f"v1a,{_base64_of(sign_bytes(signer, content))}"
        for signer in signers
    ]
    return [
        (ID_HEADER, delivery_id),
        (TIMESTAMP_HEADER, timestamp),
        (SIGNATURE_HEADER, " ".join(signatures)),
    ]


def _mac(secret: SharedSecret, content: bytes) -> bytes:
    return hmac.digest(secret.key, content, hashlib.sha256)


def _signed_content(delivery_id: str, timestamp: str, body: bytes) -> bytes:
    return f"{delivery_id}.{timestamp}.".encode() + body


def _base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


# --- verifying ----------------------------------------------------------------------------------


def read_unverified_webhook(headers: Headers) -> UnverifiedWebhook:
    """Read the three headers without trusting them.

    Unknown versions are ignored, whatever their form: new ones may be defined.

    Raises:
        InvalidSignatureError: A header is missing, or no signature is of a known version.
        MalformedRequestError: A header is repeated, or breaks the specification.
    """
    delivery_id = _required(headers, ID_HEADER)
    timestamp = _required(headers, TIMESTAMP_HEADER)
    listed = _required(headers, SIGNATURE_HEADER)
    if not _ID.fullmatch(delivery_id):
        raise MalformedRequestError(
            "webhook-id: expected 1 to 256 visible ASCII characters without `.`"
        )
    if not _TIMESTAMP.fullmatch(timestamp) or int(timestamp) > LARGEST_EPOCH:
        raise MalformedRequestError("webhook-timestamp: expected whole seconds since the epoch")
    return UnverifiedWebhook(
        delivery_id=delivery_id,
        timestamp=datetime.fromtimestamp(int(timestamp), UTC),
        signatures=_read_signatures(listed),
    )


def check_webhook_signature(
    webhook: UnverifiedWebhook, body: bytes, verifiers: Sequence[WebhookVerifier]
) -> None:
    """Prove id, timestamp and body by any of the secrets. The caller checks the time.

    Raises:
        InvalidSignatureError: No signature in the list is by one of the secrets.
    """
    timestamp = str(int(webhook.timestamp.timestamp()))
    content = _signed_content(webhook.delivery_id, timestamp, body)
    by_secret = [signature for version, signature in webhook.signatures if version == "v1"]
    by_key = [signature for version, signature in webhook.signatures if version == "v1a"]
    holds: list[bool] = []
    # Try all, so that the time taken does not reveal which one is valid.
    for verifier in verifiers:
        if not isinstance(verifier, SharedSecret):
            holds += [signature_holds(verifier, content, signature) for signature in by_key]
        elif by_secret:  # one pass over the body, however many a stranger lists
            mac = _mac(verifier, content)
            holds += [hmac.compare_digest(mac, signature) for signature in by_secret]
    if not any(holds):
        raise InvalidSignatureError("no signature in webhook-signature is valid")


def _read_signatures(listed: str) -> tuple[tuple[str, bytes], ...]:
    parted = [entry.partition(",") for entry in listed.split(" ") if entry]
    by_key = sum(version == "v1a" for version, _, _ in parted)
    if len(parted) > _MAX_SIGNATURES or by_key > _MAX_V1A_SIGNATURES:
        raise MalformedRequestError(
            f"webhook-signature: {len(parted)} signatures, of them {by_key} of v1a, expected at"
            f" most {_MAX_SIGNATURES} and {_MAX_V1A_SIGNATURES}"
        )
    decoded = [(version, _base64(text)) for version, _, text in parted if version in {"v1", "v1a"}]
    found = tuple((version, signature) for version, signature in decoded if signature is not None)
    if not found:
        raise InvalidSignatureError("webhook-signature: expected `v1,` or `v1a,` and base64")
    return found


def _required(headers: Headers, name: str) -> str:
    value = headers.one(name)
    if not value:
        raise InvalidSignatureError(f"no {name}, expected a Standard Webhooks signature")
    return value


def _base64(encoded: str) -> bytes | None:
    """Decode canonical base64 (RFC 4648 §3.5 and §4); None for anything else."""
    if not _BASE64.fullmatch(encoded):
        return None
    try:
        decoded = base64.b64decode(encoded, validate=True)
    except ValueError:
        return None
    return decoded if _base64_of(decoded) == encoded else None
