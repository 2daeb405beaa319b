"""`TrustedSender`: an agent that may send notifications, as the operator configured it.

A message only selects one of these, see `receiver.selection`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote

from pushkit.bounded_json import JsonValue
from pushkit.clock import LONGEST_TOLERANCE, TOLERANCE
from pushkit.errors import ConfigError
from pushkit.keys.jwk import Algorithm, VerificationKey
from pushkit.options import Bounds, Count, check_options, check_type
from pushkit.signing.scheme import Scheme
from pushkit.signing.standard_webhooks import WebhookVerifier, read_verifier
from pushkit.url import audience_of
from pushkit.webhook import hash_credentials, hash_token
from receiver.limits import RateLimit

if TYPE_CHECKING:
    from pushkit.schemas import CardSchemas

DEFAULT_PATH = "/a2a/push"

_JWT_ALONE = frozenset({Scheme.JWT})
_BY_KEY = frozenset({Scheme.JWT, Scheme.HTTP_MESSAGE_SIGNATURES})

# No database takes a NUL and a lone surrogate, and a line break ends the name in the id of a queue.
_IN_NO_NAME = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_IN_A_HEADER = re.compile(r"[!-~](?:[ -~]*[!-~])?")
# RFC 3986 §3.3, without a query; braces would make it a pattern of aiohttp's router.
_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*")
# RFC 9110 §5.6.2: a token; RFC 6901 §3: a pointer.
_ID_FIELD = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+|(?:/(?:[^~/]|~[01])*)+")


class SenderProfile(StrEnum):
    """How a sender signs."""

    STANDARD = "standard"
    """The notification JWT of pushkit: `iss`, `aud`, `iat`, `exp`, `jti` and the body's hash are
    required; `taskId`, `configId` and `seq` are used if stated."""
    A2A_SAMPLES = "a2a-samples"
    """The first A2A samples: only `iat` and the body's hash, which may be over a compact
    re-serialisation of the body. Weaker: no audience and no id."""
    TRPC_A2A_GO = "trpc-a2a-go"
    """trpc-a2a-go: only `iat` and the hash of the raw body."""
    UNSIGNED_SECRET_ONLY = "unsigned-secret-only"  # noqa: S105  # a profile's name
    """No signature: unmodified A2A SDKs send only a token, or a static `Authorization`. Anybody who
    learns that secret can forge notifications, and changes to a body on its way are not detected.
    """

    @property
    def signed(self) -> bool:
        """Whether there is a signature to verify."""
        return self is not SenderProfile.UNSIGNED_SECRET_ONLY


class TaskPolicy(StrEnum):
    """Which tasks a sender may send updates of (A2A §4.3.3: the client must check)."""

    REGISTERED = "registered"
    """Tokens and tasks that were registered with `expect()`."""
    BIND = "bind"
    """The first notification with a token binds its task to it."""
    ANY = "any"
    """Every task: signature and token alone decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedSender:
    """One agent that may send notifications.

    Exactly one of `jwks_url`, `jwks_file` and `keys` says which keys it signs with. A sender that
    does not sign, or by Standard Webhooks alone, has no such keys; it needs a path of its own,
    since nothing else identifies it.

    Attributes:
        name: Short and unique: for logs, callbacks and the inbox.
        issuer: The `iss` that it states; required in the standard profile if it signs by a JWT.
        jwks_url: The URL of its JWK Set, pinned.
        stale_for: How long its JWK Set may be used after it ceased to be fresh, while fetches fail;
            a revoked key is accepted for as long. After that its requests are answered 503.
        jwks_file: A JWK Set in a file.
        keys: Keys that are loaded already.
        path: Where its notifications arrive.
        audience: URLs that its `aud` may name; by default the receiver's own URL and this path.
        profile: How it signs.
        schemes: The signatures that must all be valid; others that it sends are ignored. Standard
            Webhooks alone proves no audience: a notification for another receiver with the same
            secret can be replayed to this one, and the other way round.
        webhook_secrets: For Standard Webhooks, `whsec_…` (v1) or `whpk_…` (v1a); a signature by one
            of them is enough, so that a secret can be replaced.
        algorithms: The algorithms that it may sign with. An RSA key without `alg` is for RS256, or
            for PS256 if that is the only one of them here.
        tolerance: How far the signed time may be from the current time.
        tokens: Static tokens that it was given out of band.
        token_required: Whether a notification without a token is refused.
        credentials: Static `Authorization` values (`Bearer abc`) or API keys that it was given; if
            there are any, each request must bring one.
        tasks: Which tasks it may send updates of.
        max_body_bytes: Its largest body; None for the receiver's own limit, which is a maximum.
        rate: How much it may send; None for the receiver's own `sender_rate`.
        id_field: For an unsigned sender, where the delivery id is: a header (`X-Event-Id`), or a
            member of the body as a JSON Pointer (`/statusUpdate/metadata/eventId`). Without it, and
            without a `webhook-id`, such a sender's repetitions are not recognised.
        card: Its agent card, verified by the operator (`receiver pin`): data parts are validated
            against the schemas in it.
        schemas: Those schemas. This and the next five attributes are derived from the others.
        verifiers: The verifiers of Standard Webhooks signatures.
        token_hashes: The SHA-256 of each static token.
        credential_hashes: The SHA-256 of each static `Authorization` value or API key.
        audiences: The URLs that its `aud` may name, normalised; empty for the receiver's own URL.
        signing: The schemes by which it must sign; empty if it does not sign.
    """

    name: str
    issuer: str | None = None
    jwks_url: str | None = field(default=None, repr=False)
    stale_for: Annotated[timedelta, Bounds(least=timedelta(0), most=timedelta(days=7))] = timedelta(
        hours=1
    )
    jwks_file: Path | str | None = None
    keys: Collection[VerificationKey] | None = None
    path: str = DEFAULT_PATH
    audience: Sequence[str] = ()
    profile: SenderProfile = SenderProfile.STANDARD
    schemes: Collection[Scheme] = _JWT_ALONE
    webhook_secrets: Sequence[str] = field(default=(), repr=False)
    algorithms: frozenset[Algorithm] = frozenset(Algorithm)
    tolerance: Annotated[timedelta, Bounds(above=timedelta(0), most=LONGEST_TOLERANCE)] = TOLERANCE
    tokens: Sequence[str] = field(default=(), repr=False)
    token_required: bool = True
    credentials: Sequence[str] = field(default=(), repr=False)
    tasks: TaskPolicy = TaskPolicy.REGISTERED
    max_body_bytes: Count | None = None
    rate: RateLimit | None = None
    id_field: str | None = None
    card: Mapping[str, JsonValue] | None = field(default=None, repr=False)
    schemas: CardSchemas | None = field(init=False, repr=False, compare=False)
    verifiers: tuple[WebhookVerifier, ...] = field(init=False, repr=False, compare=False)
    token_hashes: frozenset[str] = field(init=False, repr=False, compare=False)
    credential_hashes: frozenset[str] = field(init=False, repr=False, compare=False)
    audiences: tuple[str, ...] = field(init=False, repr=False, compare=False)
    signing: frozenset[Scheme] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        put = functools.partial(object.__setattr__, self)
        check_type("sender: name", self.name, str)
        check_options(self, of=f"sender {self.name!r}: ")
        if self.jwks_file is not None:
            put("jwks_file", Path(self.jwks_file))
        put("signing", frozenset(self.schemes if self.profile.signed else ()))
        for mistake in _mistakes_of(self):
            raise ConfigError(f"sender {self.name!r}: {mistake}")
        try:
            put("audiences", tuple(map(audience_of, self.audience)))
            put("verifiers", _verifiers_of(self.webhook_secrets))
            put("schemas", None if self.card is None else _schemas_of(self.card))
        except ConfigError as exc:
            raise ConfigError(f"sender {self.name!r}: {exc}") from exc
        put("token_hashes", frozenset(map(hash_token, self.tokens)))
        put("credential_hashes", frozenset(map(hash_credentials, self.credentials)))

    @property
    def has_keys(self) -> bool:
        """Whether it signs with keys of a JWK Set."""
        return not self.signing.isdisjoint(_BY_KEY)


