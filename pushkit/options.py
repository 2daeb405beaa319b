"""Options, each declared once: a field of a class, or an argument, with its sentence beside it.

A class of options is a frozen dataclass; a constructor declares its arguments in the same way. The
annotation of a field is its type and its bounds, its sentence is in the docstring of the class:

    max_backlog: Count = 500_000  # in the docstring, "max_backlog: How many may be unfinished."

Made from these are the checks of values in Python (here), tables of TOML files
(`pushkit.terminal.tables`), options of commands (`pushkit.terminal.options`), and the reference.
The first functions check arguments of methods, for callers that do not run a type checker.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pushkit.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
Kind: TypeAlias = "type | UnionType | tuple[type, ...]"

UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
"""What the letters of an age stand for."""
LONGEST_AGE: Final = timedelta(days=36500)
"""Now minus this age is still a valid datetime."""

_SECTION = re.compile(r"^(?:Attributes|Args):\n((?: +.*\n|\n)*)", re.MULTILINE)
_SENTENCES = re.compile(r"^ {4}(\w+): (.*\n(?: {8}.*\n)*)", re.MULTILINE)


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a number or a duration has to be; None is no bound."""

    least: Any = None
    above: Any = None  # more than this
    most: Any = None

    def allow(self, value: Any) -> bool:
        """Return whether a value is within the bounds."""
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )

    def __str__(self) -> str:
        """Return what is expected."""
        if self.above is not None:
            most = "" if self.most is None else f", up to {_text(self.most)}"
            return f"more than {_text(self.above)}{most}"
        if self.most is not None:
            return f"{_text(self.least)} to {_text(self.most)}"
        return f"at least {_text(self.least)}"


def _text(bound: object) -> str:
    if not isinstance(bound, timedelta):
        return str(bound)
    return age_text(bound) if bound else "zero"


def age_text(age: timedelta) -> str:
    """Write an age in whole seconds, as commands read it, in the largest unit that is exact."""
    largest = [letter for letter, unit in UNITS.items() if not age % timedelta(**{unit: 1})][-1]
    return f"{age // timedelta(**{UNITS[largest]: 1})}{largest}"


Count: TypeAlias = Annotated[int, Bounds(least=1)]
Number: TypeAlias = Annotated[int, Bounds(least=0, most=2**31 - 1)]
Duration: TypeAlias = Annotated[timedelta, Bounds(above=timedelta(0))]
Wait: TypeAlias = Annotated[timedelta, Bounds(least=timedelta(0))]
Age: TypeAlias = Annotated[timedelta, Bounds(least=timedelta(0), most=LONGEST_AGE)]
LastingAge: TypeAlias = Annotated[timedelta, Bounds(above=timedelta(0), most=LONGEST_AGE)]
REQUIRED: Final = inspect.Parameter.empty
"""The default of an option that has none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option, as it was declared."""

    name: str
    kinds: tuple[type, ...]  # the types that a value may have; of a list, the list's
    items: tuple[type, ...]  # of a list, the types of its items; else empty
    enum: type[StrEnum] | None  # the enumeration whose members are its values, or its items
    bounds: Bounds | None
    default: Any  # `REQUIRED` if there is none
    is_secret: bool  # whether no message may quote it

    def check(self, value: object, setting: str) -> object:
        """Return a value of Python, with members for the words of an enumeration.

        Args:
            value: What was given.
            setting: The name of the option in messages.

        Raises:
            ConfigError: It is not of the type, or not within the bounds.
        """
        if value is None and NoneType in self.kinds:
            return None
        if self.items:
            return self._checked_list(value, setting)
        if self.enum is not None:
            return read_member(setting, value, self.enum)
        check_type(setting, value, self.kinds)
        if self.bounds is not None and not self.bounds.allow(value):
            instead = ", or None" if NoneType in self.kinds else ""
            raise ConfigError(f"{setting}: found {value}, expected {self.bounds}{instead}")
        return value

    def _checked_list(self, value: Any, setting: str) -> object:
        if isinstance(value, Iterator):
            value = tuple(value)
        shown = not self.is_secret and not (isinstance(value, str) and "://" in value)
        check_list(setting, value, of=self.items if self.enum is None else str, shown=shown)
        if self.enum is None:
            return value
        made = tuple if Sequence in self.kinds else frozenset
        return made(read_member(setting, each, self.enum) for each in value)


