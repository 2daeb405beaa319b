"""Dashboard and alerts name what the code exports, and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pushkit.telemetry.metrics import Metric
from pushkit.telemetry.sides import RECEIVER_METRICS, SENDER_METRICS

DOCS = Path(__file__).resolve().parents[2] / "docs"
METRICS = (*SENDER_METRICS, *RECEIVER_METRICS)
SERIES = {name for metric in METRICS for name in metric.series}
NAME = re.compile(r"\b(?:pushkit|receiver)_[a-z_]+\b")


def queries_of_the_dashboard() -> str:
    dashboard = json.loads((DOCS / "operations" / "dashboard.json").read_text())
    return "\n".join(
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])
    )


def queries_of_the_alerts() -> str:
    lines = (DOCS / "operations" / "alerts.yml").read_text().splitlines()
    return "\n".join(line for line in lines if line.strip().startswith("expr:"))


@pytest.mark.parametrize("queries", [queries_of_the_dashboard, queries_of_the_alerts])
def test_queries_name_series_that_are_exported(queries: object) -> None:
    assert callable(queries)
    found = set(NAME.findall(queries()))
    assert len(found) > 5
    assert found <= SERIES


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_the_dashboard_shows_each_metric(metric: Metric) -> None:
    assert set(metric.series) & set(NAME.findall(queries_of_the_dashboard()))


def test_no_name_is_taken_twice_and_durations_are_in_seconds() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    assert not [name for name in names if name.endswith(("_ms", "_minutes", "_days"))]
