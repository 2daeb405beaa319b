"""What an operator should know, how bad it is, and the verdict over all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from pushkit.bounded_json import JsonObject


class Severity(IntEnum):
    """How bad a finding is; the worst one is what the overview says first."""

    NOTE = 0
    WARNING = 1
    FAILURE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that an operator should know.

    Attributes:
        severity: How bad it is.
        says: What was found.
        mend: What to do about it.
        link: The page that shows it.
    """

    severity: Severity
    says: str
    mend: str
    link: str = "/"


_VERDICTS: Final = {
    Severity.NOTE: "healthy",
    Severity.WARNING: "attention",
    Severity.FAILURE: "failing",
}


def verdict_document(findings: Sequence[Finding]) -> JsonObject:
    """Return the verdict and what it is made of, the worst first."""
    ordered = sorted(findings, key=lambda each: -each.severity)
    worst = max((each.severity for each in ordered), default=Severity.NOTE)
    return {
        "verdict": _VERDICTS[worst],
        "findings": [
            {
                "severity": each.severity.name.lower(),
                "says": each.says,
                "mend": each.mend,
                "link": each.link,
            }
            for each in ordered
        ],
    }
