"""Every refusal is a row of one table, which says what the errors and the pages say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pushkit.errors import CardRefusedError, InboundError, MalformedCardError
from receiver.refusals import REFUSALS, results_over_http
from receiver.steps import Result, Step

OF_CARDS = (CardRefusedError, MalformedCardError)


def errors(kind: type[InboundError] = InboundError) -> Iterator[type[InboundError]]:
    for found in kind.__subclasses__():
        if found.__module__.startswith(("pushkit", "receiver")):
            yield found
            yield from errors(found)


@pytest.mark.parametrize("error", sorted(set(errors()) - set(OF_CARDS), key=str))
def test_an_error_has_the_status_of_its_row(error: type[InboundError]) -> None:
    assert REFUSALS[error.code].status == error.status


def test_a_refusal_that_may_be_retried_has_retry_after() -> None:
    assert [
        code
        for code, row in REFUSALS.items()
        if row.status in (429, 503) and row.steps and not row.retry_after
    ] == ["rate_limited"]  # its bucket knows


@pytest.mark.parametrize("code", REFUSALS)
def test_over_http_a_code_says_no_more_of_the_steps_than_its_row(code: str) -> None:
    results = results_over_http(code)
    steps, places = REFUSALS[code].steps, list(Step)
    assert [one.step for one in results] == places

    refused = [one.step for one in results if one.result is Result.REFUSED]
    perhaps = {one.step for one in results if one.result is Result.UNKNOWN and one.code}
    assert refused == list(steps if len(steps) == 1 else ())
    assert perhaps == set(steps if len(steps) > 1 else ())

    first = min((places.index(step) for step in steps), default=0)
    last = max((places.index(step) for step in steps), default=-1)
    for place, one in enumerate(results):
        assert one.result is not Result.PASSED or place < first
        assert (one.result is Result.NOT_REACHED) or place <= last
