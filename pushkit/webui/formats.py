"""Template filters for times, durations, numbers and small charts: pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

from markupsafe import Markup, escape

from pushkit.bounded_json import JsonValue

_CODE: Final = re.compile(r"`([^`<>]+)`")
_NONE: Final = "\N{EN DASH}"
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


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
