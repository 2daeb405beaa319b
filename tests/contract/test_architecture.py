"""What `docs/architecture.md` says of a room is in that room."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"


class Room(NamedTuple):
    """A row of one of the page's tables of rooms."""

    package: Path
    names: list[str]  # `delivery/`, or a module
    says: str  # what is in it


def rooms() -> Iterator[Room]:
    package = ROOT
    tables = PAGE.read_text("utf-8").partition("## Rooms")[2].partition("\n\nEach library")[0]
    for line in tables.splitlines():
        first, _, says = line.strip("| ").partition(" | ")
        if first in ("pushkit", "receiver"):
            package = ROOT / first
        elif names := re.findall(r"`(\w+(?:/|\.py))`", first):
            yield Room(package, names, says)


def modules_of(room: Room) -> Iterator[str]:
    """Yield the modules of a room, and those beside it, which its row may mention."""
    yield from (path.name for path in room.package.glob("*.py"))
    for name in room.names:
        if name.endswith("/"):
            yield from (path.name for path in (room.package / name).glob("*.py"))


@pytest.mark.parametrize(
    "room", list(rooms()), ids=lambda room: f"{room.package.name} {room.names[0]}"
)
def test_a_room_has_the_modules_that_the_page_names(room: Room) -> None:
    assert [name for name in room.names if not (room.package / name).exists()] == []
    found = set(modules_of(room))
    named = re.findall(r"`(\w+\.py)`", room.says)
    assert [name for name in named if name not in found] == []
