"""Checks of arguments at run time, for callers that do not run a type checker."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Final, TypeVar

from pushkit.errors import ConfigError

E = TypeVar("E", bound=StrEnum)

LONGEST_AGE: Final = timedelta(days=36500)  # now minus this age is still a valid datetime
_MOST: Final = 2**31 - 1


def check_type(name: str, value: object, kind: type) -> None:
    """Raise ConfigError if an argument is not of this type."""
    if not isinstance(value, kind):
        raise ConfigError(f"{name}: found {type(value).__name__}, expected {kind.__name__}")


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


def check_list(name: str, value: object, *, shown: bool = True) -> None:
    """Refuse a string in place of a list: each of its letters would become an item.

    Raises:
        ConfigError: The argument is a string. The message quotes it if `shown`: not for secrets.
    """
    if isinstance(value, str | bytes):
        says = f"found {value!r}, expected a list: [{value!r}]"
        raise ConfigError(f"{name}: {says if shown else 'expected a list, found a string'}")


def read_member(name: str, value: str, kind: type[E]) -> E:
    """Return a member of an enumeration by its value. Raises ConfigError: it has no such value."""
    try:
        return kind(value)
    except ValueError as exc:
        known = ", ".join(each.value for each in kind)
        raise ConfigError(f"{name}: found {value!r}, expected one of {known}") from exc


def check_age(name: str, age: timedelta | None) -> None:
    """Raise ConfigError if an age is no timedelta, negative, or longer than a hundred years."""
    if age is None:
        return
    check_type(name, age, timedelta)
    if not timedelta(0) <= age <= LONGEST_AGE:
        raise ConfigError(f"{name}: found {age}, expected 0 to {LONGEST_AGE.days} days")


def check_number(name: str, number: int | None) -> None:
    """Raise ConfigError if a number is no int, negative, or above 2**31 - 1."""
    if number is None:
        return
    check_type(name, number, int)
    if not 0 <= number <= _MOST:
        raise ConfigError(f"{name}: found {number}, expected 0 to {_MOST}")
