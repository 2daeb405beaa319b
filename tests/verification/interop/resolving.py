"""Does a2a-pushkit[a2a] install beside each framework, without changing a version of it?

python -m tests.verification.interop.resolving [--only strands]

pip resolves each framework alone, and with pushkit, and installs nothing. Each line is the
framework with the version of a2a-sdk that it brings; the exit status is 1 if a version differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from tests.verification.interop.environments import ROOT

FRAMEWORKS = (
    "google-adk[a2a]",
    "google-adk[a2a]<2",
    "strands-agents[a2a]",
    "agent-framework-a2a",
    "fasta2a",
    "pydantic-ai",
    "crewai[a2a]",
    "a2akit",
    "agno[a2a]",
    "langgraph-api",
)
_PATIENCE = 1800  # seconds
_SAID = 300  # characters of pip's error


def resolved(*requirements: str) -> dict[str, str]:
    """Return what pip would install, by name, with versions. Raises RuntimeError: it refuses."""
    pip = (sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet")
    answer = subprocess.run(  # noqa: S603
        [*pip, "--disable-pip-version-check", "--report", "-", *requirements],
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    if answer.returncode:
        raise RuntimeError(" ".join(answer.stderr.split())[-_SAID:])
    found = [each["metadata"] for each in json.loads(answer.stdout)["install"]]
    return {each["name"].lower().replace("_", "-"): each["version"] for each in found}


def compared(framework: str) -> tuple[bool, str]:
    """Return whether pushkit leaves a framework's versions as they are, and a line about it."""
    try:
        alone = resolved(framework)
        beside = resolved(framework, f"a2a-pushkit[a2a] @ {ROOT.as_uri()}")
    except RuntimeError as exc:
        return False, f"pip refuses: {exc}"
    name = framework.partition("[")[0].partition("<")[0]
    changed = {each: found for each, found in alone.items() if beside.get(each) != found}
    if changed:
        lines = [f"{each} {found} became {beside.get(each)}" for each, found in changed.items()]
        return False, "; ".join(sorted(lines))
    with_sdk = f"a2a-sdk {beside['a2a-sdk']}" if "a2a-sdk" in alone else "without a2a-sdk"
    return True, f"{name} {alone[name]}, {with_sdk}: {len(alone)} versions, all as without pushkit"


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="Only frameworks whose name contains this.")
    only = parser.parse_args().only
    all_as_before = True
    for framework in FRAMEWORKS:
        if only in framework:
            as_before, line = compared(framework)
            all_as_before &= as_before
            sys.stdout.write(f"{'ok' if as_before else 'FAIL'}: {framework}: {line}\n")
            sys.stdout.flush()
    return 0 if all_as_before else 1


if __name__ == "__main__":
    sys.exit(main())
