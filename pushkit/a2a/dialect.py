"""One A2A version: what every dialect has, and the rule about `extra`.

`rewritten` says what would be written for a member as received; where that is not the original, the
original is kept (`unsaid`), and written back as long as `rewritten` still agrees (`written`).
"""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from typing import ClassVar, TypeVar, cast

from pushkit.a2a.updates import Role, TaskState, TaskUpdate, WireVersion
from pushkit.a2a.wire import (
    WireObject,
    format_timestamp,
    member_names,
    read_timestamp,
    received,
)
from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.errors import InvalidUpdateError

__all__ = ["Dialect", "timestamp_text", "without_extra"]

Node = TypeVar("Node")


class Dialect(ABC):
    """One A2A version: reads its JSON into neutral updates, and writes them."""

    version: ClassVar[WireVersion]
    state_names: ClassVar[Mapping[TaskState, str]]
    role_names: ClassVar[Mapping[Role, str]]
    # Members whose empty value says something, so that it is written.
    verbatim: ClassVar[frozenset[str]]

    @abstractmethod
    def read(self, document: Mapping[str, JsonValue]) -> TaskUpdate:
        """Read a notification. Raises UnrecognisedBodyError."""

    @abstractmethod
    def write(self, update: TaskUpdate) -> JsonObject:
        """Write a notification, checked against the specification. Raises InvalidUpdateError."""

    @abstractmethod
    def read_state(self, name: JsonValue) -> TaskState:
        """Read a state; `unknown` if it has no name here."""

    @abstractmethod
    def read_role(self, name: JsonValue) -> Role:
        """Read a role; `unspecified` if it has no name here."""

    def rewritten(self, member: str, original: JsonValue) -> JsonValue:
        """Return what is written for a known member that was read as `original`, None: nothing."""
        match member:
            case "state":
                return self.state_names.get(self.read_state(original))
            case "role":
                return self.role_names.get(self.read_role(original))
            case "timestamp":
                moment = read_timestamp(original)
                return format_timestamp(moment) if moment else None
        if member in self.verbatim or not _says_nothing(original):
            return original
        return None

    def unsaid(self, model: WireObject) -> JsonObject:
        """Return what was received and the neutral form has no place for."""
        known = member_names(type(model))
        return {
            member: original
            for member, original in received(model).items()
            if member not in known or not self._comes_back(member, original)
        }

    def _comes_back(self, member: str, original: JsonValue) -> bool:
        if original is None:
            return member == "data"  # the one member for which null is a value
        return self.rewritten(member, original) == original

    def written(
        self,
        model: type[WireObject],
        members: Mapping[str, JsonValue],
        extra: Mapping[str, JsonValue],
    ) -> JsonObject:
        """Return the members that are written: those that say something, and what was kept."""
        known = member_names(model)
        said: JsonObject = {member: value for member, value in members.items() if value is not None}
        for member, original in extra.items():
            if member not in known or self.rewritten(member, original) == said.get(member):
                said[member] = original
        return said


def without_extra(node: Node) -> Node:
    """Return an update, or anything in one, without what was kept from its origin's version."""
    if isinstance(node, tuple):
        items = tuple(map(without_extra, node))
        # What has nothing to lose is not built anew: most updates are the agent's own.
        return node if all(map(operator.is_, items, node)) else cast("Node", items)
    changes: dict[str, object] = {}
    kind: type = type(node)
    for name in _members(kind):
        value = getattr(node, name)
        said = (value and {}) if name in _KEPT else without_extra(value)
        if said is not value:
            changes[name] = said
    return replace(node, **changes) if changes else node  # type: ignore[type-var]  # has members


@functools.cache
def _members(node: type) -> tuple[str, ...]:
    return tuple(item.name for item in fields(node)) if is_dataclass(node) else ()


_KEPT = frozenset({"extra", "envelope_extra"})


def _says_nothing(value: JsonValue) -> bool:
    return value is None or value is False or value in ("", [], {})


def timestamp_text(moment: datetime) -> str:
    """Write the timestamp of a status. Raises InvalidUpdateError: naive, or out of range."""
    if moment.utcoffset() is None:
        raise InvalidUpdateError("status.timestamp: expected an aware datetime")
    try:
        return format_timestamp(moment)
    except OverflowError as exc:
        raise InvalidUpdateError("status.timestamp: outside the years 1 to 9999 in UTC") from exc
