from __future__ import annotations

import pytest

from pushkit.errors import MalformedRequestError
from pushkit.webhook import Headers, WebhookRequest


def test_a_name_is_found_in_any_case() -> None:
    assert Headers({"X-A2A-Token": "t"}).one("x-a2a-tOKEN") == "t"


def test_a_missing_field_is_none() -> None:
    assert Headers().one("webhook-id") is None


def test_white_space_around_a_value_does_not_count() -> None:
    assert Headers([("webhook-id", " \tid ")]).one("webhook-id") == "id"


@pytest.mark.parametrize("second", ["a", "b"])
def test_a_field_that_stands_twice_is_refused_even_if_it_agrees(second: str) -> None:
    headers = Headers([("webhook-id", "a"), ("Webhook-Id", second)])
    assert headers.all("webhook-id") == ["a", second]
    with pytest.raises(MalformedRequestError):
        headers.one("webhook-id")


def test_repeated_fields_have_all_their_values() -> None:
    headers = Headers([("A", "1"), ("b", "2"), ("a", "3")])
    assert headers.repeated() == {"a": ["1", "3"]}
    assert headers.values() == {"a": "3", "b": "2"}
    assert (headers.all("A"), headers.all("B"), headers.all("c")) == (["1", "3"], ["2"], [])
    assert headers.one("B") == "2"
    assert Headers({"a": "1"}).repeated() == {}


def test_keeps_order_and_spelling() -> None:
    fields = [("B", "1"), ("a", "2"), ("b", "3")]
    assert list(Headers(fields)) == fields


def test_size_is_what_http_1_1_writes() -> None:
    assert Headers({"Host": "a"}).size() == len(b"Host: a\r\n")


def test_no_repr_shows_a_value() -> None:
    request = WebhookRequest(
        target="/", headers=Headers({"Authorization": "canary"}), body=b"canary"
    )
    assert "canary" not in repr(request)
    assert "Authorization" in repr(request)
