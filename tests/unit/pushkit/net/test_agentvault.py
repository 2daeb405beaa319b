"""Reading the `authSchemes` of AgentVault cards, and credentials for them."""

from __future__ import annotations

from typing import Any

import pytest

from pushkit.bounded_json import JsonValue
from pushkit.errors import InvalidPushConfigError
from pushkit.net.agentvault import agentvault_credentials, parse_auth_schemes


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
