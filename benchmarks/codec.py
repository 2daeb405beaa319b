"""The cost of encoding and decoding an update, in µs, in each version of A2A.

python benchmarks/codec.py [--beside CHECKOUT]

- status: a status update without a message, as most notifications are.
- data: an artifact update with 15 KB of structured data, 120 records of 7 members.
- task: a whole task with a history of 50 messages.

A figure is the minimum of many rounds, each long enough to be measured. `--beside` also measures
the code of another checkout, round by round in turn, each in its own process; the table shows how
many times faster this checkout is. The ratios are more reliable than the times.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
ROUNDS = 6
REPEATS = 30
ROUND_SECONDS = 0.004

Figures = dict[str, float]


def least(action: Callable[[], object]) -> float:
    """Return the least time of an action, in µs."""
    times, best = 1, float("inf")
    for _ in range(REPEATS):
        begun = time.perf_counter()
        for _ in range(times):
            action()
        took = time.perf_counter() - begun
        best = min(best, took / times)
        times = max(1, int(ROUND_SECONDS / best))
    return best * 1e6


def measure() -> Figures:
    """Return the figures of the code that is imported."""
    from pushkit.a2a import (
        Artifact,
        ArtifactUpdate,
        DataPart,
        Message,
        Role,
        StatusUpdate,
        Task,
        TaskSnapshot,
        TaskState,
        TaskStatus,
        TaskUpdate,
        TextPart,
        WireVersion,
        decode_update,
        encode_update,
    )
    from pushkit.bounded_json import JsonValue

    status = TaskStatus(state=TaskState.WORKING, timestamp=datetime(2026, 1, 2, tzinfo=UTC))
    records: list[JsonValue] = [
        {
            "id": number,
            "name": f"item {number}",
            "price": number * 1.25,
            "tags": ["alpha", "beta"],
            "ok": True,
            "note": None,
            "nested": {"x": number, "y": "z" * 10},
        }
        for number in range(120)
    ]
    artifact = Artifact(artifact_id="rows", parts=(DataPart(data={"rows": records}),))
    history = tuple(
        Message(
            message_id=f"message-{number}",
            role=Role.AGENT if number % 2 else Role.USER,
            parts=(TextPart(text=f"This is turn {number} of a conversation that goes on."),),
            context_id="context-1",
            task_id="task-1",
        )
        for number in range(50)
    )
    task = Task(id="task-1", context_id="context-1", status=status, history=history)
    updates: dict[str, TaskUpdate] = {
        "status": StatusUpdate(task_id="task-1", context_id="context-1", status=status),
        "data": ArtifactUpdate(task_id="task-1", context_id="context-1", artifact=artifact),
        "task": TaskSnapshot(task=task),
    }
    found: Figures = {}
    for name, update in updates.items():
        for version in WireVersion:
            body = encode_update(update, version)
            found[f"encode {name} {version}"] = least(lambda: encode_update(update, version))  # noqa: B023
            found[f"decode {name} {version}"] = least(lambda: decode_update(body))  # noqa: B023
    return found


def measured_in(checkout: Path) -> Figures:
    """Return the figures of a checkout's code, out of a process of its own."""
    command = [sys.executable, str(Path(__file__).resolve()), "--root", str(checkout), "--json"]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: Figures = json.loads(run.stdout)
    return figures


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT")
    parser.add_argument("--root", type=Path, default=HERE, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path.insert(0, str(options.root))
    if options.json:
        sys.stdout.write(json.dumps(measure()))
        return
    checkouts = [HERE] if options.beside is None else [HERE, options.beside.resolve()]
    best: list[Figures] = [{} for _ in checkouts]
    for _ in range(ROUNDS):
        for known, checkout in zip(best, checkouts, strict=True):
            for name, took in measured_in(checkout).items():
                known[name] = min(known.get(name, took), took)
    sys.stdout.write(
        f"{'':<32}{'here':>10}{'' if len(best) == 1 else '    beside    times less'}\n"
    )
    for name, took in best[0].items():
        beside = "".join(f"{other[name]:>10.1f}{other[name] / took:>14.2f}" for other in best[1:])
        sys.stdout.write(f"{name:<32}{took:>10.1f}{beside}\n")


if __name__ == "__main__":
    main()
