"""The output of `listen`: the push config, and each arrival, as lines for people or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from pushkit.a2a import (
    ArtifactUpdate,
    MessageUpdate,
    Part,
    PushConfig,
    StatusUpdate,
    TaskSnapshot,
    TaskUpdate,
    TextPart,
    WireVersion,
    format_push_config,
)
from pushkit.bounded_json import JsonObject
from pushkit.terminal.command import painted
from pushkit.terminal.output import document, in_a_line
from receiver.diagnosis.report import said_of, step_lines
from receiver.listening.edge import Arrival

_SHOWN_TEXT = 200
_VERSIONS = ((WireVersion.V1_0, "A2A 1.0"), (WireVersion.V0_3, "A2A 0.2, 0.3"))


def config_lines(config: PushConfig) -> Iterator[str]:
    """Yield the push config for the agent, in the form of each A2A version."""
    for version, name in _VERSIONS:
        written = json.dumps(format_push_config(config, version))
        yield f"  {name:13} {painted(written, bold=True)}"


def arrival_lines(arrival: Arrival, *, brief: bool) -> Iterator[str]:
    """Yield the lines that show an arrival."""
    target = in_a_line(arrival.request.target.partition("?")[0])
    moment = f"{arrival.at.astimezone():%H:%M:%S}"
    yield (
        f"{painted(moment, dim=True)} #{arrival.number} {arrival.request.method} {target}"
        f" from {arrival.peer}, {len(arrival.request.body)} bytes"
    )
    for line in step_lines(arrival.steps, brief=brief):
        yield f"  {line}"
    colour = "green" if arrival.status < 300 else "red"
    yield f"  {painted(f'{arrival.status} {arrival.code}', colour, bold=True)}{_facts(arrival)}"


def arrival_as_json(arrival: Arrival) -> JsonObject:
    """Return an arrival as a JSON object."""
    proven = arrival.proven
    update = proven and proven.update
    facts = ("sender", "delivery_id", "task_id", "seq")
    return {
        **document(arrival, "number at peer status code"),
        "steps": [
            {"step": one.name, "holds": one.result.holds, "says": said_of(one)}
            for one in arrival.steps
        ],
        **{name: getattr(proven, name, None) for name in facts},
        "kind": update.kind.value if update else None,
        "state": update.state.value if update and update.state else None,
    }


def _facts(arrival: Arrival) -> str:
    proven = arrival.proven
    if proven is None:
        return ""
    update = proven.update
    state = update.state.value if update.state else ""
    seq = None if proven.seq is None else f"seq {proven.seq}"
    facts = (proven.task_id, seq, update.kind.value, state)
    shown = "  ".join(in_a_line(fact) for fact in facts if fact)
    text = in_a_line(_text_of(update))
    return f"  {shown}" + (f"  “{text}”" if text else "")


def _text_of(update: TaskUpdate) -> str:
    """Return the beginning of an update's text."""
    parts: Sequence[Part] = ()
    if isinstance(update, ArtifactUpdate):
        parts = update.artifact.parts
    elif isinstance(update, MessageUpdate):
        parts = update.message.parts
    elif isinstance(update, StatusUpdate) and update.status.message:
        parts = update.status.message.parts
    elif isinstance(update, TaskSnapshot) and update.task.status and update.task.status.message:
        parts = update.task.status.message.parts
    text = " ".join(part.text for part in parts if isinstance(part, TextPart))
    return text if len(text) <= _SHOWN_TEXT else f"{text[:_SHOWN_TEXT]}…"
