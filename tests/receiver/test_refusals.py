"""Every refusal is a row of one table, which says what the errors and the pages say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pushkit.errors import CardRefusedError, InboundError, MalformedCardError
from receiver.refusals import REFUSALS, Verdict

WIRE = Path(__file__).parents[2] / "docs" / "wire.md"
OF_CARDS = (CardRefusedError, MalformedCardError)


def errors(kind: type[InboundError] = InboundError) -> Iterator[type[InboundError]]:
    for found in kind.__subclasses__():
        if found.__module__.startswith(("pushkit", "receiver")):
            yield found
            yield from errors(found)


@pytest.mark.parametrize("error", sorted(set(errors()) - set(OF_CARDS), key=str))
def test_an_error_has_the_status_of_its_row(error: type[InboundError]) -> None:
    assert REFUSALS[error.code].status == error.status


@pytest.mark.parametrize("code", REFUSALS)
def test_the_wire_profile_names_every_code(code: str) -> None:
    assert f"`{code}`" in WIRE.read_text("utf-8")


def test_a_refusal_that_may_be_retried_has_retry_after() -> None:
    assert [
        code
        for code, row in REFUSALS.items()
        if row.status in (429, 503) and row.steps and not row.retry_after
    ] == ["rate_limited"]  # its bucket knows
    assert Verdict.of("being_stored").retry_after == REFUSALS["being_stored"].retry_after
