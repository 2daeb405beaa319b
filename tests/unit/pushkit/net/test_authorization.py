from __future__ import annotations

from typing import Any

import pytest

from pushkit.a2a import Authentication
from pushkit.bounded_json import JsonValue
from pushkit.errors import InvalidPushConfigError
from pushkit.net.authorization import (
    agentvault_credentials,
    credential_header,
    parse_auth_schemes,
)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "Basic", "HMAC-SHA256", "x-anything"])
def test_authorization_is_exactly_scheme_and_credentials(scheme: str) -> None:
    authentication = Authentication(schemes=(scheme,), credentials="dXNlcjpwYXNz== a=b")
    assert credential_header(authentication) == (
        "Authorization",
        f"{scheme} dXNlcjpwYXNz== a=b",
    )


@pytest.mark.parametrize("scheme", ["ApiKey", "apiKey", "APIKEY"])
def test_an_api_key_travels_alone(scheme: str) -> None:
    authentication = Authentication(schemes=(scheme,), credentials="key")
    assert credential_header(authentication) == ("X-Api-Key", "key")


def test_the_first_of_several_schemes_is_used() -> None:
    authentication = Authentication(schemes=("Basic", "Bearer"), credentials="x")
    assert credential_header(authentication) == ("Authorization", "Basic x")


@pytest.mark.parametrize(
    "authentication",
    [
        pytest.param(None, id="nothing"),
        pytest.param(Authentication(), id="an empty one"),
        pytest.param(Authentication(schemes=("Bearer",)), id="no credentials"),
        pytest.param(Authentication(credentials="x"), id="no scheme"),
    ],
)
def test_without_credentials_there_is_nothing_to_send(
    authentication: Authentication | None,
) -> None:
    assert credential_header(authentication) is None


# --- by the card of AgentVault --------------------------------------------------------------------


def test_reads_how_an_agentvault_webhook_wants_to_be_called() -> None:
    card: dict[str, Any] = {
        "authSchemes": [
            {"scheme": "oauth2", "tokenUrl": "https://x.example/token", "scopes": ["a"]},
            {"scheme": "apiKey", "serviceIdentifier": "acme"},
            {"scheme": "telepathy"},
            {"scheme": "none"},
        ]
    }
    oauth, key, none = parse_auth_schemes(card)

    assert (oauth.token_url, oauth.scopes) == ("https://x.example/token", ("a",))
    assert key.service_identifier == "acme"
    assert parse_auth_schemes({}) == []
    assert none.scheme == "none"


@pytest.mark.parametrize(
    "schemes", [5, [5], [{"scheme": 5}], [{}], [{"scheme": "oauth2"}]], ids=repr
)
def test_refuses_auth_schemes_that_cannot_be_read(schemes: JsonValue) -> None:
    with pytest.raises(InvalidPushConfigError):
        parse_auth_schemes({"authSchemes": schemes})


def test_a_clients_secret_goes_only_to_the_token_url_of_oauth2_and_for_its_owner() -> None:
    other: JsonValue = {"scheme": "apiKey", "tokenUrl": "https://other.example.com/token"}
    oauth2: JsonValue = {"scheme": "oauth2", "tokenUrl": "https://agent.example.com/token"}

    found = agentvault_credentials(
        "https://agent.example.com",
        {"authSchemes": [other, oauth2]},
        owner="alice",
        tenant="acme",
        client_id="client-1",
        client_secret="secret",
    )

    assert found is not None
    assert (found.origin, found.owner, found.tenant) == (
        *("https://agent.example.com", "alice", "acme"),
    )
    assert found.oauth is not None
    assert found.oauth.token_url == "https://agent.example.com/token"
