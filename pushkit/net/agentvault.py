"""The `authSchemes` of an AgentVault agent card (profile 0.2), as credentials."""

from __future__ import annotations

from collections.abc import Mapping

from pushkit.a2a import AuthScheme, parse_auth_schemes
from pushkit.bounded_json import JsonValue
from pushkit.errors import ConfigError
from pushkit.net.authorization import DestinationCredentials
from pushkit.net.oauth import ClientAuthentication, OAuthClient


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
    """Return the credentials for the first of a card's schemes that what is given satisfies.

    Believe no card that is not verified: `tokenUrl` is where the client's secret is sent.

    Args:
        origin: The destination that the credentials are for.
        card: The card, for its `authSchemes`.
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
    static = {"apiKey": api_key, "bearer": token}
    schemes = parse_auth_schemes(card)
    for scheme in schemes:
        if scheme.scheme == "none":
            return None
        if secret := static.get(scheme.scheme):
            return DestinationCredentials(
                origin=origin,
                owner=owner,
                tenant=tenant,
                authentication=scheme.authentication(secret),
            )
        if scheme.token_url and client_id and client_secret:
            oauth = _oauth(scheme, scheme.token_url, client_id, client_secret)
            return DestinationCredentials(origin=origin, owner=owner, tenant=tenant, oauth=oauth)
    asked = ", ".join(scheme.scheme for scheme in schemes) or "nothing that is known"
    raise ConfigError(
        f"authSchemes: the card asks for {asked}: expected an api_key for apiKey, a token for"
        " bearer, or client_id and client_secret for oauth2"
    )


def _oauth(scheme: AuthScheme, token_url: str, client_id: str, client_secret: str) -> OAuthClient:
    return OAuthClient(
        token_url=token_url,
        client_id=client_id,
        client_secret=client_secret,
        scope=" ".join(scheme.scopes),
        authentication=ClientAuthentication.POST,  # as the profile has it
    )
