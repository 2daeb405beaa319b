from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushkit.errors import ConfigError
from pushkit.url import audience_of, audience_with_query


@pytest.mark.parametrize(
    ("url", "audience"),
    [
        pytest.param("https://a.example.com/b?c=d", "https://a.example.com/b?c=d", id="as it is"),
        pytest.param("HTTPS://A.Example.COM/B?C", "https://a.example.com/B?C", id="case"),
        pytest.param("https://a.example.com:443/", "https://a.example.com/", id="default port"),
        pytest.param("http://a.example.com:80/", "http://a.example.com/", id="http's port"),
        pytest.param("https://a.example.com:80/", "https://a.example.com:80/", id="another port"),
        pytest.param("https://a.example.com", "https://a.example.com/", id="no path"),
        pytest.param("https://a.example.com?b", "https://a.example.com/?b", id="only a query"),
        pytest.param("https://a.example.com/b#c", "https://a.example.com/b", id="a fragment"),
        pytest.param("https://u:p@A.example.com/@b", "https://a.example.com/@b", id="a user"),
        pytest.param("https://a.example.com?b@c", "https://a.example.com/?b@c", id="an at sign"),
        pytest.param(
            "https://a.example.com/b?c=https://d@e",
            "https://a.example.com/b?c=https://d@e",
            id="a URL in the query",
        ),
        pytest.param("https://a.example.com./b", "https://a.example.com/b", id="a trailing dot"),
        pytest.param("https://a.example.com/b/", "https://a.example.com/b/", id="trailing slash"),
        pytest.param("https://a.example.com/%2f%2F", "https://a.example.com/%2f%2F", id="escapes"),
        pytest.param("http://[0:0::1]:8080/a", "http://[::1]:8080/a", id="IPv6"),
    ],
)
def test_writes_a_url_in_one_spelling(url: str, audience: str) -> None:
    assert audience_of(url) == audience


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a.example.com",
        "/a",
        "//a.example.com/",
        "ftp://a.example.com/",
        "https://",
        "https:///a",
        "https://.",
        *[
            "https://a.example.com:x/",
            "https://a.example.com:99999/",
            "https://[::1/",
            "https://[1]/",
        ],
    ],
)
def test_refuses_what_is_no_url_of_a_webhook(url: str) -> None:
    with pytest.raises(ConfigError):
        audience_of(url)


@given(st.text(max_size=60) | st.from_regex(r"https?://[!-~]{0,40}"))
def test_any_text_is_an_audience_that_is_its_own_or_the_one_error(url: str) -> None:
    try:
        audience = audience_of(url)
    except ConfigError:
        return
    assert audience_of(audience) == audience


OWN = "https://a.example.com/hook"


@pytest.mark.parametrize(
    ("audience", "target", "expected"),
    [
        pytest.param(OWN, "/hook", OWN, id="no query"),
        pytest.param(OWN, "/hook?", OWN, id="an empty query"),
        pytest.param(OWN, "/hook?a=b", f"{OWN}?a=b", id="exactly the query of the request"),
        pytest.param(OWN, "/hook?a?b", f"{OWN}?a?b", id="a question mark in the query"),
        pytest.param(f"{OWN}?x", "/hook?a=b", f"{OWN}?x", id="a configured query stands"),
        pytest.param(OWN, "/other?a=b", f"{OWN}?a=b", id="the path is never the request's"),
        pytest.param(OWN, "https://evil.example.com/?a", f"{OWN}?a", id="nor is the host"),
    ],
)
def test_a_configured_audience_takes_the_query_of_the_request(
    audience: str, target: str, expected: str
) -> None:
    assert audience_with_query(audience, target) == expected
