"""examples/verify: what a how-to shows, and what they are held against."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.verification.interop.environments import ROOT
from tests.verification.interop.processes import MismatchError
from tests.verification.interop.verify_programs import VECTORS, judged

FILES = {
    "go": "go/verify.go",
    "java": "java/src/main/java/Verify.java",
    "typescript": "typescript/verify.ts",
    "rust": "rust/src/verify.rs",
}


def said(**changed: bool) -> dict[str, dict[str, Any]]:
    """Return what a program says that is right, but for what is changed."""
    vectors = json.loads((VECTORS / "notifications.json").read_bytes())["vectors"]
    right = {one["id"]: one["expected"]["step"] not in {2, 3, 4} for one in vectors}
    return {name: {"accepted": is_good} for name, is_good in {**right, **changed}.items()}


@pytest.mark.parametrize("language", FILES)
def test_the_page_shows_what_is_in_the_file(language: str) -> None:
    page = (ROOT / "docs/how-to/verify-in-another-language.md").read_text("utf-8")
    [snippet] = re.findall(rf"```{language}\n(.*?)\n```", page, re.DOTALL)
    assert snippet in (ROOT / "examples" / "verify" / FILES[language]).read_text("utf-8")


def test_a_program_that_judges_rightly_passes() -> None:
    assert "all of them rightly" in judged(said())


def test_a_program_that_accepts_a_forgery_fails() -> None:
    with pytest.raises(MismatchError, match="crit: accepted"):
        judged(said(crit=True))


def test_a_program_that_refuses_a_genuine_notification_fails() -> None:
    with pytest.raises(MismatchError, match="jwt-es256"):
        judged(said(**{"jwt-es256": False}))


def test_a_program_that_says_nothing_of_a_vector_fails() -> None:
    answers = said()
    del answers["alg-none"]
    with pytest.raises(MismatchError, match="says nothing of alg-none"):
        judged(answers)
