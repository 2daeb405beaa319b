from __future__ import annotations

import pytest

from pushkit.a2a import Authentication
from pushkit.net.authorization import credential_header


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