def _verifiers_of(secrets: Sequence[str]) -> tuple[WebhookVerifier, ...]:
    try:
        return tuple(map(read_verifier, secrets))
    except ConfigError as exc:
        raise ConfigError(f"webhook_secrets: {exc}") from exc


def _schemas_of(card: Mapping[str, JsonValue]) -> CardSchemas:
    from pushkit.schemas import CardSchemas  # most senders have no card here

    try:
        return CardSchemas.of_card(card)
    except ConfigError as exc:
        raise ConfigError(f"card: {exc}") from exc


def _mistakes_of(sender: TrustedSender) -> Iterable[str]:
    yield from (
        _mistakes_of_signed(sender) if sender.profile.signed else _mistakes_of_unsigned(sender)
    )
    if not sender.name:
        yield "name: found none, expected a short name"
    elif _IN_NO_NAME.search(sender.name):
        yield "name: expected it without line breaks and other control characters"
    if not _PATH.fullmatch(sender.path):
        yield "path: expected it to start with /, without query or braces"
    # An empty secret, from a variable that is not set, would be known to everybody.
    secrets = (*sender.tokens, *sender.credentials)
    if not all(secret.strip() for secret in secrets):
        yield "an empty token or credential"
    elif not all(map(_IN_A_HEADER.fullmatch, secrets)):
        yield (
            "a token or credential that no header can carry: expected printable ASCII, without"
            " spaces or line breaks around it"
        )


