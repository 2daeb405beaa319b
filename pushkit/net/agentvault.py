"""The `authSchemes` of an AgentVault agent card (profile 0.2), as credentials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pushkit.a2a import Authentication
from pushkit.bounded_json import JsonValue
from pushkit.errors import ConfigError
from pushkit.net.authorization import DestinationCredentials
from pushkit.net.oauth import ClientAuthentication, OAuthClient

__all__ = ["agentvault_credentials"]


def agentvault_credentials(
    origin: str,
    auth_schemes: Sequence[Mapping[str, JsonValue]],
    *,
    owner: str | None = None,
    tenant: str = "",
    api_key: str | None = None,
    token: str | None = None,
    client_id: str | None = None,
    client_secret: str | None = None,
) -> DestinationCredentials | None:
    """Return the credentials for the first of a card's schemes that what is given satisfies.

    Believe no card that is not verified: `tokenUrl` is where the client's secret is sent.

    Args:
        origin: The destination that the credentials are for.
        auth_schemes: `authSchemes` of the card, in its order.
        owner: For this owner's subscriptions alone.
        tenant: The owner's tenant.
        api_key: For `apiKey`, sent as `X-Api-Key`.
        token: For `bearer`.
        client_id: For `oauth2`, with `client_secret`.
        client_secret: For `oauth2`.

    Returns:
        None if the scheme is `none`.

    Raises:
        ConfigError: None of the schemes is satisfied, or one is malformed.
    """
    for scheme in auth_schemes:
        authentication, oauth = None, None
        name = scheme.get("scheme")
        match name.lower() if isinstance(name, str) else name:
            case "none":
                return None
            case "apikey" if api_key:
                authentication = Authentication(schemes=("ApiKey",), credentials=api_key)
            case "bearer" if token:
                authentication = Authentication(schemes=("Bearer",), credentials=token)
            case "oauth2" if client_id and client_secret:
                oauth = _oauth(scheme, client_id, client_secret)
            case _:
                continue
        return DestinationCredentials(
            origin=origin, owner=owner, tenant=tenant, authentication=authentication, oauth=oauth
        )
    asked = ", ".join(repr(scheme.get("scheme")) for scheme in auth_schemes) or "nothing"
    raise ConfigError(
        f"authSchemes: the card asks for {asked}: expected an api_key for apiKey, a token for"
        " bearer, or client_id and client_secret for oauth2"
    )


def _oauth(scheme: Mapping[str, JsonValue], client_id: str, client_secret: str) -> OAuthClient:
    token_url, scopes = scheme.get("tokenUrl"), scheme.get("scopes") or []
    if not isinstance(token_url, str):
        raise ConfigError("authSchemes: oauth2: expected a tokenUrl")
    if not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
        raise ConfigError("authSchemes: oauth2: scopes: expected a list of strings")
    return OAuthClient(
        token_url=token_url,
        client_id=client_id,
        client_secret=client_secret,
        scope=" ".join(str(scope) for scope in scopes),
        authentication=ClientAuthentication.POST,  # as the profile has it
    )
