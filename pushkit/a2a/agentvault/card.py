"""`authSchemes` of an AgentVault card: how that agent, or its webhook, wants to be called.

AgentVault's webhooks come with a URL alone; what authenticates the caller is on the card (profile
0.2, §Authentication).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pushkit.a2a.config import Authentication
from pushkit.a2a.kinds import EXACT_TEXT, TEXT, TEXTS, many
from pushkit.a2a.table import Member, Need, Table, reading
from pushkit.bounded_json import JsonValue
from pushkit.errors import InvalidPushConfigError

__all__ = ["AuthScheme", "parse_auth_schemes"]

_AUTHORIZATION_SCHEMES = {"apiKey": "ApiKey", "bearer": "Bearer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthScheme:
    """One way to authenticate.

    Attributes:
        scheme: `none`, `apiKey`, `bearer` or `oauth2`.
        token_url: Of `oauth2`: where client credentials become an access token.
        scopes: Of `oauth2`.
        service_identifier: Under which name the caller keeps its secret.
    """

    scheme: str
    token_url: str | None = None
    scopes: tuple[str, ...] = ()
    service_identifier: str | None = None

    def authentication(self, credentials: str) -> Authentication:
        """Return the authentication of a `PushConfig`, for a scheme with a static secret.

        Raises:
            InvalidPushConfigError: Of another scheme, or credentials that cannot be a header value.
        """
        scheme = _AUTHORIZATION_SCHEMES.get(self.scheme)
        if scheme is None:
            raise InvalidPushConfigError(
                f"authSchemes: {self.scheme} has no static credentials, expected apiKey or bearer"
            )
        return Authentication(schemes=(scheme,), credentials=credentials)


_AUTH_SCHEME = Table(
    AuthScheme,
    Member("scheme", "scheme", EXACT_TEXT, Need.BOTH),
    Member("token_url", "tokenUrl", TEXT),
    Member("scopes", "scopes", TEXTS),
    Member("service_identifier", "serviceIdentifier", TEXT),
    extra="",
)
_CARD = Table(dict, Member("auth_schemes", "authSchemes", many(_AUTH_SCHEME)), extra="")
_KNOWN = frozenset({"none", "oauth2", *_AUTHORIZATION_SCHEMES})


def parse_auth_schemes(card: Mapping[str, JsonValue]) -> list[AuthScheme]:
    """Read the `authSchemes` of an AgentVault card that are known, in the card's order.

    Raises:
        InvalidPushConfigError: A member is of a wrong type, or `oauth2` has no `tokenUrl`.
    """
    with reading(InvalidPushConfigError):
        found: dict[str, tuple[AuthScheme, ...]] = _CARD.read(dict(card))
    schemes = [each for each in found.get("auth_schemes", ()) if each.scheme in _KNOWN]
    if any(each.scheme == "oauth2" and not each.token_url for each in schemes):
        raise InvalidPushConfigError("authSchemes: oauth2 needs a tokenUrl")
    return schemes
