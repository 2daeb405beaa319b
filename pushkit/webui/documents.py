"""What both dashboards show in documents, take from queries, and say of what they find."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Final, TypeVar

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.errors import ConfigError
from pushkit.storage.paging import Page

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

MAX_CHARS: Final = 512
TEXT_PATTERN: Final = r"^[^\x00-\x1f\x7f]*$"
_TEXT: Final = re.compile(TEXT_PATTERN)
_BUCKETS: Final = 60
# Lines of deep JSON are mostly indentation: a megabyte of it comes to 70, and takes seconds.
_MAX_INDENTED_BYTES: Final = 64 * 1024


def page_document(name: str, page: Page[T], document: Callable[[T], JsonObject]) -> JsonObject:
    """Return a page of a list that is looked through from its newest."""
    items = [document(each) for each in page.items]
    return {name: [*items], "before": page.before, "is_cut": page.is_cut}


def percentile(ordered: Sequence[float], part: float) -> float | None:
    """Return what so great a part of some values does not exceed; None of none."""
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else None


def percentiles(values: Iterable[float]) -> JsonObject:
    """Return the median of some values, and what 95 and 99 of a hundred do not exceed."""
    ordered = sorted(values)
    return {f"p{part}": percentile(ordered, part / 100) for part in (50, 95, 99)}


def buckets(
    found: Iterable[tuple[datetime, str]], names: Sequence[str], since: datetime, now: datetime
) -> list[JsonValue]:
    """Return how much there is of each name in each sixtieth of a time."""
    whole = max(now - since, timedelta(seconds=1))
    width = whole / _BUCKETS
    counted: list[dict[str, int]] = [dict.fromkeys(names, 0) for _ in range(_BUCKETS)]
    for at, name in found:
        place = (at - since) // width
        counted[min(max(place, 0), _BUCKETS - 1)][name] += 1
    return [
        {"at": (since + whole * n / _BUCKETS).isoformat(), **each} for n, each in enumerate(counted)
    ]


def shown_body(body: bytes | None) -> str | None:
    """Return a body as people read it: JSON in lines, anything else, or a long one, as it is."""
    if body is None:
        return None
    text = body.decode("utf-8", "backslashreplace")
    if len(body) > _MAX_INDENTED_BYTES:
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def text_of(query: Mapping[str, str], name: str) -> str | None:
    """Return a value of a query, None if empty. Raises ConfigError: no database takes it."""
    found = query.get(name) or None
    if found is not None and (len(found) > MAX_CHARS or not _TEXT.fullmatch(found)):
        raise ConfigError(f"{name}: expected at most {MAX_CHARS} characters, none of control")
    return found


def choice_of(query: Mapping[str, str], name: str, known: type[E]) -> E | None:
    """Return a value of a query that is one of some words. Raises ConfigError: it is none."""
    found = query.get(name) or None
    if found is not None and found not in {*known}:
        raise ConfigError(f"{name}: expected one of {', '.join(known)}")
    return known(found) if found else None


def limit_of(query: Mapping[str, str]) -> int:
    """Return how many a page may have. Raises ConfigError: it is no number, or too large."""
    text = query.get("limit", "50")
    if not (text.isascii() and text.isdigit() and len(text) <= 3 and 1 <= int(text) <= 200):
        raise ConfigError("limit: expected a number from 1 to 200")
    return int(text)


class Severity(IntEnum):
    """How bad a finding is; the worst one is what the overview says first."""

    NOTE = 0
    WARNING = 1
    FAILURE = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that an operator should know."""

    severity: Severity  # how bad it is
    says: str  # what was found
    mend: str  # what to do about it
    link: str = "/"  # the page that shows it


_VERDICTS: Final = ("healthy", "attention", "failing")  # by severity


def verdict_document(findings: Iterable[Finding]) -> JsonObject:
    """Return the verdict and what it is made of, the worst first."""
    ordered = sorted(findings, key=lambda each: -each.severity)
    worst = ordered[0].severity if ordered else Severity.NOTE
    return {
        "verdict": _VERDICTS[worst],
        "findings": [
            {**dataclasses.asdict(each), "severity": each.severity.name.lower()} for each in ordered
        ],
    }
