"""The parts that both dashboards' documents share: the verdict, its findings, and measures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

from pushkit.webui.api import Document

MOST_SHOWN: Final = 10_000
"""Up to how many rows a page counts."""

_BUCKETS: Final = 60
# Deep JSON is mostly indentation: a megabyte of it becomes 70 MB, and takes seconds.
_MAX_INDENTED_BYTES: Final = 64 * 1024


class Severity(StrEnum):
    """The severity of a finding, the least first."""

    NOTE = "note"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """Something that an operator should know."""

    severity: Severity  # how bad it is
    says: str  # what was found
    remedy: str  # what to do about it
    link: str = "/"  # the page that shows it


class Verdict(StrEnum):
    """What an overview says in one word."""

    IDLE = "idle"
    """Nothing happened that could be judged."""
    HEALTHY = "healthy"
    ATTENTION = "attention"
    FAILING = "failing"


class Headline(NamedTuple):
    """What an overview says in one sentence."""

    verdict: Verdict
    says: Annotated[str, "The verdict in a sentence."]


def worst_first(findings: Iterable[HealthFinding]) -> list[HealthFinding]:
    """Return findings by their severity."""
    by_severity = [*Severity].index
    return sorted(findings, key=lambda each: -by_severity(each.severity))


class Percentiles(Document):
    """The percentiles of some values; None without values."""

    p50: float | None
    p95: float | None
    p99: float | None


def percentile(ordered: Sequence[float], part: float) -> float | None:
    """Return the percentile of sorted values, for a part of 0 to 1; None without values."""
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else None


def percentiles(values: Iterable[float]) -> Percentiles:
    """Return the 50th, 95th and 99th percentile of some values."""
    ordered = sorted(values)
    p50, p95, p99 = (percentile(ordered, part) for part in (0.5, 0.95, 0.99))
    return Percentiles(p50=p50, p95=p95, p99=p99)


def a_minute(number: int, since: datetime, now: datetime) -> float:
    """Return how many there were in each minute of a period."""
    return round(number / max((now - since).total_seconds() / 60, 1 / 60), 2)


def buckets(
    found: Iterable[tuple[datetime, bool]], since: datetime, now: datetime
) -> list[tuple[datetime, int, int]]:
    """Return each sixtieth of a period: when it began, how many are true in it, and how many not.

    Args:
        found: Times, each with whether it counts as true.
        since: When the period began.
        now: When it ends.
    """
    whole = max(now - since, timedelta(seconds=1))
    counted = [[0, 0] for _ in range(_BUCKETS)]
    for at, is_true in found:
        number = (at - since) // (whole / _BUCKETS)
        counted[min(max(number, 0), _BUCKETS - 1)][not is_true] += 1
    return [(since + whole * n / _BUCKETS, yes, no) for n, (yes, no) in enumerate(counted)]


class NewestFirst(Document):
    """The end of a page of a list, newest first."""

    before: Annotated[str | None, "Leads to older ones; null: there are none."]
    is_cut: Annotated[bool, "It is not full: it looked through as many as it may."]


def shown_body(body: bytes | None) -> str | None:
    """Return a body for reading: JSON indented; anything else, or a long body, as it is."""
    if body is None:
        return None
    text = body.decode("utf-8", "backslashreplace")
    if len(body) > _MAX_INDENTED_BYTES:
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
