"""One definition for several versions' tables: a row per member, a column per version's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from pushkit.a2a.kinds import many, one
from pushkit.a2a.table import Build, Fixed, Kind, Lost, Member, Need, Table
from pushkit.a2a.updates import WireVersion

COLUMNS = (WireVersion.V0_1, WireVersion.V0_3, WireVersion.V1_0, WireVersion.AGENTVAULT_0_2)

Tables: TypeAlias = Mapping[WireVersion, Table]
"""The same object as each version has it."""
Row: TypeAlias = Mapping[WireVersion, Sequence[Member | Lost]]
"""A member: its rows in the table of each version."""


class ReadOnly(str):
    """A name that the version does not define, but senders use: read, and never written."""

    __slots__ = ()


def row(
    neutral: str,  # the neutral attribute; empty if there is none
    kind: Kind | Mapping[WireVersion, Kind],  # by version where they differ
    # In the order of `COLUMNS`: two if the version writes both; None if it has no such member.
    *names: str | tuple[str, str] | None,
    need: Need = Need.NOBODY,
    needed_in: WireVersion | None = None,  # the one version whose writer needs it, if not all
    written: str = "",  # as in `Member`
    strict: bool = False,  # as in `Member`
) -> Row:
    """Return a member's rows in the table of each version."""
    rows: dict[WireVersion, list[Member | Lost]] = {}
    for version, name in zip(COLUMNS, names, strict=False):
        its = kind if isinstance(kind, Kind) else kind[version]
        if isinstance(name, tuple):  # readers accept either
            rows[version] = [
                Member(neutral, each, its, Need.WRITER, strict=strict) for each in name
            ]
        elif name is None:
            rows[version] = [Lost(neutral, its.absent)] if neutral else []
        else:
            needed = Need.WRITER if version is needed_in else need
            read_only = isinstance(name, ReadOnly)
            rows[version] = [
                Member(
                    *(neutral, name, its, needed),
                    written=written,
                    read_only=read_only,
                    strict=strict,
                )
            ]
    return rows


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
            *(made for each in rows for made in each[version]),
            origin=version if has_origin else None,
            build=build(version) if build else None,
        )
        for version in rows[0]
    }


def one_of(tables: Tables) -> dict[WireVersion, Kind]:
    """Return the kind of a member that holds one such object, for each version."""
    return {version: one(table) for version, table in tables.items()}


def many_of(tables: Tables) -> dict[WireVersion, Kind]:
    """Return the kind of a member that holds a list of such objects, for each version."""
    return {version: many(table) for version, table in tables.items()}
