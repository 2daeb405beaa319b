"""Tables: the one reader and the one writer of every version's objects.

A table describes an object in one version. It has a row for each member: its neutral name, its name
on the wire, the kind of its value, and who needs it. Reading is tolerant: only members that
identify the subject of an update are required. Writing is strict, because the published 1.0 schema
has neither `required` nor one-of. Members without a row are kept in the object's `extra`.
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
    """A value does not match its table."""

    def __init__(self, expected: str, *path: object) -> None:
        super().__init__(expected)
        self.path: list[object] = list(path)  # of the value, innermost step first

    def inside(self, step: object) -> MismatchError:
        """Add an outer step to the path, and return the error."""
        self.path.append(step)
        return self

    def __str__(self) -> str:
        place = ".".join(str(step) for step in reversed(self.path))
        return f"{place or 'the document'}: {self.args[0]}"


class AmbiguousError(MismatchError):
    """Readers could disagree on a value: the whole document is refused."""


class Reading:
    """The state of reading one document that is read as far as it can be."""

    def __init__(self) -> None:
        self.left_out: dict[str, None] = {}  # members that cannot be read, each with the reason

    def leave_out(self, member: str) -> None:
        """Note a member that cannot be read."""
        if len(self.left_out) < _MOST_LEFT_OUT:
            self.left_out[member] = None


_MOST_LEFT_OUT = 16


@dataclass(slots=True)
class Writing:
    """The state of writing one document."""

    keep: bool  # whether `extra` is written back, because it was read in this version
    foreign: bool = False  # whether a value from outside pushkit was written, which may not be JSON


class Need(Enum):
    """Whether a member is required."""

    NOBODY = auto()
    WRITER = auto()
    """Required when writing; it may be missing when reading."""
    BOTH = auto()


class Kind(NamedTuple):
    """How values of a kind are read and written."""

    # Reads JSON that is not null; a result of None counts as absent. Raises MismatchError.
    read: Callable[[Any, Reading | None], Any]
    # Returns JSON. Raises MismatchError.
    write: Callable[[Any, Writing], Any]
    # The neutral value of a missing member, if the neutral class has no default.
    absent: Any = None
    writes_empty: bool = False  # whether empty and false values are written
    writes_null: bool = False  # whether None is written, too
    table: Table | None = None  # of the object, or of the objects in a list
    several: bool = False  # whether the value is a list of objects
    # A class whose values are the same in JSON: `write` is not called for them, nor `read` unless
    # they are empty or false.
    json_type: type | None = None


@record(frozen=True, slots=True)
class Member:
    """A member of the version's object."""

    neutral: str  # the neutral attribute; empty if there is none
    wire: str  # the version's name. Its snake_case form is read, too, as ProtoJSON readers do.
    kind: Kind
    need: Need = Need.NOBODY
    # The attribute that is written, if it is not the one that is read.
    written: str = field(default="", kw_only=True)
    # The version does not define the member, but senders use it: it is read, kept in `extra`, and
    # otherwise not written.
    read_only: bool = field(default=False, kw_only=True)
    # Without it, the update would mean something else: its object cannot be read if it cannot.
    strict: bool = field(default=False, kw_only=True)


class Lost(NamedTuple):
    """A neutral attribute that the version cannot carry, or has in another object."""

    neutral: str
    read_as: Any = None  # its value after reading, if the neutral class has no default


def lost(*neutral: str) -> list[Lost]:
    """Return rows for attributes that the version cannot carry."""
    return [Lost(name) for name in neutral]


class Fixed(NamedTuple):
    """A member of the version's object with a fixed value."""

    wire: str
    value: str


_Read: TypeAlias = "tuple[str, type | None, Callable[[Any, Reading | None], Any], Member]"
"""How a name is read: its attribute, the class whose values stay the same, the reader, the row."""
Build: TypeAlias = Callable[[dict[str, Any], JsonObject], Any]
"""Makes a neutral object from the values by attribute, and from the members without a row."""


