from __future__ import annotations

import subprocess
import sys

import pytest

from pushkit.telemetry.metrics import Bounded


def test_the_first_values_of_a_label_stand_for_themselves_and_the_others_together() -> None:
    bounded = Bounded(most=2)
    assert [bounded(value) for value in ("a", "b", "c", "a", "d")] == [
        "a",
        "b",
        "other",
        "a",
        "other",
    ]


@pytest.mark.slow
def test_without_metrics_their_library_is_not_loaded() -> None:
    loads = (
        "import sys, pushkit.delivery.sender, receiver.receiver, pushkit.cli.worker;"
        "print('prometheus_client' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True, check=True)  # noqa: S603  # our own interpreter
    assert ran.stdout.strip() == "False"
