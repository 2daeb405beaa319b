"""The exception tree: everything that pushkit and the receiver raise on purpose.

Each class has a stable `code` for programs, and a message for people that says what was found, what
was expected and what to do. No message carries a secret, a token or a body. All names are public.
The reference explains each code in a row of `docs/reference/codes.md`, to which messages lead on.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Self

from pushkit.clock import Timing


class PushkitError(Exception):
    """The root of every error that is raised on purpose."""

    code: ClassVar[str] = "error"
    codes: ClassVar[set[str]] = set()  # of all its subclasses that are loaded
    reported: bool = False  # logged and counted: the caller need not do it again

    def __init_subclass__(cls, *, code: str | None = None) -> None:
        cls.code = code or cls.code
        cls.codes.add(cls.code)

    def __reduce__(self) -> tuple[object, ...]:
        # Process pools pickle errors. Some `__init__` want more than the message, so they are not
        # called when an error is loaded.
        return Exception.__new__, (type(self), *self.args), self.__dict__


# --- configuration and calls -------------------------------------------------------------------


class ConfigError(PushkitError, code="invalid_configuration"):
    """A setting or an argument is wrong; the message names it and what was expected."""


class AlertFailedError(PushkitError, code="alert_failed"):
    """An alert could not be sent; it is in the log."""


class InvalidPushConfigError(ConfigError, code="invalid_push_config"):
    """A push-notification config that a client registered cannot be accepted."""


class InvalidUrlError(InvalidPushConfigError, code="invalid_url"):
    """A URL is malformed, or uses a form that URLs from outside may not have."""


class TooManyConfigsError(InvalidPushConfigError, code="too_many_push_configs"):
    """The owner already has as many configs for the task as the sender allows."""


class InvalidSchemaError(ConfigError, code="invalid_schema"):
    """A JSON Schema of a card is invalid, or breaks a limit."""


class UnsupportedVersionError(ConfigError, code="unsupported_version"):
    """The A2A version is not one that pushkit speaks."""


class UrlDecision(StrEnum):
    """The decision on a URL or on an address of its name, with the reason of a refusal."""

    reason: str  # for people; empty if not refused

    def __new__(cls, code: str, reason: str = "") -> Self:
        """Make the member for a code, with its reason."""
        member = str.__new__(cls, code)
        member._value_, member.reason = code, reason
        return member

    # Allowed.
    PUBLIC = "public"
    INTRANET = "intranet"
    NAMED = "named"
    # The URL is refused.
    NOT_A_URL = "not_a_url", "not a URL as it is expected here"
    NOT_HTTPS = "not_https", "expected https, found http"
    PORT = "port", "the port is not among those allowed"
    LITERAL_ADDRESS = "literal_address", "a literal address, expected a host name"
    NOT_A_NAME = "not_a_name", "not a host name"
    SPECIAL_NAME = "special_name", "a local or special-use name, expected a public one"
    OTHER_DOMAIN = "other_domain", "not among the domains that are allowed"
    # The address is refused.
    NOT_PUBLIC = "not_public", "the address is not public"
    OTHER_NETWORK = "other_network", "the address is outside of the networks that are allowed"
    REFUSED_NETWORK = "refused_network", "the address is in a network that is refused"
    OWN_ADDRESS = "own_address", "the address is this machine's own"

    @property
    def is_refusal(self) -> bool:
        """Whether the URL or address may not be reached."""
        return bool(self.reason)


class DestinationRefusedError(InvalidPushConfigError, code="destination_refused"):
    """The webhook URL breaks a rule of the destination policy; `decision` says which.

    `allow` is the entry of the operator's `allow` that lifts the rule; None if none does. The
    message is for whoever named the URL, also for a client; `advice` is for the operator.
    """

    def __init__(self, message: str, *, decision: UrlDecision, allow: str | None = None) -> None:
        super().__init__(message)
        self.decision = decision
        self.allow = allow

    def advice(self, place: str) -> str:
        """Return what an operator can write to lift the rule; `{}` in a place is the entry."""
        return "" if self.allow is None else f"; for development: {place.format(self.allow)}"


class InvalidUpdateError(PushkitError, code="invalid_update"):
    """An update cannot be written in the version asked for, for example without a task id."""


class SnapshotRequiredError(InvalidUpdateError, code="snapshot_required"):
    """A subscription's version sends whole tasks; no snapshot was given, nor a task's status."""


class PayloadTooLargeError(InvalidUpdateError, code="payload_too_large"):
    """The body would be larger than the sender's limit."""


class IdempotencyConflictError(PushkitError, code="idempotency_conflict"):
    """An idempotency key was used before, with another payload."""


class TooManySubscriptionsError(InvalidPushConfigError, code="too_many_subscriptions"):
    """The owner already has as many subscriptions as the sender allows."""


class BacklogFullError(PushkitError, code="backlog_full"):
    """The backlog of unfinished deliveries is full, so an update to a recipient was refused."""


class KeyRingError(PushkitError, code="key_ring"):
    """A key operation is not possible in the ring's current state."""


class NoSigningKeyError(KeyRingError, code="no_signing_key"):
    """No key is active for the algorithm asked for."""


class KeyFileError(ConfigError, code="key_file"):
    """A key file has wrong permissions, wrong contents or the wrong passphrase."""


class SealedSecretError(PushkitError, code="sealed_secret"):
    """A secret in the database cannot be opened; deliveries that need it wait until it can."""


class SecretKeyMissingError(SealedSecretError, code="secret_key_missing"):
    """A secret in the database is sealed with a key that this process does not have."""


class SigningError(PushkitError, code="signing_failed"):
    """A key outside this process did not sign: too late, with an error, or wrongly."""


