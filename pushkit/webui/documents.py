"""The parts of documents that both dashboards share: pages, figures, query values, findings."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple, TypeVar

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.errors import ConfigError
from pushkit.storage.paging import Page

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

MAX_CHARS: Final = 512
# A sender's ids may have control characters, but no NUL, which PostgreSQL cannot store.
TEXT_PATTERN: Final = r"^[^\x00]*$"
_TEXT: Final = re.compile(TEXT_PATTERN)
_BUCKETS: Final = 60
# Deep JSON is mostly indentation: a megabyte of it becomes 70 MB, and takes seconds.
_MAX_INDENTED_BYTES: Final = 64 * 1024


def page_document(name: str, page: Page[T], document: Callable[[T], JsonObject]) -> JsonObject:
    """Return a page of a list that is read from its newest item."""
    items = [document(each) for each in page.items]
    return {name: [*items], "before": page.before, "is_cut": page.is_cut}


def percentile(ordered: Sequence[float], part: float) -> float | None:
    """Return the percentile of sorted values, for a part of 0 to 1; None without values."""
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else None


def percentiles(values: Iterable[float]) -> JsonObject:
    """Return the 50th, 95th and 99th percentile of some values."""
    ordered = sorted(values)
    return {f"p{part}": percentile(ordered, part / 100) for part in (50, 95, 99)}


def buckets(
    found: Iterable[tuple[datetime, str]], names: Sequence[str], since: datetime, now: datetime
) -> list[JsonValue]:
    """Count the items of each name in each sixtieth of a period."""
    whole = max(now - since, timedelta(seconds=1))
    width = whole / _BUCKETS
    counted: list[dict[str, int]] = [dict.fromkeys(names, 0) for _ in range(_BUCKETS)]
    for at, name in found:
        index = (at - since) // width
        counted[min(max(index, 0), _BUCKETS - 1)][name] += 1
    return [
        {"at": (since + whole * n / _BUCKETS).isoformat(), **each} for n, each in enumerate(counted)
    ]


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


def text_of(query: Mapping[str, str], name: str) -> str | None:
    """Return a value of a query, None if empty. Raises ConfigError: too long, or with a NUL."""
    found = query.get(name) or None
    if found is not None and (len(found) > MAX_CHARS or not _TEXT.fullmatch(found)):
        raise ConfigError(f"{name}: expected at most {MAX_CHARS} characters, without a NUL")
    return found


def choice_of(query: Mapping[str, str], name: str, known: type[E]) -> E | None:
    """Return a value of a query as a member of an enumeration. Raises ConfigError: it is none."""
    found = query.get(name) or None
    if found is not None and found not in {*known}:
        raise ConfigError(f"{name}: expected one of {', '.join(known)}")
    return known(found) if found else None


def limit_of(query: Mapping[str, str]) -> int:
    """Return the most items of a page. Raises ConfigError: it is not a number from 1 to 200."""
    text = query.get("limit", "50")
    if not (text.isascii() and text.isdigit() and len(text) <= 3 and 1 <= int(text) <= 200):
        raise ConfigError("limit: expected a number from 1 to 200")
    return int(text)


class Severity(IntEnum):
    """The severity of a finding."""

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
    says: str


def worst_of(findings: Iterable[Finding]) -> Severity:
    """Return the severity of the worst finding."""
    return max((each.severity for each in findings), default=Severity.NOTE)


def verdict_document(headline: Headline, findings: Iterable[Finding]) -> JsonObject:
    """Return the verdict, its sentence, and the findings, the worst first."""
    ordered = sorted(findings, key=lambda each: -each.severity)
    return {
        "verdict": headline.verdict.value,
        "says": headline.says,
        "findings": [
            {**dataclasses.asdict(each), "severity": each.severity.name.lower()} for each in ordered
        ],
    }
