"""The tables of each version: complete, and what docs/versions.md says they are."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from pushkit.a2a import (
    Artifact,
    ArtifactUpdate,
    Message,
    PushConfig,
    StatusUpdate,
    Task,
    TaskStatus,
    WireVersion,
)
from pushkit.a2a.codec import DIALECTS
from pushkit.a2a.push_config import CONFIGS
from pushkit.a2a.table import Lost, Member, Table

PAGE = (Path(__file__).parents[3] / "docs" / "versions.md").read_text("utf-8")
COLUMNS = [WireVersion.V0_1, WireVersion.V0_3, WireVersion.V1_0, WireVersion.AGENTVAULT_0_2]
OBJECTS: dict[str, type] = {
    "task": Task,
    "status update": StatusUpdate,
    "artifact update": ArtifactUpdate,
    "status": TaskStatus,
    "message": Message,
    "artifact": Artifact,
    "config": PushConfig,
}
NOT_ON_THE_WIRE = {"extra", "envelope_extra", "origin"}
# What a version says in another object than the neutral form, or not in a member of its own.
ELSEWHERE = {
    ("task", "id", WireVersion.AGENTVAULT_0_2): "`taskId`",
    ("task", "status", WireVersion.AGENTVAULT_0_2): "beside `taskId`",
    ("status", "state", WireVersion.AGENTVAULT_0_2): "`state`",
    ("status", "message", WireVersion.AGENTVAULT_0_2): "`message`, its text",
    ("status", "timestamp", WireVersion.AGENTVAULT_0_2): "`timestamp`",
    ("status update", "status", WireVersion.AGENTVAULT_0_2): "beside `taskId`",
    ("message", "task_id", WireVersion.AGENTVAULT_0_2): "`taskId` beside it",
    ("artifact", "parts", WireVersion.AGENTVAULT_0_2): "`content`, `url`, `mediaType`",
    ("config", "task_id", WireVersion.V0_3): "`taskId` around it",
    ("config", "tenant", WireVersion.V0_3): "dropped",
}


def table_of(version: WireVersion, name: str) -> Table | None:
    if name == "config":
        return CONFIGS[version]
    node = OBJECTS[name]
    return next((table for table in DIALECTS[version].tables if table.node is node), None)


def cell(version: WireVersion, name: str, member: str) -> str:
    if (name, member, version) in ELSEWHERE:
        return ELSEWHERE[name, member, version]
    table = table_of(version, name)
    if table is None:
        return "dropped"
    said = [row for row in table.rows if isinstance(row, Member) and row.neutral == member]
    lost = [row for row in table.rows if isinstance(row, Lost) and row.neutral == member]
    assert bool(said) != bool(lost), f"{version} {name}: {member} stands in no row, or in two"
    if lost:
        return lost[0].elsewhere or "dropped"
    return ", ".join(f"`{row.wire}`{', read only' * row.read_only}" for row in said)


def rows() -> list[str]:
    found = []
    for name, node in OBJECTS.items():
        for member in (each.name for each in fields(node) if each.name not in NOT_ON_THE_WIRE):
            cells = [cell(version, name, member) for version in COLUMNS]
            found.append(f"| {name} | `{member}` | {' | '.join(cells)} |")
    return found


def test_the_page_lists_each_versions_name_of_each_member() -> None:
    lines = PAGE.splitlines()
    begin = lines.index("| object | neutral | in 0.1 | in 0.3 | in 1.0 | in AgentVault |") + 2
    end = next(number for number in range(begin, len(lines)) if not lines[number])
    assert lines[begin:end] == rows()


@pytest.mark.parametrize("version", WireVersion)
def test_no_member_stands_twice(version: WireVersion) -> None:
    for table in DIALECTS[version].tables:
        wires = [row.wire for row in table.rows if not isinstance(row, Lost)]
        assert len(wires) == len(set(wires)), table.node