def _sources(sender: TrustedSender) -> int:
    return sum(source is not None for source in (sender.jwks_url, sender.jwks_file, sender.keys))


def _mistakes_of_signed(sender: TrustedSender) -> Iterable[str]:
    if not sender.schemes:
        yield f"schemes: found none, expected at least one of {', '.join(Scheme)}"
    if sender.profile is not SenderProfile.STANDARD and sender.schemes != _JWT_ALONE:
        yield f"schemes: profile {sender.profile.value} signs by the JWT alone"
    if bool(sender.webhook_secrets) != (Scheme.STANDARD_WEBHOOKS in sender.signing):
        yield f"webhook_secrets: expected with scheme {Scheme.STANDARD_WEBHOOKS}, and only there"
    if sender.has_keys and _sources(sender) != 1:
        yield "expected exactly one of jwks_url, jwks_file and keys"
    if not sender.has_keys and _sources(sender):
        yield f"expected no keys: {Scheme.STANDARD_WEBHOOKS} has webhook_secrets"
    if sender.has_keys and not sender.algorithms:
        yield "algorithms: found none, expected at least one"
    standard = sender.profile is SenderProfile.STANDARD
    if standard and Scheme.JWT in sender.signing and not sender.issuer:
        yield "issuer: found none, expected the `iss` that the sender states"
    if sender.id_field is not None:
        yield "id_field: found one, expected none: only an unsigned sender needs it"


def _mistakes_of_unsigned(sender: TrustedSender) -> Iterable[str]:
    if _sources(sender) or sender.issuer or sender.audience:
        yield f"{sender.profile.value}: expected no keys, issuer or audience: it does not sign"
    if sender.schemes != _JWT_ALONE or sender.webhook_secrets:
        yield f"{sender.profile.value}: expected no schemes or webhook_secrets: it does not sign"
    if sender.id_field is not None and not _ID_FIELD.fullmatch(sender.id_field):
        yield "id_field: expected a header's name, or a JSON Pointer that begins with /"


def choose_sender(
    name: str | None, senders: Iterable[TrustedSender], *, setting: str
) -> TrustedSender:
    """Return the sender of that name; without a name, the only one.

    Raises:
        ConfigError: There is none of that name, or no name but more than one sender.
    """
    found = {sender.name: sender for sender in senders}
    if name is None and len(found) == 1:
        [name] = found
    if name is None or name not in found:
        given = "none" if name is None else repr(name)
        raise ConfigError(f"{setting}: found {given}, expected one of {', '.join(found)}")
    return found[name]


def check_senders(senders: Sequence[TrustedSender]) -> None:
    """Refuse senders that cannot be distinguished.

    Raises:
        ConfigError: Two senders have one name, one path is spelled in two ways, or a sender without
            a named key shares its path.
    """
    names = [sender.name for sender in senders]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two senders are called {name!r}, expected different names")
    paths = [sender.path for sender in senders]
    # A request's path is compared decoded: two spellings would be ambiguous.
    spelt: dict[str, str] = {}
    for path in paths:
        if (other := spelt.setdefault(unquote(path), path)) != path:
            raise ConfigError(f"paths {other} and {path} are one path: expected one spelling of it")
    for sender in senders:
        if not sender.has_keys and paths.count(sender.path) > 1:
            how = "signs without naming a key" if sender.profile.signed else "does not sign"
            raise ConfigError(
                f"sender {sender.name!r}: it {how}, and shares its path {sender.path}:"
                " expected a path of its own, since nothing else identifies it"
            )


def check_memory(senders: Iterable[TrustedSender], remembered: timedelta) -> None:
    """Refuse a memory of ids that is shorter than a captured request stays valid.

    Raises:
        ConfigError: A notification of one of them could be replayed after its id was forgotten.
    """
    for sender in senders:
        # A request may be signed one tolerance ahead of our clock, and is valid for one after it.
        if sender.profile.signed and 2 * sender.tolerance > remembered:
            raise ConfigError(
                f"sender {sender.name!r}: tolerance: found {sender.tolerance}, expected at most"
                f" half of the {remembered} that ids are remembered for, or a captured request"
                " could be replayed once its id is forgotten"
            )
