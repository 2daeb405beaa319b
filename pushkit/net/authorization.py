"""Who this sender is to a destination (wire profile §2).

Two kinds of credentials: those that a client handed in with its subscription, and those that the
operator configured for a destination. A client's own win where both fill the same header.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pushkit.a2a import Authentication
from pushkit.errors import ConfigError, DestinationRefusedError
from pushkit.net.destination import Destination, DestinationPolicy
from pushkit.net.oauth import OAuthClient, OAuthTokens
from pushkit.net.tls import ClientCertificate, tls_context
from pushkit.net.transport import Transport
from pushkit.record import field, record

_API_KEY = "apikey"
_AUTHORIZATION = "Authorization"


def credential_header(authentication: Authentication | None) -> tuple[str, str] | None:
    """Return the header field that carries static credentials, or None.

    `Authorization` is exactly `{scheme} {credentials}` (A2A 1.0 §4.3.3); an API key travels in
    `X-Api-Key`. A scheme without credentials gives nothing to send.
    """
    if authentication is None or not authentication.scheme or not authentication.credentials:
        return None
    if authentication.scheme.lower() == _API_KEY:
        return ("X-Api-Key", authentication.credentials)
    return (_AUTHORIZATION, f"{authentication.scheme} {authentication.credentials}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationCredentials:
    """What the operator configured for one destination.

    Whoever may register a URL at the origin gets the operator's credentials sent there: where
    strangers share an origin, name the owner.

    Raises:
        ConfigError: Static credentials and OAuth fill the same header.
    """

    origin: str  # `https://client.example.com`, with its port if that is not 443
    owner: str | None = None  # for this owner's subscriptions alone; None for everybody's
    tenant: str = ""  # the owner's
    authentication: Authentication | None = None  # static, of any scheme: Bearer, Basic, ApiKey, …
    oauth: OAuthClient | None = None  # of an authorization server; its tokens are sent as Bearer
    client_certificate: ClientCertificate | None = None  # what is shown in the TLS handshake
    ca_file: Path | None = None  # roots in PEM that are trusted there, in place of all others

    def __post_init__(self) -> None:
        header = credential_header(self.authentication)
        if self.authentication is not None and header is None:
            raise ConfigError(f"{self.origin}: authentication: expected a scheme and credentials")
        if self.oauth is not None and header is not None and header[0] == _AUTHORIZATION:
            raise ConfigError(f"{self.origin}: expected either static credentials or oauth")


@record(frozen=True, slots=True, kw_only=True)
class Access:
    """What the operator's credentials come to for one subscription."""

    # The TLS context of the destination; None for the transport's own.
    tls: ssl.SSLContext | None = None
    # The header field of static credentials.
    static: tuple[str, str] | None = field(default=None, repr=False)
    tokens: OAuthTokens | None = None  # where the tokens of `Authorization: Bearer` come from


class Credentials:
    """What the operator configured, one for each destination and owner.

    Raises:
        ConfigError: An origin is not one, comes twice, or a file cannot be used.
    """

    def __init__(
        self,
        configured: Sequence[DestinationCredentials],
        transport: Transport,
        clock: Callable[[], datetime],
    ) -> None:
        self._tokens: dict[OAuthClient, OAuthTokens] = {}
        self._by_key: dict[tuple[str, tuple[str, str] | None], Access] = {}
        for each in configured:
            owner = None if each.owner is None else (each.tenant, each.owner)
            key = (_origin(each.origin, transport.policy), owner)
            if key in self._by_key:
                raise ConfigError(f"credentials: {each.origin} comes twice for the same owner")
            tokens = None
            if each.oauth is not None:  # a wrong URL is reported now, not at the first delivery
                transport.policy.check(each.oauth.token_url)
                known = self._tokens.get(each.oauth)
                tokens = known or OAuthTokens(each.oauth, transport, clock)
                self._tokens[each.oauth] = tokens
            self._by_key[key] = Access(
                tls=_tls(each, transport.options.ca_file),
                static=credential_header(each.authentication),
                tokens=tokens,
            )

    def of(
        self,
        destination: Destination,
        owner: tuple[str, str],
        *,
        clients: tuple[str, str] | None = None,
    ) -> Access:
        """Return what the operator adds for an owner's (tenant and name) subscription, if anything.

        `clients` is the header field that the client's own credentials fill: it is theirs.
        """
        origin = destination.origin
        found = self._by_key.get((origin, owner)) or self._by_key.get((origin, None))
        if found is None:
            return Access()
        taken = clients[0] if clients else None
        return Access(
            tls=found.tls,
            static=None if found.static and found.static[0] == taken else found.static,
            tokens=None if taken == _AUTHORIZATION else found.tokens,
        )

    async def close(self) -> None:
        """End fetches that are under way."""
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
        raise ConfigError(f"credentials: origin: {exc}") from exc
    if destination.url.target != "/":
        raise ConfigError("credentials: origin: expected https://host[:port] without a path")
    return destination.origin
