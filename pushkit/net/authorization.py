"""How this sender authenticates itself to a destination (wire profile §2).

A client hands in credentials with its subscription, and the operator configures credentials for a
destination. If both fill the same header, the client's are sent.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import quote_plus, urlencode

from pushkit.a2a.kinds import EXACT_TEXT, TEXT, TEXTS, many
from pushkit.a2a.push_config import Authentication
from pushkit.a2a.table import Member, Need, Table, json_object, reading
from pushkit.bounded_json import JsonObject, JsonValue, read_json_object
from pushkit.errors import (
    ConfigError,
    DestinationRefusedError,
    InvalidPushConfigError,
    MalformedJsonError,
    OAuthError,
)
from pushkit.keys.jwk import expiry_of_certificate
from pushkit.net.connection import HttpAnswer
from pushkit.net.destination import SENDER_ALLOW, Destination, DestinationPolicy
from pushkit.net.tls import ClientCertificate, tls_context
from pushkit.net.transport import Transport
from pushkit.options import check_options
from pushkit.record import record
from pushkit.scheduling.renewing import CachedValue, Renewing
from pushkit.version import USER_AGENT

_API_KEY = "apikey"
_AUTHORIZATION = "Authorization"


def credential_header(authentication: Authentication | None) -> tuple[str, str] | None:
    """Return the header field that carries static credentials, or None.

    `Authorization` is exactly `{scheme} {credentials}` (A2A 1.0 §4.3.3); an API key travels in
    `X-Api-Key`. A scheme without credentials has no header.
    """
    if authentication is None or not authentication.scheme or not authentication.credentials:
        return None
    if authentication.scheme.lower() == _API_KEY:
        return ("X-Api-Key", authentication.credentials)
    return (_AUTHORIZATION, f"{authentication.scheme} {authentication.credentials}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationCredentials:
    """The operator's credentials for one destination.

    They are sent to every URL that a client registers at the origin: if strangers share the origin,
    name the owner.

    Raises:
        ConfigError: Static credentials and OAuth fill the same header.
    """

    origin: str  # `https://client.example.com`, with its port if that is not 443
    owner: str | None = None  # only for this owner's subscriptions; None for all
    tenant: str = ""  # the owner's
    authentication: Authentication | None = None  # static, of any scheme: Bearer, Basic, ApiKey, …
    oauth: OAuthClient | None = None  # fetches tokens, which are sent as Bearer
    client_certificate: ClientCertificate | None = None  # for mutual TLS
    ca_file: Path | None = None  # roots in PEM that are trusted there, instead of all others

    def __post_init__(self) -> None:
        header = credential_header(self.authentication)
        if self.authentication is not None and header is None:
            raise ConfigError(f"{self.origin}: authentication: expected a scheme and credentials")
        if self.oauth is not None and header is not None and header[0] == _AUTHORIZATION:
            raise ConfigError(f"{self.origin}: expected either static credentials or oauth")


@record(frozen=True, slots=True, kw_only=True)
class ReadyCredentials:
    """The operator's credentials, ready for the requests of one subscription."""

    tls: ssl.SSLContext | None = None  # None for the transport's own context
    certificate: Path | None = None  # the file of the client certificate in `tls`
    certificate_expires_at: datetime | None = None
    static: tuple[str, str] | None = field(default=None, repr=False)  # a header field
    tokens: OAuthTokens | None = None  # fetches the tokens for `Authorization: Bearer`