@functools.cache
def options_of(declared: Callable[..., object]) -> Mapping[str, Option]:
    """Return the options that a class or a function declares, by name, in their order.

    A type that is imported for type checkers alone, as extras install it, is not checked.
    """
    function: Any = declared.__init__ if isinstance(declared, type) else declared  # type: ignore[misc]
    known = inspect.unwrap(function).__globals__
    fields = {}
    if dataclasses.is_dataclass(declared):
        fields = {field.name: field for field in dataclasses.fields(declared)}
    found = {}
    for name, parameter in inspect.signature(declared).parameters.items():
        if parameter.annotation is inspect.Parameter.empty:
            continue  # `self`
        hinted = SimpleNamespace(__annotations__={name: parameter.annotation})
        try:
            hint: Any = get_type_hints(hinted, known, include_extras=True)[name]
        except NameError:
            hint = object
        read = _read(hint)
        words = (each for each in read.items or read.kinds if issubclass(each, StrEnum))
        field, default = fields.get(name), parameter.default
        if field is not None and field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        found[name] = Option(
            name=name,
            kinds=read.kinds,
            items=read.items,
            enum=next(words, None),
            bounds=read.bounds,
            default=default,
            is_secret=field is not None and not field.repr,
        )
    return found


def check_options(owner: object, *, of: str = "") -> None:
    """Check the options of a frozen dataclass; `of` begins each message. Raises ConfigError."""
    kind: Any = type(owner)
    for name, option in options_of(kind).items():
        given = getattr(owner, name)
        value = option.check(given, f"{of}{name}")
        if value is not given:
            object.__setattr__(owner, name, value)


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function whose arguments are options, so that each call checks them.

    Not on a hot path, where plain checks are quicker.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        bound = signature.bind(*args, **kwargs)
        for name, option in options_of(function).items():
            if name in bound.arguments:
                bound.arguments[name] = option.check(bound.arguments[name], name)
        return function(*bound.args, **bound.kwargs)

    return call


def sentences_of(declared: Callable[..., object]) -> dict[str, str]:
    """Return what the docstring says of each option, and of each attribute behind them."""
    sections = _SECTION.findall(f"{inspect.getdoc(declared)}\n")
    found = (each for section in sections for each in _SENTENCES.findall(section))
    return {name: " ".join(says.split()) for name, says in found}


class _Type(NamedTuple):
    """What an annotation says."""

    kinds: tuple[type, ...]
    items: tuple[type, ...] = ()
    bounds: Bounds | None = None


def _read(hint: Any) -> _Type:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        found = _read(inner[0])
        bounds = next((each for each in inner[1:] if isinstance(each, Bounds)), found.bounds)
        return found._replace(bounds=bounds)
    if origin in (Union, UnionType):
        parts = [_read(each) for each in inner]
        return _Type(
            kinds=tuple(kind for part in parts for kind in part.kinds),
            items=tuple(item for part in parts for item in part.items),
            bounds=next((part.bounds for part in parts if part.bounds), None),
        )
    if origin is Literal:
        return _Type(tuple({type(each): None for each in inner}))
    if origin is None:
        # Only the code that uses a protocol can say whether a value implements it.
        hint = object if getattr(hint, "_is_protocol", False) else hint
        return _Type((int, float) if hint is float else (hint,))
    if not issubclass(origin, Iterable) or issubclass(origin, Mapping):
        return _Type((origin,))
    within: tuple[Any, ...] = tuple(each for each in inner if each is not ...)
    return _Type((origin,), tuple(kind for each in within for kind in _read(each).kinds))
