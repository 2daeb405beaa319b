"""What commands print."""

from __future__ import annotations

import pytest

from pushkit.terminal.output import numbered


@pytest.mark.parametrize(
    ("number", "one", "says"),
    [
        (1, "key", "1 key"),
        (2, "key", "2 keys"),
        (0, "delivery", "0 deliveries"),
        (2, "dead letter", "2 dead letters"),
    ],
)
def test_a_number_of_things_is_written_as_one_says_it(number: int, one: str, says: str) -> None:
    assert numbered(number, one) == says