class Credentials:
    """The operator's credentials for all destinations and owners.

    Raises:
        ConfigError: An origin is malformed or repeated, or a file cannot be used.
    """

    def __init__(
        self,
        configured: Sequence[DestinationCredentials],
        transport: Transport,
        clock: Callable[[], datetime],
    ) -> None:
        self._tokens: dict[OAuthClient, OAuthTokens] = {}
        self._by_key: dict[tuple[str, tuple[str, str] | None], ReadyCredentials] = {}
        for each in configured:
            owner = None if each.owner is None else (each.tenant, each.owner)
            key = (_origin(each.origin, transport.policy), owner)
            if key in self._by_key:
                raise ConfigError(f"credentials: {each.origin}: found twice for the same owner")
            tokens = None
            if each.oauth is not None:  # report a wrong URL now, not at the first delivery
                transport.policy.check(each.oauth.token_url)
                known = self._tokens.get(each.oauth)
                tokens = known or OAuthTokens(each.oauth, transport, clock)
                self._tokens[each.oauth] = tokens
            tls = _tls(each, transport.options.ca_file)
            client = each.client_certificate
            certificate = client.certificate if client else None
            self._by_key[key] = ReadyCredentials(
                tls=tls,
                certificate=certificate,
                certificate_expires_at=expiry_of_certificate(certificate) if certificate else None,
                static=credential_header(each.authentication),
                tokens=tokens,
            )

    def access_for(
        self,
        destination: Destination,
        owner: tuple[str, str],
        *,
        clients: tuple[str, str] | None = None,
    ) -> ReadyCredentials:
        """Return the operator's credentials for a subscription of an owner (tenant and name).

        `clients` is the header field of the client's own credentials, which the operator's do not
        replace.
        """
        origin = destination.origin
        found = self._by_key.get((origin, owner)) or self._by_key.get((origin, None))
        if found is None:
            return ReadyCredentials()
        taken = clients[0] if clients else None
        return replace(
            found,
            static=None if found.static and found.static[0] == taken else found.static,
            tokens=None if taken == _AUTHORIZATION else found.tokens,
        )

    async def close(self) -> None:
        """Cancel the fetches in progress."""
        await asyncio.gather(*(tokens.close() for tokens in self._tokens.values()))


def _tls(each: DestinationCredentials, ca_file: Path | None) -> ssl.SSLContext | None:
    client, own = each.client_certificate, each.ca_file
    if client is None and own is None:
        return None
    return tls_context(client=client, ca_file=own or ca_file, system_roots=own is None)


def _origin(url: str, policy: DestinationPolicy) -> str:
    try:
        destination = policy.check(url)
    except DestinationRefusedError as exc:
        advice = exc.advice(SENDER_ALLOW)
        raise ConfigError(f"credentials: origin: {exc}{advice}") from exc
    if destination.url.target != "/":
        raise ConfigError("credentials: origin: expected https://host[:port] without a path")
    return destination.origin


# --- by the `authSchemes` of an AgentVault card (profile 0.2, §Authentication) ------------------
# They say how callers of the agent, or of its webhook, authenticate. The format of AgentVault's
# notifications is in `pushkit.a2a.agentvault`.

_AUTHORIZATION_SCHEMES = {"apiKey": "ApiKey", "bearer": "Bearer"}
_KNOWN = frozenset({"none", "oauth2", *_AUTHORIZATION_SCHEMES})


@record(frozen=True, slots=True, kw_only=True)
class AuthScheme:
    """One way to authenticate."""

    scheme: str  # `none`, `apiKey`, `bearer` or `oauth2`
    token_url: str | None = None  # of `oauth2`: the token endpoint
    scopes: tuple[str, ...] = ()  # of `oauth2`
    service_identifier: str | None = None  # the name under which the caller keeps its secret


_AUTH_SCHEME = Table(
    AuthScheme,
    Member("scheme", "scheme", EXACT_TEXT, Need.BOTH),
    Member("token_url", "tokenUrl", TEXT),
    Member("scopes", "scopes", TEXTS),
    Member("service_identifier", "serviceIdentifier", TEXT),
    extra="",
)
_CARD = Table(dict, Member("auth_schemes", "authSchemes", many(_AUTH_SCHEME)), extra="")


def parse_auth_schemes(card: Mapping[str, JsonValue]) -> list[AuthScheme]:
    """Read the known `authSchemes` of an AgentVault card, in the card's order.

    Raises:
        InvalidPushConfigError: A member is of a wrong type, or `oauth2` has no `tokenUrl`.
    """
    with reading(InvalidPushConfigError):
        found: dict[str, tuple[AuthScheme, ...]] = _CARD.read(json_object(card))
    schemes = [each for each in found.get("auth_schemes", ()) if each.scheme in _KNOWN]
    if any(each.scheme == "oauth2" and not each.token_url for each in schemes):
        raise InvalidPushConfigError("authSchemes: oauth2 needs a tokenUrl")
    return schemes


