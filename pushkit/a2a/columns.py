"""One definition for several versions' tables: a row per member, a column per version's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from pushkit.a2a.kinds import many, one
from pushkit.a2a.table import Build, Fixed, Kind, Lost, Member, Need, Table
from pushkit.a2a.updates import WireVersion

COLUMNS = (WireVersion.V0_1, WireVersion.V0_3, WireVersion.V1_0, WireVersion.AGENTVAULT_0_2)

Tables: TypeAlias = Mapping[WireVersion, Table]
"""The same object as each version has it."""


class ReadOnly(str):
    """A name that the version does not define, but senders use: read, and never written."""

    __slots__ = ()


class Elsewhere(str):
    """The place of a value that the version has in another object."""

    __slots__ = ()


class Row:
    """A member, and each version's name for it."""

    def __init__(
        self,
        neutral: str,  # the neutral attribute; empty if there is none
        kind: Kind | Mapping[WireVersion, Kind],  # by version where they differ
        # In the order of `COLUMNS`: two names if the version writes both; None if it has no such
        # member.
        *names: str | tuple[str, str] | None,
        need: Need = Need.NOBODY,
        needed_in: WireVersion | None = None,  # the one version whose writer needs it, if not all
        written: str = "",  # as in `Member`
    ) -> None:
        self.neutral = neutral
        self.kind = kind
        self.names: dict[WireVersion, str | tuple[str, str] | None] = dict(
            zip(COLUMNS, names, strict=False)
        )
        self.need = need
        self.needed_in = needed_in
        self.written = written

    def of(self, version: WireVersion) -> Iterator[Member | Lost]:
        """Yield the rows of one version's table."""
        name = self.names[version]
        kind = self.kind if isinstance(self.kind, Kind) else self.kind[version]
        need = Need.WRITER if version is self.needed_in else self.need
        if isinstance(name, tuple):  # readers accept either
            for each in name:
                yield Member(self.neutral, each, kind, Need.WRITER)
        elif name is None or isinstance(name, Elsewhere):
            if self.neutral:
                yield Lost(self.neutral, kind.absent, elsewhere=name)
        else:
            read_only = isinstance(name, ReadOnly)
            yield Member(self.neutral, name, kind, need, written=self.written, read_only=read_only)


def columns(
    node: type[Any],
    *rows: Row,
    kind: str = "",  # the value of `kind` in 0.3
    has_origin: bool = False,  # whether the class has `origin`, the version that was read
    build: Callable[[WireVersion], Build] | None = None,  # for each version, as in `Table`
) -> dict[WireVersion, Table]:
    """Return the table of each version that the rows have a column for."""
    return {
        version: Table(
            node,
            *([Fixed("kind", kind)] if kind and version is WireVersion.V0_3 else []),
            *(made for row in rows for made in row.of(version)),
            origin=version if has_origin else None,
            build=build(version) if build else None,
        )
        for version in rows[0].names
    }


def one_of(tables: Tables) -> dict[WireVersion, Kind]:
    """Return the kind of a member that holds one such object, for each version."""
    return {version: one(table) for version, table in tables.items()}


def many_of(tables: Tables) -> dict[WireVersion, Kind]:
    """Return the kind of a member that holds a list of such objects, for each version."""
    return {version: many(table) for version, table in tables.items()}
