"""Credentials by the `authSchemes` of an AgentVault card (profile 0.2, §Authentication).

The schemes say how callers of the agent, or of its webhook, authenticate. The format of AgentVault
notifications is in `pushkit.a2a.agentvault`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pushkit.a2a.kinds import EXACT_TEXT, TEXT, TEXTS, many
from pushkit.a2a.push_config import Authentication
from pushkit.a2a.table import Member, Need, Table, json_object, reading
from pushkit.bounded_json import JsonValue
from pushkit.errors import ConfigError, InvalidPushConfigError
from pushkit.net.authorization import DestinationCredentials
from pushkit.net.oauth import ClientAuthentication, OAuthClient
from pushkit.record import record

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