def agentvault_credentials(
    origin: str,
    card: Mapping[str, JsonValue],
    *,
    owner: str | None = None,
    tenant: str = "",
    api_key: str | None = None,
    token: str | None = None,
    client_id: str | None = None,
    client_secret: str | None = None,
) -> DestinationCredentials | None:
    """Return credentials for the first of a card's schemes that the arguments satisfy.

    The scheme `apiKey` needs an `api_key`, sent as `X-Api-Key`; `bearer` a `token`; `oauth2`
    `client_id` and `client_secret`; `none` needs nothing, and the result is None. The credentials
    are for one destination (`origin`), and with an `owner` for that owner's subscriptions alone.

    Verify the card first: the client's secret is sent to its `tokenUrl`.

    Raises:
        ConfigError: The arguments satisfy none of the schemes, or one is malformed.
    """
    static, oauth = None, None
    schemes = parse_auth_schemes(card)
    for each in schemes:
        if each.scheme == "none":
            return None
        if secret := {"apiKey": api_key, "bearer": token}.get(each.scheme):
            scheme = _AUTHORIZATION_SCHEMES[each.scheme]
            static = Authentication(schemes=(scheme,), credentials=secret)
            break
        if each.scheme == "oauth2" and each.token_url and client_id and client_secret:
            oauth = OAuthClient(
                token_url=each.token_url,
                client_id=client_id,
                client_secret=client_secret,
                scope=" ".join(each.scopes),
                authentication=ClientAuthentication.POST,  # as the profile says
            )
            break
    else:
        listed = ", ".join(each.scheme for each in schemes) or "no known scheme"
        raise ConfigError(
            f"authSchemes: the card asks for {listed}: expected an api_key for apiKey, a token for"
            " bearer, or client_id and client_secret for oauth2"
        )
    return DestinationCredentials(
        origin=origin, owner=owner, tenant=tenant, authentication=static, oauth=oauth
    )


# --- tokens for destinations: OAuth 2.0 client credentials (RFC 6749 §4.4) -----------------------

_FETCH_TIMEOUT: Final = timedelta(seconds=10)
# RFC 6749 §5.1: without `expires_in`, the server documents its default; this one is cautious.
_DEFAULT_LIFE: Final = timedelta(minutes=5)
_LONGEST_LIFE: Final = timedelta(days=1)
# A token is renewed this long before its end, but not before four fifths of its life are over. It
# is used meanwhile, except in the last seconds, when it may expire before the destination reads it.
_RENEWED_BEFORE: Final = timedelta(seconds=60)
_UNUSED_BEFORE: Final = timedelta(seconds=5)
# RFC 6749 appendix A: VSCHAR without the space, because it travels in a header (RFC 6750 §2.1).
_VISIBLE: Final = re.compile(r"[\x21-\x7e]{1,8192}")
# RFC 6749 §5.2. Messages quote only these words, and no other text of a server.
# fmt: off
_KNOWN_ERRORS: Final = frozenset({
    "invalid_client", "invalid_grant", "invalid_request", "invalid_scope", "invalid_target",
    "unauthorized_client", "unsupported_grant_type",
})
# fmt: on


class ClientAuthentication(StrEnum):
    """How a client authenticates to the token endpoint (RFC 6749 §2.3.1)."""

    BASIC = "client_secret_basic"
    POST = "client_secret_post"


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthClient:
    """This sender's registration at an authorization server.

    Raises:
        ConfigError: The URL, the id or the secret is missing or not printable, or the
            authentication is unknown.
    """

    token_url: str = field(repr=False)  # under the same rules as every destination
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""  # the requested scopes, separated by spaces
    audience: str = ""  # the token's audience, for servers that need it
    resource: str = ""  # the same by RFC 8707: a URI
    # Whether id and secret travel in a header or in the body.
    authentication: ClientAuthentication | str = ClientAuthentication.BASIC

    def __post_init__(self) -> None:
        check_options(self, of="oauth: ")
        for name in ("token_url", "client_id", "client_secret"):
            value = getattr(self, name)
            if not value or not value.isprintable():  # for example with a line break at its end
                raise ConfigError(f"oauth: {name}: expected printable characters")