class StorageError(PushkitError, code="storage"):
    """The database refused the operation; nothing of it was stored."""


class SchemaError(StorageError, code="schema"):
    """The database's schema is not this code's: older, newer, of another component, or missing."""


class CommitUncertainError(StorageError, code="commit_uncertain"):
    """Connection or disk failed during the commit: the operation may have been stored or not.

    Repeating an update with the same idempotency key stores it once either way. The same is true
    of a cancelled call, which raises `asyncio.CancelledError`: its operation may have been stored,
    and may still be stored after the call ended.
    """


class CanonicalizationError(PushkitError, code="no_canonical_form"):
    """A value has no canonical form, for example an integer that a JSON number cannot carry."""


# --- outbound ----------------------------------------------------------------------------------


class OutboundError(PushkitError, code="outbound"):
    """An HTTP request that pushkit sent failed; a later attempt may succeed."""


class TransportError(OutboundError, code="transport"):
    """A request got no complete answer: a reset, or bytes that are not HTTP; see the subclasses.

    `timing` has the phases of the request until it failed; None if they are unknown.
    """

    def __init__(self, message: str, *, timing: Timing | None = None) -> None:
        super().__init__(message)
        self.timing = timing


class AddressRefusedError(TransportError, code="address_refused"):
    """The destination's name has an address that may not be dialled; nothing was sent.

    `decision` says why.
    """

    def __init__(
        self, message: str, *, decision: UrlDecision, timing: Timing | None = None
    ) -> None:
        super().__init__(message, timing=timing)
        self.decision = decision


class ConnectionFailedError(TransportError, code="connection_refused"):
    """No server listens at the destination's address and port."""


class NameLookupError(TransportError, code="dns_failure"):
    """The destination's name could not be looked up, or has no address."""


class ResourcesExhaustedError(TransportError, code="resources_exhausted"):
    """This process or machine has no socket or memory left to dial with; nothing was sent."""


class EgressProxyError(TransportError, code="egress_proxy"):
    """The egress proxy is down, is not a proxy, or answers 407 or 429; nothing was sent."""


class TlsError(TransportError, code="tls_failure"):
    """The TLS handshake failed: unknown or expired certificate, other name, no common version."""


class AnswerTimeoutError(TransportError, code="timeout"):
    """No complete answer head arrived in time."""


class OAuthError(OutboundError, code="oauth"):
    """An authorization server gave no token; nothing was sent to the destination."""


class OwnershipError(OutboundError, code="ownership_unproven"):
    """A destination did not prove that it wants notifications; none was sent to it.

    `status` is that of its answer.
    """

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class JwksError(OutboundError, code="jwks"):
    """A JWK Set could not be fetched, or may not be trusted."""


class CardUnavailableError(OutboundError, code="card_unavailable"):
    """An agent card could not be fetched: a status other than 200, too long, or compressed."""


# --- inbound -----------------------------------------------------------------------------------


class InboundError(PushkitError, code="refused"):
    """Something received is refused. `status` is that of the HTTP answer."""

    status: ClassVar[int] = 400

    def __init_subclass__(cls, *, code: str | None = None, status: int | None = None) -> None:
        super().__init_subclass__(code=code)
        cls.status = status or cls.status


class MalformedRequestError(InboundError, code="malformed_request"):
    """Headers contradict each other or cannot be read."""


class MalformedJsonError(InboundError, code="malformed_json"):
    """Bytes are not JSON within the limits (RFC 8259, no duplicate members, bounded depth)."""


class MalformedBodyError(MalformedJsonError, code="malformed_body"):
    """A notification's body is not JSON within the limits."""


class MalformedCardError(MalformedJsonError, code="malformed_card"):
    """An agent card is not a JSON object within the limits, or its signatures are not a list."""


class UnrecognisedBodyError(InboundError, code="unrecognised_body", status=422):
    """The body is JSON, but not a notification of a known A2A version."""


class InvalidSignatureError(InboundError, code="invalid_signature", status=401):
    """A signature is missing, malformed, by an unknown key, or invalid."""


class CardRefusedError(InvalidSignatureError, code="card_refused"):
    """No signature of an agent card satisfies the policy."""


class DigestMismatchError(InvalidSignatureError, code="digest_mismatch"):
    """The signature is valid, but for another body."""


class ClaimError(InboundError, code="invalid_claims", status=401):
    """The proven claims do not fit this receiver or the current time."""


class TimestampError(ClaimError, code="stale_timestamp"):
    """The signature's time is outside the tolerance, or it has expired or is not valid yet."""


class IssuerError(ClaimError, code="wrong_issuer"):
    """The signature's issuer is not the trusted sender."""


class AudienceError(ClaimError, code="wrong_audience"):
    """The signature is for another webhook."""


class TokenError(InboundError, code="invalid_token", status=401):
    """The notification token or static credential is missing or wrong."""


class KeysUnavailableError(InboundError, code="keys_unavailable", status=503):
    """No usable key of this sender is loaded, so its signature cannot be judged."""


# --- the page of the codes ----------------------------------------------------------------------


class CodeTable(StrEnum):
    """The tables of the page; one code may have a row in several."""

    REFUSAL = "refusal"  # what the receiver answers
    DELIVERY = "delivery"  # why a delivery failed
    ERROR = "error"  # the errors of the packages


def anchor_of(table: CodeTable, code: str) -> str:
    """Return the anchor of a code's row."""
    return f"{table}-{code}"


def page_of(table: CodeTable, code: str) -> str:
    """Return where a code is explained, from the root of the tree."""
    return f"docs/reference/codes.md#{anchor_of(table, code)}"
