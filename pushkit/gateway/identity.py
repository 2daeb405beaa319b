"""Who a caller is, if that can be trusted: the owner of its push configs."""

from __future__ import annotations

import contextlib
import functools
from typing import Final

import jwt

from pushkit.errors import ConfigError
from pushkit.gateway.options import GatewayOptions
from pushkit.net.jwks_client import JwksClient, fetch_jwks
from pushkit.net.transport import Transport
from pushkit.peers import Peers
from pushkit.webhook import Headers

_MOST_CHARS: Final = 512
# What proxies say about a request's client: nobody else's word is passed on.
_OF_PROXIES: Final = frozenset({"forwarded", "x-real-ip", "x-client-cert"})


class Identity:
    """Names the owner of a request.

    Raises:
        ConfigError: Nothing says who a caller is, or two things do; or a setting is malformed.
    """

    def __init__(self, options: GatewayOptions, transport: Transport) -> None:
        ways = [
            name
            for name, given in (
                ("--identity-jwks", options.identity_jwks),
                ("--identity-header", options.identity_header),
                ("--shared-configs", options.shared_configs),
            )
            if given
        ]
        if len(ways) != 1:
            raise ConfigError(
                f"identity: found {' and '.join(ways) or 'nothing that says who a caller is'},"
                " expected one of --identity-jwks, --identity-header and --shared-configs"
            )
        if options.identity_header and not options.trusted_proxies:
            raise ConfigError(
                "identity: --identity-header is believed from trusted proxies alone: give"
                " --trusted-proxy"
            )
        self._options = options
        self._header = (options.identity_header or "").lower()
        self.peers: Final = Peers(options.trusted_proxies)
        self._keys: JwksClient | None = None
        if options.identity_jwks is not None:
            transport.policy.check(options.identity_jwks)
            fetch = functools.partial(fetch_jwks, transport)
            self._keys = JwksClient(options.identity_jwks, fetch=fetch)

    def may_pass(self, name: str, *, from_proxy: bool) -> bool:
        """Return whether a header field may go to the agent."""
        lower = name.lower().replace("_", "-")  # agents of CGI and WSGI see no difference
        named_by_proxies = (
            lower == self._header.replace("_", "-")
            or lower in _OF_PROXIES
            or lower.startswith("x-forwarded-")
        )
        return from_proxy or not named_by_proxies

    async def owner_of(self, headers: Headers, address: str) -> str | None:
        """Return the owner; None if the caller is not known, or says twice who it is.

        Raises:
            KeysUnavailableError: The keys of the tokens cannot be had at the moment.
        """
        if self._options.shared_configs:
            return ""
        if self._keys is None:
            found = _only(headers, self._header) if self.peers.is_proxy(address) else ""
            return found if _is_name(found) else None
        scheme, _, token = _only(headers, "authorization").partition(" ")
        if scheme.lower() != "bearer":
            return None
        return await self._proven(token.strip(), self._keys)

    async def _proven(self, token: str, keys: JwksClient) -> str | None:
        try:
            kid = jwt.get_unverified_header(token).get("kid")
        except jwt.PyJWTError:
            return None
        for key in await keys.find(kid) if isinstance(kid, str) else ():
            with contextlib.suppress(jwt.PyJWTError):  # another key may have the same kid
                claims = jwt.decode(
                    token,
                    key.public_key,
                    algorithms=[key.algorithm.value],
                    issuer=self._options.identity_issuer,
                    audience=self._options.identity_audience,
                    leeway=60,
                    options={
                        "require": ["exp", self._options.identity_claim],
                        "verify_aud": self._options.identity_audience is not None,
                    },
                )
                owner = claims[self._options.identity_claim]
                return owner if _is_name(owner) else None
        return None

    async def close(self) -> None:
        """Stop fetching keys."""
        if self._keys is not None:
            await self._keys.close()


def _only(headers: Headers, name: str) -> str:
    """Return the value of a field; empty if it is missing, or there twice."""
    values = headers.all(name)
    return values[0] if len(values) == 1 else ""


def _is_name(found: object) -> bool:
    return isinstance(found, str) and 0 < len(found) <= _MOST_CHARS and found.isprintable()
