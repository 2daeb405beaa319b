from __future__ import annotations

import pytest

from pushkit.errors import TokenError
from pushkit.webhook import TOKEN_HEADERS, Headers, read_token, token_headers


def test_a_token_is_sent_in_both_spellings() -> None:
    assert token_headers("t") == [("X-A2A-Token", "t"), ("X-A2A-Notification-Token", "t")]


def test_an_option_adds_the_token_header_of_go_and_rust() -> None:
    assert [name for name, _ in token_headers("t", go_spelling=True)] == list(TOKEN_HEADERS)


@pytest.mark.parametrize("token", [None, ""])
def test_no_token_is_no_header(token: str | None) -> None:
    assert token_headers(token, go_spelling=True) == []


@pytest.mark.parametrize("name", [*TOKEN_HEADERS, "x-a2a-token", "A2A-NOTIFICATION-TOKEN"])
def test_a_token_is_read_from_any_spelling(name: str) -> None:
    assert read_token(Headers([(name, " t ")])) == "t"


def test_no_token_is_none() -> None:
    assert read_token(Headers({"Authorization": "Bearer t"})) is None


def test_several_headers_may_agree() -> None:
    assert read_token(Headers(token_headers("t", go_spelling=True))) == "t"


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param([("X-A2A-Token", "a"), ("X-A2A-Notification-Token", "b")], id="spellings"),
        pytest.param([("X-A2A-Token", "a"), ("x-a2a-token", "b")], id="the same one twice"),
        pytest.param([("X-A2A-Token", "a"), ("A2A-Notification-Token", "")], id="one is empty"),
    ],
)
def test_headers_that_differ_are_refused(fields: list[tuple[str, str]]) -> None:
    with pytest.raises(TokenError) as caught:
        read_token(Headers(fields))
    assert "'a'" not in str(caught.value)
