"""The filters of clients and operators: the extension of a push config, and an adapter's option.

A2A's config has no member for it, so a client that knows the extension puts it under the URI:

    {"url": "https://client.example.com/a2a",
     "urn:pushkit:push-filter:v1": {"states": ["completed", "failed"], "lastChunkOnly": true}}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypeVar

from pushkit.a2a import PushConfig, TaskState, UpdateKind
from pushkit.a2a.members import STATE_NAMES
from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.errors import InvalidPushConfigError
from pushkit.subscriptions.model import EVERYTHING, Filter

_T = TypeVar("_T")
_HOUR: Final = 3600

FILTER_EXTENSION: Final = "urn:pushkit:push-filter:v1"
"""The URI of the extension, in a card's `capabilities.extensions`, and its member in a config."""

FilterChoice: TypeAlias = Filter | Callable[[str], Filter]
"""One filter for all clients, or a function that returns the filter of an owner."""

GATHERED_EVERY: Final = timedelta(seconds=1)
"""The `min_interval` of the adapters to SDKs: agents stream their artifacts token by token."""

# As 0.3 and as 1.0 spell them.
_STATES = {state.value: state for state in TaskState} | {
    name: state for state, name in STATE_NAMES.items()
}
_KINDS = {kind.value: kind for kind in UpdateKind} | {
    "statusUpdate": UpdateKind.STATUS_UPDATE,
    "artifactUpdate": UpdateKind.ARTIFACT_UPDATE,
}


def chosen_filter(
    choice: FilterChoice, owner: str, *, min_interval: timedelta | None = None
) -> Filter:
    """Return the filter of an owner, which gathers at least so long."""
    wanted = choice if isinstance(choice, Filter) else choice(owner)
    return wanted.narrowed(Filter(min_interval=min_interval))


def requested_filter(config: PushConfig) -> Filter:
    """Return the filter that a client asks for in its config; all updates if it asks for none.

    Raises:
        InvalidPushConfigError: It asks for something that is not understood: a client that got more
            than it asked for would not know why.
    """
    asked = config.extra.get(FILTER_EXTENSION)
    if asked is None:
        return EVERYTHING
    if not isinstance(asked, Mapping):
        raise _refusal("", asked, "an object")
    for name in asked:
        if name not in _READERS:
            raise _refusal("", name, f"only the members {', '.join(_READERS)}")
    read = {name: _READERS[name](name, value) for name, value in asked.items() if value is not None}
    return Filter(
        states=read.get("states"),
        kinds=read.get("kinds"),
        last_chunk_only=read.get("lastChunkOnly", False),
        min_interval=read.get("minInterval"),
    )


def write_filter(wanted: Filter) -> JsonObject:
    """Return a filter as a client reads it back: the value of the extension's member."""
    found: JsonObject = {}
    if wanted.states is not None:
        found["states"] = [*sorted(wanted.states)]
    if wanted.kinds is not None:
        found["kinds"] = [*sorted(wanted.kinds)]
    if wanted.last_chunk_only:
        found["lastChunkOnly"] = True
    if wanted.min_interval is not None:
        found["minInterval"] = wanted.min_interval.total_seconds()
    return found


def _named(known: Mapping[str, _T]) -> Callable[[str, JsonValue], frozenset[_T]]:
    def read(member: str, value: JsonValue) -> frozenset[_T]:
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise _refusal(member, value, "a list")
        for each in value:
            if not isinstance(each, str) or each not in known:
                raise _refusal(member, each, f"one of {', '.join(known)}")
        return frozenset(known[str(each)] for each in value)

    return read


def _flag(member: str, value: JsonValue) -> bool:
    if not isinstance(value, bool):
        raise _refusal(member, value, "true or false")
    return value


def _interval(member: str, value: JsonValue) -> timedelta:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _HOUR:
        raise _refusal(member, value, f"a number of seconds, more than 0 and up to {_HOUR}")
    return max(timedelta(seconds=value), timedelta(microseconds=1))


_READERS: Final[Mapping[str, Callable[[str, JsonValue], Any]]] = {
    "states": _named(_STATES),
    "kinds": _named(_KINDS),
    "lastChunkOnly": _flag,
    "minInterval": _interval,
}


def _refusal(member: str, found: object, expected: str) -> InvalidPushConfigError:
    place = f"{FILTER_EXTENSION}.{member}" if member else FILTER_EXTENSION
    shown = repr(found[:40]) if isinstance(found, str) else f"a {type(found).__name__}"
    return InvalidPushConfigError(f"{place}: found {shown}, expected {expected}")
