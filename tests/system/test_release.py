"""What a release consists of: the commit that may be one, its notes, SBOM and provenance."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pushkit.version import __version__
from tests.system.release.prepare import notes_of, objections, provenance, sbom, versions

CHANGELOG = "# Changelog\n\n## Unreleased\n\n## 1.2.0 (2026-03-01)\n\n- A\n\n## 1.1.0\n\n- B\n"
HASHES = {"a2a_pushkit-1.whl": "ab" * 32, "a2a_pushkit-1.tar.gz": "cd" * 32}


def test_a_tagged_clean_commit_with_its_changelog_is_released() -> None:
    assert list(objections("1.2.0", changelog=CHANGELOG, tags=["v1.2.0"], changed=[])) == []


@pytest.mark.parametrize(
    ("changed", "tags", "changelog", "said"),
    [
        pytest.param([" M a"], ["v1.2.0"], CHANGELOG, "clean checkout", id="changed"),
        pytest.param([], [], CHANGELOG, "expected the tag v1.2.0", id="no-tag"),
        pytest.param([], ["v1.1.0"], CHANGELOG, "the tags v1.1.0", id="another-tag"),
        pytest.param(
            [], ["v1.2.0"], CHANGELOG.replace(" (2026-03-01)", ""), "no heading", id="no-date"
        ),
        pytest.param(
            [],
            ["v1.2.0"],
            CHANGELOG.replace("Unreleased\n", "Unreleased\n\n- New\n"),
            "under Unreleased",
            id="unreleased",
        ),
    ],
)
def test_another_commit_is_not(
    changed: list[str], tags: list[str], changelog: str, said: str
) -> None:
    [objection] = objections("1.2.0", changelog=changelog, tags=tags, changed=changed)
    assert said in objection


def test_notes_are_those_of_the_version() -> None:
    assert notes_of("1.2.0", CHANGELOG) == "- A\n"


def test_the_sbom_has_what_is_needed_and_what_needs_it() -> None:
    found = sbom(HASHES, datetime(2026, 3, 1, tzinfo=UTC))
    scopes = {each["name"].lower(): each["scope"] for each in found["components"]}
    assert scopes["aiohttp"] == scopes["multidict"] == "required"
    assert scopes["asyncpg"] == "optional"
    assert not {"pytest", "mypy", "mkdocs-material"} & scopes.keys()
    known = {each["bom-ref"] for each in found["components"]}
    for each in found["dependencies"]:
        assert set(each["dependsOn"]) <= known
    assert found == sbom(HASHES, datetime(2026, 3, 1, tzinfo=UTC))


def test_the_provenance_names_the_files_and_the_commit() -> None:
    found = provenance(HASHES, "ef" * 20)
    assert {each["name"]: each["digest"]["sha256"] for each in found["subject"]} == HASHES
    [source] = found["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert source["digest"] == {"gitCommit": "ef" * 20}


def test_versions_are_listed_newest_first() -> None:
    listed = [each["version"] for each in versions(["v0.0.9", "v0.0.10"])]
    assert listed == [__version__, "0.0.10", "0.0.9"]
