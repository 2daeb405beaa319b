"""Arguments of a wrong type, refused where they are given: not everybody runs a type checker."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from pushkit.errors import ConfigError

LONGEST_AGE: Final = timedelta(days=36500)  # the calendar begins long before so far back
_MOST: Final = 2**31 - 1


def check_type(name: str, value: object, kind: type) -> None:
    """Hold that an argument is of this type. Raises ConfigError: it is not."""
    if not isinstance(value, kind):
        raise ConfigError(f"{name}: found {type(value).__name__}, expected {kind.__name__}")


def check_callable(name: str, value: object) -> None:
    """Hold that an argument can be called. Raises ConfigError: it cannot."""
    if not callable(value):
        raise ConfigError(f"{name}: found {type(value).__name__}, expected what can be called")


def check_list(name: str, value: object, *, shown: bool = True) -> None:
    """Hold that an argument is no string: its letters would be taken for what it lists.

    Raises:
        ConfigError: It is one; it is `shown` where it cannot be a secret.
    """
    if isinstance(value, str | bytes):
        says = f"found {value!r}, expected a list: [{value!r}]"
        raise ConfigError(f"{name}: {says if shown else 'expected a list, found a string'}")


def check_age(name: str, age: timedelta | None) -> None:
    """Raise ConfigError if an age is negative, or longer than a hundred years."""
    if age is not None and not timedelta(0) <= age <= LONGEST_AGE:
        raise ConfigError(f"{name}: found {age}, expected 0 to {LONGEST_AGE.days} days")


def check_number(name: str, number: int | None) -> None:
    """Hold that a number, if there is one, is none below 0. Raises ConfigError: it is."""
    if number is not None and not 0 <= number <= _MOST:
        raise ConfigError(f"{name}: found {number}, expected 0 to {_MOST}")