class OAuthTokens:
    """The token of one client, fetched when it is needed (see `pushkit.scheduling.renewing`).

    In the last minute of its life a token is still used, and the next one is fetched meanwhile. The
    transport's destination policy applies to the token endpoint.
    """

    def __init__(
        self, client: OAuthClient, transport: Transport, clock: Callable[[], datetime]
    ) -> None:
        self._client = client
        self._transport = transport
        self._clock = clock
        self._token = Renewing(self._fetch, clock=clock)

    async def token(self, *, timeout: timedelta) -> str:  # noqa: ASYNC109  # of this caller
        """Return a token that is valid for some seconds at least.

        Raises:
            OAuthError: No token came, or not within the timeout.
        """
        recently = " (a moment ago)" if self._token.backs_off() else ""
        token = await self._within(timeout, self._token.get())
        if token is None:
            # Always an OAuthError: the failure is not the destination's.
            raise self._error(f"{self._token.failure}{recently}") from self._token.failure
        return token

    async def replace(self, refused: str, *, timeout: timedelta) -> str:  # noqa: ASYNC109  # as above
        """Return another token than one that a destination refused, fetched once in 30 s at most.

        Until then the refused token stays in use: other destinations may accept it.

        Raises:
            OAuthError: There is no other token, or not within the timeout.
        """
        token = self._token.usable()
        if token is None or token == refused:
            token = await self._within(timeout, self._token.renew_early())
        if token is None or token == refused:
            raise self._error("the destination refused it, and there is no other one")
        return token

    async def _within(
        self,
        timeout: timedelta,  # noqa: ASYNC109  # as above
        fetch: Awaitable[str | None],
    ) -> str | None:
        try:
            async with asyncio.timeout(max(timeout.total_seconds(), 0)):
                return await fetch
        except TimeoutError as exc:
            raise self._error("no answer in time") from exc

    async def close(self) -> None:
        """Cancel a fetch in progress."""
        await self._token.close()

    async def _fetch(self, _held: CachedValue[str] | None) -> CachedValue[str]:
        started, client = self._clock(), self._client
        wanted = {
            "grant_type": "client_credentials",
            "scope": client.scope,
            "audience": client.audience,
            "resource": client.resource,
        }
        headers = [
            ("Accept", "application/json"),
            ("Accept-Encoding", "identity"),
            ("Content-Type", "application/x-www-form-urlencoded"),
            ("User-Agent", USER_AGENT),
        ]
        if client.authentication == ClientAuthentication.POST:
            wanted |= {"client_id": client.client_id, "client_secret": client.client_secret}
        else:
            headers.append(("Authorization", _basic(client)))
        body = urlencode({name: value for name, value in wanted.items() if value}).encode("ascii")
        destination = self._transport.policy.check(client.token_url)
        answer = await self._transport.post(destination, headers, body, timeout=_FETCH_TIMEOUT)
        return _read(answer, started)

    def _error(self, reason: str) -> OAuthError:
        return OAuthError(f"no token for {self._client.client_id}: {reason}")


def _read(answer: HttpAnswer, started: datetime) -> CachedValue[str]:
    if not answer.complete:
        raise OAuthError("the answer broke off, or is too long")
    try:
        document = read_json_object(answer.body)
    except MalformedJsonError as exc:
        if answer.status == 200:
            raise OAuthError("the answer is not a JSON object") from exc
        document = {}
    if answer.status != 200:
        error = document.get("error")
        shown = f" ({error})" if isinstance(error, str) and error in _KNOWN_ERRORS else ""
        raise OAuthError(f"expected status 200, found {answer.status}{shown}")
    token, kind = document.get("access_token"), document.get("token_type")
    if not isinstance(token, str) or not _VISIBLE.fullmatch(token):
        raise OAuthError("access_token: expected visible ASCII characters")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise OAuthError("token_type: expected Bearer")
    life = _life(document)
    return CachedValue(
        value=token,
        since=started,
        fresh_until=started + life - min(_RENEWED_BEFORE, life / 5),
        good_until=started + life - min(_UNUSED_BEFORE, life / 10),
    )


def _basic(client: OAuthClient) -> str:
    # RFC 6749 §2.3.1: both are form-encoded first, so that a colon in the id does not separate.
    pair = f"{quote_plus(client.client_id)}:{quote_plus(client.client_secret)}"
    return f"Basic {base64.b64encode(pair.encode('ascii')).decode('ascii')}"


def _life(document: JsonObject) -> timedelta:
    seconds = document.get("expires_in")
    if isinstance(seconds, str) and seconds.isascii() and seconds.isdigit():
        seconds = int(seconds[:10])  # some servers write it as a string
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return _DEFAULT_LIFE
    return timedelta(seconds=min(max(seconds, 0), _LONGEST_LIFE.total_seconds()))
