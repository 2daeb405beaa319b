"""`make bench`: each of its sides runs, and says what it cost. How much that is, no test says."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from benchmarks.bench.__main__ import Scenario, Server, Sink, received, sent, serving
from benchmarks.bench.receiving import COMPARISONS, Arrivals
from benchmarks.bench.sides import SIDES

pytestmark = pytest.mark.slow

SCENARIO = Scenario("a few", (), {"tasks": 2, "updates": 8, "backlog": 8})


@pytest.fixture(scope="module")
def sink() -> Iterator[Sink]:
    with serving(SCENARIO) as webhooks:
        yield webhooks


@pytest.mark.parametrize("side", SIDES)
def test_a_sender_sends_what_it_was_given(side: str, sink: Sink) -> None:
    found = sent(SCENARIO, side, {}, sink, Server(None))

    assert found["per_second"] > 0


@pytest.mark.parametrize("side", sorted({side for each in COMPARISONS for side, _ in each.sides}))
@pytest.mark.parametrize(
    "arrivals",
    [
        pytest.param(Arrivals(number=8, tasks=2, connections=2), id="accepted"),
        pytest.param(Arrivals(number=8, tasks=2, connections=2, forged=True), id="forged"),
        pytest.param(Arrivals(number=8, tasks=2, connections=2, repeated=True), id="repeated"),
    ],
)
def test_a_receiver_answers_what_it_gets(side: str, arrivals: Arrivals) -> None:
    found = received(side, arrivals, Server(None))

    assert found["answered"] > 0


def test_a_sender_that_fails_ends_the_bench(sink: Sink) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        sent(SCENARIO, "nobody", {}, sink, Server(None))
