"""The exception tree: everything that pushkit and the receiver raise on purpose.

Each class has a stable `code` for programs, and a message for people that says what was found, what
was expected and what to do. No message carries a secret, a token or a body. All of it is public.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pushkit.net.destination import Decision
    from pushkit.net.timing import Timing


class PushkitError(Exception):
    """The root of every error that is raised on purpose."""

    code: ClassVar[str] = "error"


# --- configuration and calls -------------------------------------------------------------------


class ConfigError(PushkitError):
    """A setting or an argument is wrong; the message names it and what was expected."""

    code = "invalid_configuration"


class InvalidPushConfigError(ConfigError):
    """A push-notification config that a client registered cannot be accepted."""

    code = "invalid_push_config"


class InvalidUrlError(InvalidPushConfigError):
    """A URL is none, or not written as plainly as a URL from outside has to be."""

    code = "invalid_url"


class TooManyConfigsError(InvalidPushConfigError):
    """An owner has as many configs for a task as the sender allows."""

    code = "too_many_push_configs"


class InvalidSchemaError(ConfigError):
    """A JSON Schema of a card is none, or breaks a limit."""

    code = "invalid_schema"


class UnsupportedVersionError(ConfigError):
    """The A2A version is not one that pushkit speaks."""

    code = "unsupported_version"


class DestinationRefusedError(InvalidPushConfigError):
    """The webhook URL breaks a rule of the destination policy.

    Attributes:
        decision: Which rule.
    """

    code = "destination_refused"

    def __init__(self, message: str, *, decision: Decision) -> None:
        super().__init__(message)
        self.decision = decision


class InvalidUpdateError(PushkitError):
    """An update cannot be written in the version asked for, for example without a task id."""

    code = "invalid_update"


class SnapshotRequiredError(InvalidUpdateError):
    """A subscription's version sends whole tasks; no snapshot was given, nor a task's status."""

    code = "snapshot_required"


class PayloadTooLargeError(InvalidUpdateError):
    """The body would be larger than the sender's limit."""

    code = "payload_too_large"


class IdempotencyConflictError(PushkitError):
    """An idempotency key was used before, with another payload."""

    code = "idempotency_conflict"


class TooManySubscriptionsError(InvalidPushConfigError):
    """The owner has as many subscriptions as an owner may have."""

    code = "too_many_subscriptions"


class BacklogFullError(PushkitError):
    """Too much is waiting to be delivered: a recipient was refused an update."""

    code = "backlog_full"


class KeyRingError(PushkitError):
    """A key operation is not possible in the ring's present state."""

    code = "key_ring"


class NoSigningKeyError(KeyRingError):
    """No key is active for the algorithm asked for."""

    code = "no_signing_key"


class KeyFileError(ConfigError):
    """A key file has wrong permissions, wrong contents or the wrong passphrase."""

    code = "key_file"


class SealedSecretError(PushkitError):
    """A secret in the database cannot be opened; what needs it waits, and does not go without."""

    code = "sealed_secret"


class SecretKeyMissingError(SealedSecretError):
    """A secret in the database is sealed with a key that this process does not have."""

    code = "secret_key_missing"


class SigningError(PushkitError):
    """A key outside this process did not sign: too late, with an error, or wrongly."""

    code = "signing_failed"


class StorageError(PushkitError):
    """The database refused; what was asked for has not been stored."""

    code = "storage"


class SchemaError(StorageError):
    """The database has another schema than this code: older, newer, of another component, none."""

    code = "schema"


class CommitUncertainError(StorageError):
    """Connection or disk failed in the commit: what was asked for may have been stored or not.

    Repeating an update with the same idempotency key stores it once either way. The same is true
    of a call that was cancelled, and raises `asyncio.CancelledError`: what it asked for may have
    been stored, and may still be stored once it has ended.
    """

    code = "commit_uncertain"


class CanonicalizationError(PushkitError):
    """A value has no canonical form, for example an integer that a JSON number cannot carry."""

    code = "no_canonical_form"


