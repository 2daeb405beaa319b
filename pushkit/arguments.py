"""Checks of the arguments of methods, for callers that do not run a type checker.

Those of options are in `pushkit.options`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from enum import StrEnum
from types import NoneType, UnionType
from typing import TypeAlias, TypeVar, get_args

from pushkit.errors import ConfigError

E = TypeVar("E", bound=StrEnum)
Kind: TypeAlias = "type | UnionType | tuple[type, ...]"


def check_type(name: str, value: object, kind: Kind) -> None:
    """Raise ConfigError if an argument is not of this type, or of one of these (`str | None`)."""
    if not isinstance(value, kind):
        raise ConfigError(f"{name}: found {type(value).__name__}, expected {_shown(kind)}")


def check_each(kind: Kind, **arguments: object) -> None:
    """Raise ConfigError if one of these arguments is not of a type."""
    for name, value in arguments.items():
        check_type(name, value, kind)


def _shown(kind: Kind) -> str:
    kinds = kind if isinstance(kind, tuple) else get_args(kind) or (kind,)
    named = {NoneType: "None", Callable: "a callable"}
    return " or ".join(named.get(each, each.__name__) for each in kinds)


def check_count(name: str, count: int) -> None:
    """Raise ConfigError if a count is no int, or less than 1."""
    check_type(name, count, int)
    if count < 1:
        raise ConfigError(f"{name}: found {count}, expected at least 1")


def check_duration(name: str, duration: timedelta, *, otherwise: str = "") -> None:
    """Raise ConfigError if a duration is no timedelta, or not more than zero.

    `otherwise` ends the message with what else would be accepted.
    """
    check_type(name, duration, timedelta)
    if duration <= timedelta(0):
        raise ConfigError(f"{name}: found {duration}, expected more than zero{otherwise}")


def check_callable(name: str, value: object) -> None:
    """Raise ConfigError if an argument is not callable."""
    if not callable(value):
        raise ConfigError(f"{name}: found {type(value).__name__}, expected a callable")


def check_list(name: str, value: object, *, of: Kind = object, shown: bool = True) -> None:
    """Refuse what is no list, or has items of other types.

    Of a string, each letter would become an item.

    Raises:
        ConfigError: The argument is no collection of these. The message quotes a string if `shown`:
            not for secrets.
    """
    if isinstance(value, str | bytes):
        says = f"found {value!r}, expected a list: [{value!r}]"
        raise ConfigError(f"{name}: {says if shown else 'expected a list, found a string'}")
    if not isinstance(value, Collection):
        raise ConfigError(f"{name}: found {type(value).__name__}, expected a list")
    for each in value:
        if not isinstance(each, of):
            found = type(each).__name__
            raise ConfigError(f"{name}: found {found} in the list, expected {_shown(of)}")


def read_member(name: str, value: object, kind: type[E]) -> E:
    """Return a member of an enumeration by its value. Raises ConfigError: it has no such value."""
    try:
        return kind(value)  # type: ignore[arg-type]  # it may be anything
    except ValueError as exc:
        known = ", ".join(each.value for each in kind)
        raise ConfigError(f"{name}: found {value!r}, expected one of {known}") from exc
