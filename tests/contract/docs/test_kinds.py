"""Each page is of one kind: tutorial, how-to, reference or explanation; and the README is short."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from tests.contract.docs.blocks import ROOT

NAV = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
KINDS = ["Tutorial", "How to", "Reference", "Explanation"]


def pages_of(entries: object) -> Iterator[str]:
    """Yield the pages of a part of the navigation."""
    match entries:
        case str():
            yield entries
        case dict():
            yield from pages_of(list(entries.values()))
        case list():
            for entry in entries:
                yield from pages_of(entry)


def test_the_site_has_a_start_and_four_kinds() -> None:
    start, *kinds = NAV
    assert start == "index.md"
    assert [name for kind in kinds for name in kind] == KINDS


def test_every_page_is_of_one_kind() -> None:
    pages = sorted(pages_of(NAV))
    there = sorted(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))
    assert pages == there


def test_a_how_to_is_not_in_another_kind() -> None:
    [how_to] = [kind["How to"] for kind in NAV[1:] if "How to" in kind]
    in_folder = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs/how-to").iterdir()}
    assert in_folder <= set(pages_of(how_to))


def test_the_readme_is_read_in_a_minute() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 140
