"""The parts that the documents and pages of both dashboards share.

The verdict, its findings, and measures; and template filters for times, durations, numbers and
small charts, which are pure functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

from markupsafe import Markup, escape

from pushkit.bounded_json import JsonValue
from pushkit.webui.api import Document

MOST_SHOWN: Final = 10_000
"""Up to how many rows a page counts."""

_BUCKETS: Final = 60
_OVERDUE: Final = timedelta(minutes=1)
# Deep JSON is mostly indentation: a megabyte of it becomes 70 MB, and takes seconds.
_MAX_INDENTED_BYTES: Final = 64 * 1024
_CODE: Final = re.compile(r"`([^`<>]+)`")
_NONE: Final = "\N{EN DASH}"
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


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


def first_that_holds(rows: Iterable[tuple[object, Verdict, str]]) -> Headline:
    """Return the verdict and the sentence of the first row that is true."""
    return next(Headline(verdict, says) for holds, verdict, says in rows if holds)


def is_overdue(due_since: datetime | None, now: datetime) -> bool:
    """Return whether work is due for longer than it takes a worker to claim it."""
    return due_since is not None and now - due_since > _OVERDUE


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


def utc(moment: str | None) -> str:
    """Return a time to the second, in UTC."""
    return _NONE if moment is None else _read(moment).strftime("%Y-%m-%d %H:%M:%S")


def relative(moment: str | None, now: datetime) -> str:
    """Return a time relative to now: `5 min ago`, `in 3 h`."""
    if moment is None:
        return _NONE
    seconds = (now - _read(moment)).total_seconds()
    if abs(seconds) < 1:
        return "now"
    said = lasting(abs(seconds))
    return f"{said} ago" if seconds > 0 else f"in {said}"


def lasting(seconds: float) -> str:
    """Return a duration in its largest unit."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "0 s"


def milliseconds(seconds: float | None) -> str:
    """Return a duration in milliseconds, or in a larger unit from one second on."""
    if seconds is None:
        return _NONE
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else lasting(seconds)


def counted(found: Mapping[str, int | bool]) -> str:
    """Return a count, with a `+` if counting stopped at its bound."""
    return f"{found['number']:,}" + ("+" if found["more"] else "")


def points(values: Sequence[float], width: int = 120, height: int = 28) -> str:
    """Return the points of an SVG polyline of this size: the oldest value at the left."""
    if not values:
        return ""
    top = max(values) or 1.0
    step = width / max(len(values) - 1, 1)
    return " ".join(
        f"{number * step:.1f},{height - 2 - (height - 4) * value / top:.1f}"
        for number, value in enumerate(values)
    )


def phases(attempt: Mapping[str, JsonValue], width: float = 100.0) -> list[dict[str, JsonValue]]:
    """Return the phases of an attempt as parts of a bar: name, start, width and duration."""
    names = ("resolve", "connect", "wait", "body")
    took = {name: attempt.get(f"{name}_seconds") for name in names}
    known = {name: each for name, each in took.items() if isinstance(each, int | float)}
    whole = attempt["duration_seconds"]
    total = max(whole if isinstance(whole, int | float) else 0, sum(known.values())) or 1.0
    found: list[dict[str, JsonValue]] = []
    # The rest of the duration is this side's: signing, waiting for a connection, an OAuth token.
    at = width * (1 - sum(known.values()) / total)
    for name, seconds in known.items():
        size = width * seconds / total
        found.append({"name": name, "at": round(at, 2), "size": round(size, 2), "took": seconds})
        at += size
    return found


def _read(moment: str) -> datetime:
    return datetime.fromisoformat(moment)


def coded(text: str) -> Markup:
    """Return a text as markup, with the parts in backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704  # escaped before


FILTERS: Final[dict[str, Callable[..., object]]] = {
    "coded": coded,
    "counted": counted,
    "milliseconds": milliseconds,
    "phases": phases,
    "points": points,
    "relative": relative,
    "utc": utc,
}
