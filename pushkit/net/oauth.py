"""OAuth 2.0 client credentials (RFC 6749 §4.4): tokens for destinations that require them."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from urllib.parse import quote_plus, urlencode

from pushkit.bounded_json import JsonObject, read_json_object
from pushkit.errors import ConfigError, MalformedJsonError, OAuthError
from pushkit.net.connection import HttpAnswer
from pushkit.net.transport import Transport
from pushkit.options import check_options
from pushkit.scheduling.renewing import CachedValue, Renewing
from pushkit.version import USER_AGENT

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
