"""Every block of README.md and docs/ is run by a test, but for those that docs/testing.md lists."""

from __future__ import annotations

from tests.contract.docs.blocks import ROOT, blocks

RUN = {"python", "sh", "toml", "json", "yaml", "sql"}
TABLE = "| page | block | why no test runs it |\n|---|---|---|\n"


def test_a_block_is_run_or_says_why_not() -> None:
    unknown = [each for each in blocks() if each.exempt is None and each.language not in RUN]
    assert [f"{each.page}:{each.line}: {each.language}" for each in unknown] == []


def test_what_is_not_run_is_listed() -> None:
    listed = (ROOT / "docs/testing.md").read_text("utf-8").partition(TABLE)[2].partition("\n\n")[0]
    rows = [
        f"| {each.page} | `{first_line(each.text)}` | {each.exempt} |"
        for each in blocks()
        if each.exempt and each.language != "text"
    ]
    assert listed.splitlines() == rows, "docs/testing.md lists\n" + "\n".join(rows)


def first_line(text: str) -> str:
    """Return what a row calls a block."""
    line = text.strip().splitlines()[0].strip()
    return line if len(line) < 60 else f"{line[:57].rstrip()}…"
