"""Every code has a row with an anchor in the reference, and messages name that."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from pushkit.delivery.error_codes import explained_codes, page_of_code
from pushkit.errors import CodeTable, PushkitError, page_of
from receiver.diagnosis.report import step_lines
from receiver.refusals import REFUSALS, Refusals, results_over_http
from tests.contract.docs.blocks import ROOT

ANCHORS = re.findall(r'<a id="([^"]+)"></a>', (ROOT / "docs/reference/codes.md").read_text("utf-8"))


def errors_below(error: type[PushkitError]) -> Iterator[type[PushkitError]]:
    for below in error.__subclasses__():
        yield below
        yield from errors_below(below)


# Not those of tests, nor those that only an adapter to another library loads.
OF_ERRORS = {
    error.code
    for error in errors_below(PushkitError)
    if error.__module__.startswith(("pushkit", "receiver"))
    and ".integrations." not in error.__module__
}


def leads_on(page: str) -> bool:
    file, _, anchor = page.partition("#")
    return file == "docs/reference/codes.md" and anchor in ANCHORS


def test_an_anchor_is_there_once() -> None:
    assert len(ANCHORS) == len(set(ANCHORS)) > 100


@pytest.mark.parametrize("code", REFUSALS)
def test_a_refusal_names_its_row(code: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "receiver")
    Refusals().refuse(code, "found this, expected that", peer="192.0.2.7")
    [line] = caplog.messages
    page = line.partition("; see ")[2]
    assert page == page_of(CodeTable.REFUSAL, code)
    assert leads_on(page)


@pytest.mark.parametrize("code", [code for code, row in REFUSALS.items() if row.steps])
def test_the_report_of_the_steps_names_the_row(code: str) -> None:
    page = page_of(CodeTable.REFUSAL, code)
    assert f"see {page}" in list(step_lines(results_over_http(code)))


@pytest.mark.parametrize("code", [*explained_codes(), "status_418", "no_signing_key", "jwks"])
def test_the_failure_of_a_delivery_has_a_row(code: str) -> None:
    assert leads_on(page_of_code(code))


@pytest.mark.parametrize("code", sorted(OF_ERRORS))
def test_an_error_has_a_row(code: str) -> None:
    assert leads_on(page_of(CodeTable.ERROR, code))