class Table:
    """An object in one version."""

    def __init__(
        self,
        node: Any,  # the neutral class, or a union of several
        *rows: Member | Lost | Fixed,  # in the order of writing
        build: Build | None = None,  # makes the neutral object, if not `node`
        # Returns the values to write, in the order of the rows, if not simply the attributes.
        values: Callable[[Any], Sequence[Any]] | None = None,
        extra: str = "extra",  # the attribute for members without a row; empty to drop them
        origin: WireVersion | None = None,  # the version, for a class that has it as an attribute
    ) -> None:
        self.node = node
        self.nodes: tuple[type, ...] = get_args(node) or (node,)
        self._name = self.nodes[0].__name__.lstrip("_")
        self.rows = rows
        members = [row for row in rows if isinstance(row, Member)]
        written = [row for row in members if not row.read_only]
        self._build = build
        if not (build or extra):
            self._build = lambda found, _: node(**found)
        self._values = values or _attributes(written)
        self._extra = extra
        self._extra_of = attrgetter(extra) if extra else None
        self._fixed: JsonObject = {row.wire: row.value for row in rows if isinstance(row, Fixed)}
        self._written = [
            (row.wire, row.kind.json_type, row.kind.write, row.kind, row.need is not Need.NOBODY)
            for row in written
        ]
        self._by_name: dict[str, _Read] = {}
        for row in members:
            read = row.kind.read
            same = row.kind.json_type if row.neutral and not row.read_only else None
            self._by_name[snake_case(row.wire)] = (row.neutral, None, read, row)
            self._by_name[row.wire] = (row.neutral, same, read, row)
        self._written_names = {n for row in written for n in (row.wire, snake_case(row.wire))}
        self._needed = [(row.neutral, row.wire) for row in members if row.need is Need.BOTH]
        both = {neutral for neutral, _ in self._needed}
        self._absent: dict[str, Any] = {} if origin is None else {"origin": origin}
        required = _without_default(node)
        for each in rows:
            if isinstance(each, Lost) and each.neutral in required:
                self._absent[each.neutral] = each.read_as
            elif isinstance(each, Member) and each.neutral in required - both:
                self._absent[each.neutral] = each.kind.absent

    def read(self, document: object, reading: Reading | None = None) -> Any:
        """Read one object.

        Args:
            document: The parsed JSON.
            reading: Receives the optional members that cannot be read; None to raise an error.

        Raises:
            MismatchError: It cannot be read.
        """
        if not isinstance(document, dict):
            raise MismatchError("expected an object")
        found = self._absent.copy()
        rest: JsonObject = {}
        by_name = self._by_name
        for name, value in document.items():
            row = by_name.get(name)
            if row is None:
                if name not in self._fixed:
                    rest[name] = value
                continue
            attribute, same, read, member = row
            if value and value.__class__ is same:
                found[attribute] = value
                continue
            if name != member.wire and member.wire in document:
                # Readers could disagree on which of the two counts.
                raise AmbiguousError(f"{member.wire} is given in both spellings")
            if value is None and member.need is not Need.BOTH:
                continue
            try:
                neutral = read(value, reading)
            except MismatchError as exc:
                exc.inside(member.wire)
                is_needed = member.strict or member.need is Need.BOTH
                if reading is None or is_needed or isinstance(exc, AmbiguousError):
                    raise exc from None
                reading.leave_out(f"{self._name}.{exc}")
                continue
            if neutral is not None and attribute:
                found[attribute] = neutral
            if member.read_only:
                rest[name] = value
        return self._made(found, rest)

    def _made(self, found: dict[str, Any], rest: JsonObject) -> Any:
        """Return the neutral object of what was read. Raises MismatchError."""
        for attribute, wire in self._needed:
            if found.get(attribute) is None:
                raise MismatchError("expected, but missing", wire)
        if self._build is not None:
            return self._build(found, rest)
        found[self._extra] = rest
        return self.node(**found)

    def write(self, node: Any, writing: Writing) -> JsonObject:
        """Write one object. Raises MismatchError."""
        document: dict[str, Any] = self._fixed.copy()
        try:
            values = self._values(node)
        except (AttributeError, TypeError) as exc:
            if isinstance(node, self.nodes):
                raise MismatchError(f"a member has a wrong type: {exc}") from exc
            expected = " or ".join(each.__name__ for each in self.nodes)
            raise MismatchError(f"found {type(node).__name__}, expected {expected}") from exc
        rows = zip(self._written, values)  # noqa: B905  # strict= takes longer than a member
        for (wire, json_type, write, kind, needed), value in rows:
            if value or (kind.writes_empty and (value is not None or kind.writes_null)):
                if value.__class__ is json_type:
                    document[wire] = value
                    continue
                try:
                    document[wire] = write(value, writing)
                except MismatchError as exc:
                    raise exc.inside(wire) from None
            elif needed:
                raise MismatchError("expected a value that is not empty", wire)
        if writing.keep:
            self.write_extra(document, node, writing)
        return document

    def write_extra(self, document: JsonObject, node: Any, writing: Writing) -> None:
        """Add the members without a row that an object keeps."""
        extra: Mapping[str, JsonValue] = self._extra_of(node) if self._extra_of else {}
        for name, value in extra.items():
            if name not in self._written_names and name not in document:
                writing.foreign = True
                document[name] = value


Writer: TypeAlias = Callable[[Any, Writing], JsonObject]
"""Writes one kind of update."""


class Dialect(NamedTuple):
    """One version: the reader of its notifications, and a writer per kind of update."""

    read: Callable[[JsonObject, Reading], TaskUpdate]
    writers: Mapping[UpdateKind, Writer]


@contextmanager
def reading(error: type[PushkitError]) -> Iterator[None]:
    """Raise a mismatch, or a value that is not JSON, as the package's own error."""
    try:
        yield
    except (MismatchError, ValueError) as exc:
        raise error(str(exc)) from exc


def json_object(document: object) -> JsonObject:
    """Return a mapping from outside as a dict. Raises MismatchError: it is not a mapping."""
    if not isinstance(document, Mapping):
        raise MismatchError("expected an object")
    return dict(document)


def json_copy(document: object) -> JsonObject:
    """Return a copy of a JSON object. Raises MismatchError: no object; ValueError: not JSON."""
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
    """Return the snake_case form of a camelCase name, which ProtoJSON readers accept, too."""
    return re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