# --- outbound ----------------------------------------------------------------------------------


class OutboundError(PushkitError):
    """An HTTP request of ours failed; a later attempt may succeed."""

    code = "outbound"


class TransportError(OutboundError):
    """No complete answer: a reset, an answer that is no HTTP; its subclasses are the usual causes.

    Attributes:
        timing: Where the time went until it failed, where that is known.
    """

    code = "transport"

    def __init__(self, message: str, *, timing: Timing | None = None) -> None:
        super().__init__(message)
        self.timing = timing


class AddressRefusedError(TransportError):
    """The destination's name leads to an address that may not be dialled; nothing was sent.

    Attributes:
        decision: Why it may not.
    """

    code = "address_refused"

    def __init__(self, message: str, *, decision: Decision, timing: Timing | None = None) -> None:
        super().__init__(message, timing=timing)
        self.decision = decision


class ConnectionFailedError(TransportError):
    """Nobody listens at the destination's address and port."""

    code = "connection_refused"


class NameLookupError(TransportError):
    """The destination's name could not be looked up, or has no address."""

    code = "dns_failure"


class TlsError(TransportError):
    """No TLS connection: an unknown or expired certificate, another name, no common version."""

    code = "tls_failure"


class AnswerTimeoutError(TransportError):
    """No complete answer head in time."""

    code = "timeout"


class OAuthError(OutboundError):
    """An authorization server gave no token; nothing was sent to the destination."""

    code = "oauth"


class OwnershipError(OutboundError):
    """A destination did not prove that it wants notifications; nothing was sent to it.

    Attributes:
        status: What it answered instead.
    """

    code = "ownership_unproven"

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class JwksError(OutboundError):
    """A JWK Set could not be fetched, or is not one that may be trusted."""

    code = "jwks"


class CardUnavailableError(OutboundError):
    """An agent card could not be fetched: another status than 200, too long, or compressed."""

    code = "card_unavailable"


# --- inbound -----------------------------------------------------------------------------------


class InboundError(PushkitError):
    """Something received is refused. `status` is the HTTP answer that goes with it."""

    code = "refused"
    status: ClassVar[int] = 400


class MalformedRequestError(InboundError):
    """Headers contradict each other or cannot be read."""

    code = "malformed_request"


class MalformedJsonError(InboundError):
    """Bytes are not JSON within the limits (RFC 8259, no duplicate members, bounded depth)."""

    code = "malformed_json"


class MalformedBodyError(MalformedJsonError):
    """A notification's body is not JSON within the limits."""

    code = "malformed_body"


class MalformedCardError(MalformedJsonError):
    """An agent card is not a JSON object within the limits, or its signatures are not a list."""

    code = "malformed_card"


class UnrecognisedBodyError(InboundError):
    """The body is JSON, but no notification of any A2A version that is known."""

    code = "unrecognised_body"
    status = 422


class InvalidSignatureError(InboundError):
    """A signature is missing, malformed, by an unknown key, or does not hold."""

    code = "invalid_signature"
    status = 401


class CardRefusedError(InvalidSignatureError):
    """No signature of an agent card is good enough under the policy asked for."""

    code = "card_refused"


class DigestMismatchError(InvalidSignatureError):
    """The signature holds, but for another body."""

    code = "digest_mismatch"


class ClaimError(InboundError):
    """What the signature proves does not fit this receiver or this moment."""

    code = "invalid_claims"
    status = 401


class TimestampError(ClaimError):
    """Outside the time window, or expired."""

    code = "stale_timestamp"


class IssuerError(ClaimError):
    """Issued by another sender than the one that is trusted."""

    code = "wrong_issuer"


class AudienceError(ClaimError):
    """Signed for another webhook."""

    code = "wrong_audience"


class TokenError(InboundError):
    """The notification token or static credential is missing or wrong."""

    code = "invalid_token"
    status = 401


class KeysUnavailableError(InboundError):
    """No key of this sender was ever loaded, so nothing can be said about its signature."""

    code = "keys_unavailable"
    status = 503
