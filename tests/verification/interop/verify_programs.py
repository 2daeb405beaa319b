"""The programs of examples/verify, each in another language, before docs/vectors."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from typing import Any

from tests.verification.interop.environments import (
    ROOT,
    cargo_program,
    go_program,
    maven_program,
    typescript_program,
)
from tests.verification.interop.processes import MismatchError

__all__ = ["PROGRAMS", "VECTORS", "judged", "vectors_before", "verdicts_of"]

VECTORS = ROOT / "docs" / "vectors"
_EXAMPLES = ROOT / "examples" / "verify"
# What of the wire profile's §4 the JWT decides.
_STEPS = {2, 3, 4}

PROGRAMS: dict[str, Callable[[], tuple[str, ...]]] = {
    "go-jose 4.1.8 (Go)": lambda: go_program(_EXAMPLES / "go"),
    "nimbus-jose-jwt 10.9.1 (Java)": lambda: maven_program(_EXAMPLES / "java"),
    "jose 6.2.17 (TypeScript)": lambda: typescript_program(_EXAMPLES / "typescript"),
    "jsonwebtoken 11.1.0 (Rust)": lambda: cargo_program(_EXAMPLES / "rust", "verify"),
}


async def vectors_before(program: str) -> str:
    """Build a program, put every vector of the JWT to it, and say how many it judged rightly."""
    command = await asyncio.to_thread(PROGRAMS[program])
    return judged(await asyncio.to_thread(verdicts_of, (*command, str(VECTORS))))


def verdicts_of(command: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return what a program says of each vector, by its id."""
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=False, timeout=120
    )
    if done.returncode:
        raise MismatchError(f"status {done.returncode}: {done.stderr.strip()[-200:]}")
    return {line["id"]: line for line in map(json.loads, done.stdout.splitlines())}


def judged(said: dict[str, dict[str, Any]]) -> str:
    """Hold what a verifier said against the vectors that are about the JWT.

    Raises:
        MismatchError: It accepts what everybody must refuse, or the other way round.
    """
    found: dict[str, Any] = json.loads((VECTORS / "notifications.json").read_bytes())
    signers = {
        sender["name"]
        for sender in found["senders"]
        if sender["profile"] == "standard" and "jwt" in sender["schemes"]
    }
    asked = [one for one in found["vectors"] if one["request"]["sender"] in signers]
    counts = {True: 0, False: 0}
    for vector in asked:
        good = vector["expected"]["step"] not in _STEPS
        line = said.get(vector["id"])
        if line is None:
            raise MismatchError(f"it says nothing of {vector['id']}")
        if vector["level"] == "must":
            if line["accepted"] is not good:
                raise MismatchError(f"{vector['id']}: {line.get('reason') or 'accepted'}")
            counts[good] += 1
    return f"{counts[True]} accepted, {counts[False]} refused, all of them rightly"
