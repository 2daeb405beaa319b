"""What diagnosis prints: promises with what came of them, and the steps of one request.

An examination's report is also written as JSON, and as JUnit's XML.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias
from xml.etree import ElementTree

from pushkit.bounded_json import read_json_object
from pushkit.errors import CodeTable, MalformedJsonError, page_of
from pushkit.terminal.command import painted
from pushkit.terminal.output import document, in_a_line
from receiver.refusals import REFUSALS
from receiver.steps import CheckResult, Result


class CheckOutcome(StrEnum):
    """The outcome of one check."""

    PASSED = "passed"
    FAILED = "failed"
    UNSEEN = "unseen"
    """It could not be observed, or only in part; the details say why, and what is needed."""
    NOT_RUN = "not_run"
    """It was left out, because another check failed; the details say why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """One check and its outcome."""

    check: str
    promise: str  # what should hold; if it passed, what was seen to
    outcome: CheckOutcome
    # What was found, or why nothing could be observed; never a token or a signature.
    details: tuple[str, ...] = ()


_MARKS = {
    CheckOutcome.PASSED: ("✓", "green"),
    CheckOutcome.FAILED: ("✗", "red"),
    CheckOutcome.UNSEEN: ("·", "yellow"),
    CheckOutcome.NOT_RUN: ("·", "yellow"),
}

_AS_TEXT = re.compile(
    rf"(?:\x1b\[\d+m)?(?:{'|'.join({mark for mark, _ in _MARKS.values()})})".encode()
)

_OF_STEPS = {
    Result.PASSED: _MARKS[CheckOutcome.PASSED],
    Result.REFUSED: _MARKS[CheckOutcome.FAILED],
}
_PREFIXES = {
    Result.NOT_CHECKED: "not checked",
    Result.WOULD_PASS: "would pass",
    Result.WOULD_REFUSE: "would refuse, too",
    Result.UNKNOWN: "unknown",
}


class LinkResult(NamedTuple):
    """A link on the way to a receiver, with its result, as `CheckResult` has that of a step."""

    name: str
    result: Result
    found: str = ""  # what was found, and what to do


Checked: TypeAlias = CheckResult | LinkResult


def said_of(result: Checked) -> str:
    """Return what came of a step, without its mark."""
    if result.result is Result.NOT_REACHED:
        return "not reached"
    prefix = _PREFIXES.get(result.result, "")
    return ": ".join(filter(None, (prefix, in_a_line(result.found))))


def step_lines(results: Sequence[Checked], *, brief: bool = False) -> Iterator[str]:
    """Yield a line for each step, for those not reached, and for where a code is explained.

    Args:
        results: The steps with their results.
        brief: Only those that fail, and those that were not reached.
    """
    for one in results:
        if _is_silent(one) or (brief and one.result.holds is not False):
            continue
        mark, colour = _OF_STEPS.get(one.result, ("·", None))
        wrong = one.result in (Result.REFUSED, Result.WOULD_REFUSE)
        says = painted(said_of(one), "red" if wrong else None, dim=not wrong)
        yield f"{painted(mark, colour, dim=colour is None)} {one.name:10} {says}".rstrip()
    for result in (Result.UNKNOWN, Result.NOT_REACHED):
        if names := [one.name for one in results if _is_silent(one) and one.result is result]:
            says = result.value.replace("_", " ")
            yield painted(f"· {says}: {', '.join(names)}", dim=True)
    codes = [one.code for one in results if isinstance(one, CheckResult) and one.code in REFUSALS]
    for code in dict.fromkeys(filter(None, codes)):
        yield painted(f"see {page_of(CodeTable.REFUSAL, code)}", dim=True)


def _is_silent(one: Checked) -> bool:
    """Return whether there is nothing to say of a step but that it was not, or not surely, done."""
    return one.result is Result.NOT_REACHED or (one.result is Result.UNKNOWN and not one.found)


def lines_of(result: Examined) -> Iterator[str]:
    """Yield the lines of a result."""
    mark, colour = _MARKS[result.outcome]
    yield f"{painted(mark, colour)} {result.check:20} {result.promise}"
    for detail in result.details:
        yield f"    {painted(in_a_line(detail), colour)}"


def summary(results: Sequence[Examined]) -> str:
    """Return the last line: how many checks have each outcome."""
    counts = Counter(result.outcome for result in results)
    shown = [
        outcome
        for outcome in CheckOutcome
        if counts[outcome] or outcome is not CheckOutcome.NOT_RUN
    ]
    return ", ".join(f"{counts[outcome]} {outcome.value.replace('_', ' ')}" for outcome in shown)


def as_text(_: str, results: Sequence[Examined]) -> str:
    """Return a report for people."""
    return "\n".join(line for result in results for line in lines_of(result))


def as_json(subject: str, results: Sequence[Examined]) -> str:
    """Return a report for programs."""
    found = [document(result) for result in results]
    return json.dumps({"subject": subject, "results": found}, indent=2)


def as_junit(subject: str, results: Sequence[Examined]) -> str:
    """Return a report for continuous integration; what was not seen or not run is skipped."""
    counts = Counter(result.outcome for result in results)
    suite = ElementTree.Element(
        "testsuite",
        name=f"pushkit doctor {in_a_line(subject)}",
        tests=str(len(results)),
        failures=str(counts[CheckOutcome.FAILED]),
        errors="0",
        skipped=str(counts[CheckOutcome.UNSEEN] + counts[CheckOutcome.NOT_RUN]),
    )
    for result in results:
        case = ElementTree.SubElement(suite, "testcase", name=result.check)
        case.set("classname", "pushkit.doctor")
        if result.outcome is not CheckOutcome.PASSED:
            kind = "failure" if result.outcome is CheckOutcome.FAILED else "skipped"
            said = in_a_line("; ".join(result.details))
            ElementTree.SubElement(case, kind, message=said).text = result.promise
    ElementTree.indent(suite)
    written: bytes = ElementTree.tostring(suite, "utf-8", xml_declaration=True)
    return written.decode()


WRITTEN_AS: Final[Mapping[str, Callable[[str, Sequence[Examined]], str]]] = {
    "text": as_text,
    "json": as_json,
    "junit": as_junit,
}


def is_report(content: bytes) -> bool:
    """Return whether this is a report, in any of the formats."""
    if _AS_TEXT.match(content) or b'<testsuite name="pushkit doctor ' in content:
        return True
    try:
        return read_json_object(content).keys() == {"subject", "results"}
    except MalformedJsonError:
        return False
