"""`make release`: all that a release consists of, into dist/release/, up to the upload.

    python -m tests.system.release.prepare --check    # only whether this commit is one to release
    python -m tests.system.release.prepare            # after `make docs dist`

It writes the notes of the version from the changelog, an SBOM (CycloneDX 1.6), a provenance (an
in-toto statement of SLSA 1.0), the hashes of the files, and the site of the version beside a list
of all versions. Nothing is signed, and nothing uploaded: that stays with a person.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from pushkit.version import __version__

ROOT = Path(__file__).resolve().parents[3]
NAME = "a2a-pushkit"
NOT_FOR_USERS = {"demo", "dev", "docs", "examples", "test"}
Json = dict[str, Any]


def main() -> int:
    """Check, or prepare the release; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.release.prepare")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    found = list(
        objections(
            __version__,
            changelog=changelog,
            tags=git("tag", "--points-at", "HEAD").split(),
            changed=git("status", "--porcelain").splitlines(),
        )
    )
    for objection in found:
        print(f"error: {objection}")
    if found or asked.check:
        return 1 if found else 0
    target = ROOT / "dist" / "release"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    files = [*(ROOT / "dist").glob("*.whl"), *(ROOT / "dist").glob("*.tar.gz")]
    made = datetime.fromtimestamp(int(git("log", "-1", "--format=%ct")), UTC)
    begin = f"{NAME}-{__version__}"
    (target / "notes.md").write_text(notes_of(__version__, changelog), "utf-8")
    write(target / f"{begin}.cdx.json", sbom(hashes_of(files), made))
    write(
        target / f"{begin}.provenance.json", provenance(hashes_of(files), git("rev-parse", "HEAD"))
    )
    site = target / "site"
    shutil.copytree(ROOT / "site", site / __version__)
    write(site / "versions.json", versions(git("tag", "--list", "v*").split()))
    (site / "index.html").write_text(FORWARD, "utf-8")
    listed = [*files, *sorted(target.glob("*.json"))]
    sums = "".join(f"{digest}  {name}\n" for name, digest in hashes_of(listed).items())
    (target / "SHA256SUMS").write_text(sums, "utf-8")
    print(f"{target.relative_to(ROOT)} is ready. By hand: docs/release.md, from step 5 on.")
    return 0


def objections(
    version: str, *, changelog: str, tags: Sequence[str], changed: Sequence[str]
) -> Iterator[str]:
    """Yield why a commit is not one to release, each with what to do."""
    if changed:
        yield f"{len(changed)} files are changed or new, expected none: release a clean checkout"
    if f"v{version}" not in tags:
        said = f"the tags {', '.join(tags)}" if tags else "no tag"
        yield (
            f"the commit has {said}, pushkit/version.py says {version}, expected the tag"
            f" v{version}: `git tag --sign v{version}`"
        )
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", changelog, re.MULTILINE):
        yield f"CHANGELOG.md has no heading `## {version} (YYYY-MM-DD)`: give Unreleased that name"
    if "\n## Unreleased\n" in changelog and notes_of("Unreleased", changelog).strip():
        yield "CHANGELOG.md has changes under Unreleased: they belong to a version"


def notes_of(version: str, changelog: str) -> str:
    """Return what the changelog says of a version."""
    heading = rf"^## {re.escape(version)}(?: \(.*\))?\n(.*?)(?=^## |\Z)"
    found = re.search(heading, changelog, re.MULTILINE | re.DOTALL)
    return found[1].strip() + "\n" if found else ""


# --- SBOM ----------------------------------------------------------------------------------------


def sbom(hashes: dict[str, str], made: datetime) -> Json:
    """Return a CycloneDX SBOM: what the wheel needs, in the versions that it was tested with.

    What only an extra needs is optional. What is not installed here, for it is for another
    platform or Python, is left out.
    """
    wheel = next(name for name in hashes if name.endswith(".whl"))
    required, optional = _needed(NAME, ()), _needed(NAME, _extras())
    purl = f"pkg:pypi/{NAME}@{__version__}"
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, purl + hashes[wheel])}",
        "version": 1,
        "metadata": {
            "timestamp": made.isoformat(),
            "component": {
                "type": "library",
                "bom-ref": purl,
                "name": NAME,
                "version": __version__,
                "purl": purl,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "hashes": [{"alg": "SHA-256", "content": hashes[wheel]}],
            },
        },
        "components": [
            _component(each, "required" if name in required else "optional")
            for name, each in sorted(optional.items())
        ],
        "dependencies": [
            {"ref": purl, "dependsOn": sorted(_purls(NAME, optional, _extras()))},
            *(
                {"ref": _purl(each), "dependsOn": sorted(_purls(name, optional, ()))}
                for name, each in sorted(optional.items())
            ),
        ],
    }


