from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushkit.delivery.answers import classify_response, retry_after
from pushkit.outbox.states import Outcome
from pushkit.webhook import Headers

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND, DAY = timedelta(seconds=1), timedelta(hours=24)


def asking(*values: str) -> Headers:
    return Headers([("retry-after", value) for value in values])


@pytest.mark.parametrize("status", [101, 600, 999])
def test_a_status_that_http_does_not_know_is_retried(status: int) -> None:
    expected = (Outcome.RETRY, f"status_{status}", None)
    assert classify_response(status, asking("120"), NOW) == expected


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        pytest.param("120", timedelta(seconds=120), id="seconds"),
        pytest.param(" 120 ", timedelta(seconds=120), id="white space"),
        pytest.param("0120", timedelta(seconds=120), id="a leading zero"),
        pytest.param("0", SECOND, id="zero is the least there is"),
        pytest.param("1", SECOND, id="the least"),
        pytest.param("86400", DAY, id="the most"),
        pytest.param("86401", DAY, id="more than the most"),
        pytest.param("9" * 5000, DAY, id="endless digits"),
        pytest.param("Thu, 01 Jan 2026 12:02:00 GMT", timedelta(seconds=120), id="IMF-fixdate"),
        pytest.param("Thursday, 01-Jan-26 12:02:00 GMT", timedelta(seconds=120), id="RFC 850"),
        pytest.param("Thu Jan  1 12:02:00 2026", timedelta(seconds=120), id="asctime"),
        pytest.param("Thu, 01 Jan 2026 12:00:00 GMT", SECOND, id="the date is now"),
        pytest.param("Wed, 01 Jan 2020 12:00:00 GMT", SECOND, id="a past date"),
        pytest.param("Fri, 31 Dec 9999 23:59:59 GMT", DAY, id="the end of the calendar"),
        pytest.param("Fri, 31 Dec 9999 23:59:59 -2359", DAY, id="beyond it, by its zone"),
        pytest.param("-120", None, id="negative"),
        pytest.param("+120", None, id="a sign"),
        pytest.param("120.1", None, id="a fraction"),
        pytest.param("1e9", None, id="an exponent"),
        pytest.param("1_000", None, id="an underscore"),
        pytest.param("0x10", None, id="hex"),
        pytest.param("\u0661\u0662\u0660", None, id="Arabic digits"),
        pytest.param("\u00b2", None, id="a superscript"),
        pytest.param("", None, id="nothing"),
        pytest.param("soon", None, id="garbage"),
        pytest.param("120, 120", None, id="a list"),
        pytest.param("Wed, 31 Feb 2026 00:00:00 GMT", None, id="no such day"),
        pytest.param("Mon, 01 Jan 99999999999 00:00:00 GMT", None, id="a year beyond an integer"),
        pytest.param("Mon, 01 Jan 2026 00:00:00 +9999999999999", None, id="a zone beyond one"),
    ],
)
def test_reads_retry_after(value: str, wait: timedelta | None) -> None:
    assert retry_after(asking(value), NOW) == wait


def test_a_repeated_retry_after_is_ignored() -> None:
    assert retry_after(asking("60", "60"), NOW) is None


@given(st.text(max_size=60) | st.text(alphabet="0123456789 ,:+-.MonJanGMTFeb", max_size=40))
def test_any_retry_after_is_a_wait_within_bounds_or_none(value: str) -> None:
    wait = retry_after(asking(value), NOW)
    assert wait is None or SECOND <= wait <= DAY
