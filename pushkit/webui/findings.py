"""What an operator should know, how bad it is, and the verdict over all of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from pushkit.bounded_json import JsonObject


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