def _extras() -> list[str]:
    every = distribution(NAME).metadata.get_all("Provides-Extra") or []
    return [extra for extra in every if extra not in NOT_FOR_USERS]


def _requirements(name: str, extras: Sequence[str]) -> Iterator[Requirement]:
    for line in distribution(name).requires or ():
        requirement = Requirement(line)
        environments: list[dict[str, str]] = [{"extra": extra} for extra in ("", *extras)]
        marker = requirement.marker
        if marker is None or any(marker.evaluate(each) for each in environments):
            yield requirement


def _needed(name: str, extras: Sequence[str]) -> dict[str, Distribution]:
    """Return all that a distribution needs, directly or not, by its name in one spelling."""
    found: dict[str, Distribution] = {}
    left = list(_requirements(name, extras))
    while left:
        requirement = left.pop()
        key = _spelled(requirement.name)
        try:
            installed = distribution(key)
        except PackageNotFoundError:
            continue
        if key not in found or requirement.extras:
            is_new = key not in found
            found[key] = installed
            below = _requirements(key, sorted(requirement.extras))
            left += [each for each in below if is_new or _spelled(each.name) not in found]
    return found


def _purls(name: str, known: dict[str, Distribution], extras: Sequence[str]) -> set[str]:
    names = {_spelled(each.name) for each in _requirements(name, extras)}
    return {_purl(known[each]) for each in names if each in known}


def _component(each: Distribution, scope: str) -> Json:
    said = [each.metadata.get_all(name) for name in ("License-Expression", "License")]
    licence = next((lines[0] for lines in said if lines), "")
    known: Json = {
        "type": "library",
        "bom-ref": _purl(each),
        "name": each.metadata["Name"],
        "version": each.version,
        "scope": scope,
        "purl": _purl(each),
    }
    if 0 < len(licence) < 60:  # some put the whole text there
        known["licenses"] = [{"license": {"name": licence}}]
    return known


def _purl(each: Distribution) -> str:
    return f"pkg:pypi/{_spelled(each.metadata['Name'])}@{each.version}"


def _spelled(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# --- provenance, hashes, versions ----------------------------------------------------------------


def provenance(hashes: dict[str, str], commit: str) -> Json:
    """Return where the files come from: an in-toto statement, to be signed by who uploads them."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": name, "digest": {"sha256": digest}} for name, digest in hashes.items()
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"https://packaging.python.org/build/{NAME}",
                "externalParameters": {"tag": f"v{__version__}", "command": "make dist"},
                "internalParameters": {
                    "python": platform.python_version(),
                    "build": distribution("build").version,
                },
                "resolvedDependencies": [{"name": NAME, "digest": {"gitCommit": commit}}],
            },
            "runDetails": {"builder": {"id": f"urn:{NAME}:make-release"}},
        },
    }


def hashes_of(files: Sequence[Path]) -> dict[str, str]:
    """Return the SHA-256 of each file, by its name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}


def versions(tags: Sequence[str]) -> list[Json]:
    """Return the list of versions that the site's menu reads, the newest first."""
    numbers = {tag.removeprefix("v") for tag in tags} | {__version__}
    ordered = sorted(numbers, key=Version, reverse=True)
    return [{"version": each, "title": each, "aliases": []} for each in ordered]


FORWARD = f"""<!doctype html>
<html lang="en"><title>pushkit</title>
<meta http-equiv="refresh" content="0; url={__version__}/">
<p><a href="{__version__}/">pushkit {__version__}</a></p></html>
"""


def write(path: Path, content: Any) -> None:
    """Write JSON for people."""
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def git(*arguments: str) -> str:
    """Return the output of git."""
    return subprocess.run(  # noqa: S603
        ["git", *arguments],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
