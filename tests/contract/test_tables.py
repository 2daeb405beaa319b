"""The tables of each version: complete, and what docs/versions.md says they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import pytest

from pushkit.a2a import WireVersion, agentvault
from pushkit.a2a.members import (
    ARTIFACT,
    ARTIFACT_UPDATE,
    MESSAGE,
    PARTS,
    STATUS,
    STATUS_UPDATE,
    TASK,
)
from pushkit.a2a.push_config import CONFIGS
from pushkit.a2a.table import Lost, Member, Table
from tests.contract import pages

AGENTVAULT = WireVersion.AGENTVAULT_0_2
COLUMNS = [WireVersion.V0_1, WireVersion.V0_3, WireVersion.V1_0, AGENTVAULT]
TABLES: dict[str, Mapping[WireVersion, Table]] = {
    "task": TASK,
    "status update": STATUS_UPDATE | {AGENTVAULT: agentvault.STATUS_UPDATE},
    "artifact update": ARTIFACT_UPDATE | {AGENTVAULT: agentvault.ARTIFACT_UPDATE},
    "status": STATUS,
    "message": MESSAGE | {AGENTVAULT: agentvault.MESSAGE},
    "artifact": ARTIFACT | {AGENTVAULT: agentvault.ARTIFACT},
    "config": CONFIGS,
}
NOT_ON_THE_WIRE = {"extra", "envelope_extra", "left_out", "misstated", "origin"}
# What a version says in another object than the neutral form, or not in a member of its own.
ELSEWHERE = {
    ("task", "id", AGENTVAULT): "`taskId`",
    ("task", "status", AGENTVAULT): "beside `taskId`",
    ("status", "state", AGENTVAULT): "`state`",
    ("status", "message", AGENTVAULT): "`message`, its text",
    ("status", "timestamp", AGENTVAULT): "`timestamp`",
    ("status update", "status", AGENTVAULT): "beside `taskId`",
    ("message", "task_id", AGENTVAULT): "`taskId` beside it",
    ("artifact", "parts", AGENTVAULT): "`content`, `url`, `mediaType`",
    ("artifact update", "append", WireVersion.V0_1): "`artifact.append`",
    ("artifact update", "last_chunk", WireVersion.V0_1): "`artifact.lastChunk`",
    ("config", "task_id", WireVersion.V0_1): "`id` around it",
    ("config", "task_id", WireVersion.V0_3): "`taskId` around it",
    ("config", "tenant", WireVersion.V0_3): "dropped",
}


def cell(version: WireVersion, name: str, member: str) -> str:
    if (name, member, version) in ELSEWHERE:
        return ELSEWHERE[name, member, version]
    table = TABLES[name].get(version)
    if table is None:
        return "dropped"
    said = [row for row in table.rows if isinstance(row, Member) and row.neutral == member]
    lost = [row for row in table.rows if isinstance(row, Lost) and row.neutral == member]
    assert bool(said) != bool(lost), f"{version} {name}: {member} stands in no row, or in two"
    if lost:
        return "dropped"
    return ", ".join(f"`{row.wire}`{', read only' * row.read_only}" for row in said)


def rows() -> list[list[str]]:
    found = []
    for name, tables in TABLES.items():
        node = tables[WireVersion.V1_0].node
        for member in (each.name for each in fields(node) if each.name not in NOT_ON_THE_WIRE):
            cells = [cell(version, name, member) for version in COLUMNS]
            found.append([name, f"`{member}`", *cells])
    return found


def test_the_page_lists_each_versions_name_of_each_member() -> None:
    heading = "| object | neutral | in 0.1 | in 0.3 | in 1.0 | in AgentVault |"
    assert pages.table("versions.md", heading) == rows()


@pytest.mark.parametrize("version", WireVersion)
def test_no_member_stands_twice(version: WireVersion) -> None:
    parts = PARTS | {AGENTVAULT: {"message": agentvault.MESSAGE_UPDATE, **agentvault.PARTS}}
    objects = [each[version] for each in TABLES.values() if version in each]
    for table in (*objects, *parts[version].values()):
        wires = [row.wire for row in table.rows if not isinstance(row, Lost)]
        assert len(wires) == len(set(wires)), table.node
