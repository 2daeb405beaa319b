"""The filters of clients and operators: the extension of a push config, and an adapter's option.

A2A's config has no member for it, so a client that knows the extension puts it under the URI:

    {"url": "https://client.example.com/a2a",
     "urn:pushkit:push-filter:v1": {"states": ["completed", "failed"], "lastChunkOnly": true}}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, TypeAlias

from pushkit.a2a import PushConfig, TaskState, UpdateKind
from pushkit.a2a.kinds import FLAG
from pushkit.a2a.members import STATE_NAMES
from pushkit.a2a.table import Kind, Member, MismatchError, Table, Writing, reading
from pushkit.bounded_json import JsonObject, json_type
from pushkit.errors import InvalidPushConfigError
from pushkit.options import check_type
from pushkit.subscriptions.model import EVERYTHING, Filter

FILTER_EXTENSION: Final = "urn:pushkit:push-filter:v1"
"""The URI of the extension, in a card's `capabilities.extensions`, and its member in a config."""

FilterOf: TypeAlias = Callable[[str], Filter]
"""Returns the filter of an owner."""

FilterChoice: TypeAlias = Filter | FilterOf
"""One filter for all clients, or a function that returns the filter of an owner."""

GATHERED_EVERY: Final = timedelta(seconds=1)
"""The `min_interval` of the adapters to SDKs: agents stream their artifacts token by token."""


def filter_chooser(choice: FilterChoice, min_interval: timedelta | None = None) -> FilterOf:
    """Return a function that returns an owner's filter, which gathers at least so long.

    Raises:
        ConfigError: It is neither a filter nor a function, or the interval is out of range.
    """
    check_type("filter", choice, (Filter, Callable))  # type: ignore[arg-type]
    gathered = Filter(min_interval=min_interval)

    def chosen(owner: str) -> Filter:
        wanted = choice if isinstance(choice, Filter) else choice(owner)
        check_type("filter", wanted, Filter)
        return wanted.narrowed(gathered)

    return chosen


def requested_filter(config: PushConfig) -> Filter:
    """Return the filter that a client asks for in its config; all updates if it asks for none.

    Raises:
        InvalidPushConfigError: It asks for something that is not understood: a client that got more
            than it asked for would not know why.
    """
    asked = config.extra.get(FILTER_EXTENSION)
    if asked is None:
        return EVERYTHING
    with reading(InvalidPushConfigError):
        try:
            found: Filter = _FILTER.read(asked)
        except MismatchError as exc:
            raise exc.inside(FILTER_EXTENSION) from None
    return found


def write_filter(wanted: Filter) -> JsonObject:
    """Return a filter as a client reads it back: the value of the extension's member."""
    return _FILTER.write(wanted, Writing(keep=False))


# --- the members of the extension --------------------------------------------------------------


def _names(known: Mapping[str, str]) -> Kind:
    def read(value: object, _: object) -> frozenset[str]:
        if not isinstance(value, list):
            raise MismatchError(f"found {json_type(value)}, expected a list")  # type: ignore[arg-type]
        for each in value:
            if not isinstance(each, str) or each not in known:
                raise MismatchError(f"found {each!r:.40}, expected one of {', '.join(known)}")
        return frozenset(known[each] for each in value)

    return Kind(read=read, write=lambda value, _: sorted(value), writes_empty=True)


def _read_interval(value: object, _: object) -> timedelta:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-6 <= value <= 3600:
        raise MismatchError("expected a number of seconds, more than 0 and up to 3600")
    return timedelta(seconds=value)


def _filter(found: dict[str, Any], rest: JsonObject) -> Filter:
    for name in rest:
        known = ", ".join(row.wire for row in _FILTER.rows if isinstance(row, Member))
        raise MismatchError(f"found {name!r:.40}, expected only the members {known}")
    return Filter(**found)


# States and kinds as 0.3 and as 1.0 spell them.
_STATES = {state.value: state for state in TaskState} | {
    name: state for state, name in STATE_NAMES.items()
}
_KINDS = {kind.value: kind for kind in UpdateKind} | {
    "statusUpdate": UpdateKind.STATUS_UPDATE,
    "artifactUpdate": UpdateKind.ARTIFACT_UPDATE,
}
_INTERVAL = Kind(read=_read_interval, write=lambda value, _: value.total_seconds())
_FILTER: Final = Table(
    Filter,
    Member("states", "states", _names(_STATES)),
    Member("kinds", "kinds", _names(_KINDS)),
    Member("last_chunk_only", "lastChunkOnly", FLAG),
    Member("min_interval", "minInterval", _INTERVAL),
    build=_filter,
    extra="",
)
