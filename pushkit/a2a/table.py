"""How a version's tables are read and written: one reader, one writer, for every object.

A table is an object as a version has it: a row for each member, that says what the neutral form and
the wire call it, what it holds, and who needs it. Reading is tolerant: only what an update is about
must be there. Writing is strict, because the published 1.0 schema has neither `required` nor
one-of. Members that stand in no row are kept in the object's `extra`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum, auto
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, get_args

from pushkit.a2a.updates import TaskUpdate, UpdateKind, WireVersion
from pushkit.bounded_json import JsonObject, JsonValue, write_json
from pushkit.errors import PushkitError
from pushkit.record import field, record


class MismatchError(Exception):
    """What was found is not what its table says."""

    def __init__(self, expected: str, *path: object) -> None:
        super().__init__(expected)
        self.path: list[object] = list(path)  # where, from the inside out

    def inside(self, step: object) -> MismatchError:
        """Return it with one more step around its path."""
        self.path.append(step)
        return self

    def __str__(self) -> str:
        place = ".".join(str(step) for step in reversed(self.path))
        return f"{place or 'the document'}: {self.args[0]}"


@dataclass(slots=True)
class Writing:
    """One pass of the writer."""

    # Whether what was read beside the known members is written back: it is of this version.
    keep: bool
    # Whether something was written that somebody else made, and that may be no JSON.
    foreign: bool = False


class Need(Enum):
    """Who needs a member."""

    NOBODY = auto()
    WRITER = auto()
    """What is written must have it; what is read may lack it."""
    BOTH = auto()


class Kind(NamedTuple):
    """What a member holds."""

    # From JSON, never null; None counts as absent. Raises MismatchError.
    read: Callable[[Any], Any]
    # To JSON. Raises MismatchError.
    write: Callable[[Any, Writing], Any]
    # What the neutral form has where the member is missing and its class has no default.
    absent: Any = None
    # Whether a value that is empty or false says something, and is written.
    empty_says: bool = False
    null_says: bool = False  # whether none does, too
    table: Table | None = None  # of an object, or of several
    several: bool = False  # whether it is a list of objects
    # The class whose values are JSON already, and mean themselves: they are not handed to `write`,
    # nor to `read` unless they are empty or false.
    as_it_is: type | None = None


@record(frozen=True, slots=True)
class Member:
    """A member that both have."""

    neutral: str  # what the neutral form calls it; empty if it has no place for it
    # What the version calls it. Read in snake_case, too, as ProtoJSON readers do.
    wire: str
    kind: Kind
    need: Need = Need.NOBODY  # who needs it
    # The attribute that is written, where it is another one than is read.
    written: str = field(default="", kw_only=True)
    # The version has no such member, but it is met: read, never written but as `extra`.
    kept: bool = field(default=False, kw_only=True)


class Lost(NamedTuple):
    """A member of the neutral form that the version cannot say, or says elsewhere."""

    neutral: str  # what the neutral form calls it
    read_as: Any = None  # what it has there, where its class has no default
    elsewhere: str | None = None  # where the version says it instead


def lost(*neutral: str) -> list[Lost]:
    """Return the rows of members that the version cannot say."""
    return [Lost(name) for name in neutral]


class Fixed(NamedTuple):
    """A member of the version that always says the same."""

    wire: str
    value: str


Build: TypeAlias = Callable[[dict[str, Any], JsonObject], Any]
"""Makes a neutral object of what was found and of the rest."""


class Table:
    """An object as a version has it."""

    def __init__(
        self,
        node: Any,  # the neutral class, or several
        *rows: Member | Lost | Fixed,  # in the order in which they are written
        build: Build | None = None,  # makes the neutral object, where `node` does not
        # Returns the values of an object in the order of the rows that are written, where they are
        # not its attributes.
        take: Callable[[Any], Sequence[Any]] | None = None,
        extra: str = "extra",  # which attribute keeps the rest; empty if the rest is dropped
        origin: WireVersion | None = None,  # for a class that says where it was read
    ) -> None:
        self.node = node
        self.nodes: tuple[type, ...] = get_args(node) or (node,)
        self.rows = rows
        members = [row for row in rows if isinstance(row, Member)]
        written = [row for row in members if not row.kept]
        self._build = build
        if not (build or extra):
            self._build = lambda found, _: node(**found)
        self._take = take or _attributes(written)
        self._rest = extra
        self._extra = attrgetter(extra) if extra else None
        self._fixed: JsonObject = {row.wire: row.value for row in rows if isinstance(row, Fixed)}
        self._written = [
            (row.wire, row.kind.as_it_is, row.kind.write, row.kind, row.need is not Need.NOBODY)
            for row in written
        ]
        self._by_name: dict[str, Member | None] = dict.fromkeys(self._fixed)
        for row in members:
            self._by_name |= {row.wire: row, snake_case(row.wire): row}
        self._spoken = {name for row in written for name in (row.wire, snake_case(row.wire))}
        self._needed = [row for row in members if row.need is Need.BOTH]
        needed = {row.neutral for row in self._needed}
        self._absent: dict[str, Any] = {} if origin is None else {"origin": origin}
        required = _without_default(node)
        for each in rows:
            if isinstance(each, Lost) and each.neutral in required:
                self._absent[each.neutral] = each.read_as
            elif isinstance(each, Member) and each.neutral in required - needed:
                self._absent[each.neutral] = each.kind.absent

    def read(self, document: object) -> Any:
        """Read one object. Raises MismatchError."""
        if not isinstance(document, dict):
            raise MismatchError("expected an object")
        found = self._absent.copy()
        rest: JsonObject = {}
        for name, value in document.items():
            row = self._by_name.get(name, _UNKNOWN)
            if row is _UNKNOWN:
                rest[name] = value
                continue
            if row is None:
                continue
            if name != row.wire and row.wire in document:
                # Two readers could each take another one of the two for the truth.
                raise MismatchError(f"{row.wire} is given in both spellings")
            if value is None and row.need is not Need.BOTH:
                continue
            means_itself = value and value.__class__ is row.kind.as_it_is
            try:
                said = value if means_itself else row.kind.read(value)
            except MismatchError as exc:
                raise exc.inside(row.wire) from None
            if said is not None and row.neutral:
                found[row.neutral] = said
            if row.kept:
                rest[name] = value
        for row in self._needed:
            if found.get(row.neutral) is None:
                raise MismatchError("expected, but missing", row.wire)
        if self._build is not None:
            return self._build(found, rest)
        found[self._rest] = rest
        return self.node(**found)

    def write(self, node: Any, writing: Writing) -> JsonObject:
        """Write one object. Raises MismatchError."""
        said: dict[str, Any] = self._fixed.copy()
        values = self._take(node)
        rows = zip(self._written, values)  # noqa: B905  # strict= takes longer than a member
        for (wire, as_it_is, write, kind, needed), value in rows:
            if value or (kind.empty_says and (value is not None or kind.null_says)):
                if value.__class__ is as_it_is:
                    said[wire] = value
                    continue
                try:
                    said[wire] = write(value, writing)
                except MismatchError as exc:
                    raise exc.inside(wire) from None
            elif needed:
                raise MismatchError("expected a value that is not empty", wire)
        if writing.keep:
            self.write_rest(said, node, writing)
        return said

    def write_rest(self, said: JsonObject, node: Any, writing: Writing) -> None:
        """Add what an object keeps beside its known members."""
        rest: Mapping[str, JsonValue] = self._extra(node) if self._extra else {}
        for name, value in rest.items():
            if name not in self._spoken and name not in said:
                writing.foreign = True
                said[name] = value


Writer: TypeAlias = Callable[[Any, Writing], JsonObject]
"""Writes one kind of update."""


class Dialect(NamedTuple):
    """One version: how its notifications are read, and each kind of update written; its tables."""

    read: Callable[[JsonObject], TaskUpdate]
    writers: Mapping[UpdateKind, Writer]
    tables: tuple[Table, ...]


_UNKNOWN = Member("", "", Kind(read=bool, write=lambda value, _: value))


@contextmanager
def reading(error: type[PushkitError]) -> Iterator[None]:
    """Make a mismatch, or what is no JSON, an error of the package's own."""
    try:
        yield
    except (MismatchError, ValueError) as exc:
        raise error(str(exc)) from exc


def json_object(document: object) -> JsonObject:
    """Return what somebody else made as a dict. Raises MismatchError: it is no object."""
    if not isinstance(document, Mapping):  # a client's JSON may be anything
        raise MismatchError("expected an object")
    return dict(document)


def json_copy(document: object) -> JsonObject:
    """Return a copy of it. Raises MismatchError: no object; ValueError: no JSON."""
    copy: JsonObject = json.loads(write_json(json_object(document)))
    return copy


def _attributes(rows: Sequence[Member]) -> Callable[[Any], Sequence[Any]]:
    names = [row.written or row.neutral for row in rows]
    get = attrgetter(*names) if names else lambda _: ()
    return get if len(names) != 1 else lambda node: (get(node),)


def _without_default(node: object) -> set[str]:
    if not is_dataclass(node):
        return set()
    return {
        each.name
        for each in fields(node)
        if each.default is MISSING and each.default_factory is MISSING
    }


def snake_case(name: str) -> str:
    """Return a camelCase name as ProtoJSON readers take it besides."""
    return re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
