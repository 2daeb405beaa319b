"""Reads TOML files into tables: pydantic models, which are made from classes of options.

Mistakes are described in their author's terms, not in those of pydantic. Values may be secrets and
are not repeated, except numbers.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, time, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    TypeAlias,
    TypeGuard,
    TypeVar,
    cast,
    get_args,
    get_origin,
)

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from pushkit.bounded_json import JsonObject
from pushkit.errors import ConfigError
from pushkit.files import read_file
from pushkit.options import REQUIRED, Bounds, Option, options_of

M = TypeVar("M", bound="SettingsTable")
T = TypeVar("T")

# Fits a duration, a moment that far in the future, and an integer column of a database.
_LARGEST: Final = 2**31 - 1


# --- a file --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TomlFile:
    """A TOML file, and the environment variables that override settings of its top level."""

    path: Path
    folder: Path  # absolute: where relative paths in it start
    text: str
    variables: str  # what the names of the variables begin with; empty for none

    @classmethod
    def read(cls, path: Path, *, variables: str = "", advice: str = "") -> TomlFile:
        """Read a file. Raises ConfigError: it cannot be read, with the advice if it is missing."""
        try:
            text = read_file(path).decode("utf-8")
        except OSError as exc:
            more = advice if isinstance(exc, FileNotFoundError) else ""
            raise ConfigError(f"{path}: {exc.strerror}{more}") from exc
        except UnicodeDecodeError as exc:
            raise ConfigError(f"{path}: not UTF-8 at byte {exc.start}") from exc
        return cls(path=path, folder=path.absolute().parent, text=text, variables=variables)

    def to(self, model: type[M]) -> M:
        """Return the file's table.

        Raises:
            ConfigError: `file:line: setting: what was expected`, one line per mistake.
        """
        try:
            document = tomllib.loads(self.text)
        except (ValueError, RecursionError) as exc:
            raise ConfigError(f"{self.path}: not TOML: {exc}") from exc
        if self.variables:
            for name, field in settings_in(model).items():
                variable = self._variable(name)
                if variable in os.environ:
                    value = _of_variable(variable, is_json=is_composite(field.annotation))
                    both = isinstance(value, dict) and isinstance(document.get(name), dict)
                    document[name] = {**document[name], **value} if both else value
        try:
            return model.model_validate(document, context=self)
        except ValidationError as exc:
            mistakes = [self.placed(*each) for each in mistakes_of(exc, model)]
            raise ConfigError("\n".join(mistakes)) from exc

    def placed(self, location: Location, says: str) -> str:
        """Return a message with where its setting was made: in a variable, or on a line."""
        named = f"{name_of(location)}: {says}" if location else says
        if location and self.variables and self._variable(location[0]) in os.environ:
            return f"{self._variable(location[0])}: {named if location[1:] else says}"
        return f"{self.path}:{line_of(self.text, location)}: {named}"

    def _variable(self, name: int | str) -> str:
        return f"{self.variables}{str(name).upper()}"


def _of_variable(variable: str, *, is_json: bool) -> Any:
    text = os.environ[variable]
    try:
        return json.loads(text) if is_json else text
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f'{variable}: expected JSON, such as ["a", "b"] for a list') from exc


# --- tables --------------------------------------------------------------------------------------


class SettingsTable(BaseModel, extra="forbid", hide_input_in_errors=True):
    """A table of a TOML file: a subclass has its settings, also those made by `with_options`."""

    if TYPE_CHECKING:  # settings that are made from options

        def __getattr__(self, name: str) -> Any: ...

    def given(self, declared: Callable[..., object]) -> dict[str, Any]:
        """Return these settings as options of a class or a function."""
        mine = options_of(declared).keys() & type(self).model_fields.keys()
        values = {name: getattr(self, name) for name in mine}
        lists = {name: tuple(each) for name, each in values.items() if isinstance(each, list)}
        return values | lists

    def made(self, kind: Callable[..., T], **more: object) -> T:
        """Return what has these settings as its options, and `more`. Raises ConfigError."""
        return kind(**self.given(kind) | more)

    def document(self) -> JsonObject:
        """Return the settings as JSON, as the file would state them; secrets are masked."""
        shown: JsonObject = self.model_dump(mode="json", by_alias=True)
        return shown

    @classmethod
    def defaults(cls) -> JsonObject:
        """Return the settings that a file may leave out, with their values."""
        return cls.model_construct().document()


def with_options(
    *declared: Callable[..., object],
    only: str = "",
    without: str = "",
    names: Mapping[str, str] = MappingProxyType({}),
    types: Mapping[object, object] = MappingProxyType({}),
) -> Callable[[type[M]], type[M]]:
    """Decorate a table, so that it has the options of these classes as settings.

    What the table says of a setting itself precedes. A duration is a whole number of seconds.

    Args:
        *declared: Classes of options, or constructors.
        only: The options that a file can have, separated by blanks; all if empty.
        without: Options that no file can have.
        names: The names of settings that differ from those of their options; the end of a
            duration's name is its unit.
        types: The types in the file of options, by their names or their types in Python.
    """

    def extend(table: type[M]) -> type[M]:
        fields: dict[str, Any] = {}
        wanted = set(only.split()) or {name for kind in declared for name in options_of(kind)}
        for option in (each for kind in declared for each in options_of(kind).values()):
            suffix = "_seconds" if timedelta in option.kinds else ""
            name = names.get(option.name, f"{option.name}{suffix}")
            if option.name in table.model_fields:
                fields[option.name] = (Any, None)  # it has its place here
            elif option.name in wanted - set(without.split()):
                fields.setdefault(option.name, _field(option, name, types))
        options = create_model("Options", __base__=SettingsTable, **fields)
        bases: Any = (table, options)
        said = {"__module__": table.__module__, "__doc__": table.__doc__}
        return cast(type[M], type(table.__name__, bases, said))

    return extend


def _field(option: Option, name: str, types: Mapping[object, object]) -> tuple[Any, Any]:
    known = [types[each] for each in (option.name, *option.kinds) if each in types]
    kind: Any = known[0] if known else _type_in_file(option, name)
    default = option.default
    if type(None) in option.kinds and timedelta not in option.kinds:
        kind |= None
    if default is REQUIRED:
        return kind, Field(alias=name)
    if option.items:
        in_order = sorted if isinstance(default, frozenset) else list
        return kind, Field(default_factory=lambda: in_order(default), alias=name)
    return kind, Field(default, alias=name)


def _type_in_file(option: Option, name: str) -> Any:
    if option.items:
        items: Any = list[option.enum or option.items[0]]  # type: ignore[misc]  # a value
        masked = PlainSerializer(lambda secrets: ["***"] * len(secrets))
        return Annotated[items, masked] if option.is_secret else items
    if option.enum is not None:
        return option.enum
    if timedelta in option.kinds:
        unit = name.rpartition("_")[2]  # seconds, minutes, hours or days
        word = ("forever" if unit == "days" else "none") if type(None) in option.kinds else None
        return whole(option.bounds, unit=timedelta(**{unit: 1}), word_for_none=word)
    if Path in option.kinds:
        return File
    if float in option.kinds:
        return Annotated[float, _within(option.bounds)]
    return whole(option.bounds) if int in option.kinds else option.kinds[0]


# --- values --------------------------------------------------------------------------------------


def whole(
    bounds: Bounds | None = None,
    *,
    unit: timedelta | None = None,
    word_for_none: str | None = None,
) -> Any:
    """Return the type of a whole number, of a unit if it is a duration, or a word for None."""
    bounds = bounds or Bounds(least=0 * unit if unit else 0)
    least, most = _in_units(bounds, unit)
    number: Any = Annotated[int, BeforeValidator(_no_boolean), Field(ge=least, le=most)]
    if unit is None:
        return number

    def read(value: object, read_number: ValidatorFunctionWrapHandler) -> timedelta | None:
        if word_for_none is None:
            return int(read_number(value)) * unit
        if value is None or value == word_for_none:
            return None
        try:
            return int(read_number(value)) * unit
        except ValidationError as exc:
            within = f"from {least} " + ("on" if bounds.most is None else f"to {most}")
            raise ValueError(f"expected a whole number {within}, or {word_for_none!r}") from exc

    def write(value: timedelta | None) -> int | str | None:
        return word_for_none if value is None else value // unit

    return Annotated[number, WrapValidator(read), PlainSerializer(write)]


def _in_units(bounds: Bounds, unit: timedelta | None) -> tuple[int, int]:
    size: Any = unit or 1
    least = bounds.above // size + 1 if bounds.above is not None else -(-bounds.least // size)
    return least, _LARGEST if bounds.most is None else min(bounds.most // size, _LARGEST)


def _within(bounds: Bounds | None) -> Any:
    bounds = bounds or Bounds()
    return Field(ge=bounds.least, gt=bounds.above, le=bounds.most)


def _no_boolean(value: object) -> object:
    if isinstance(value, bool):  # pydantic reads it as 0 or 1
        raise ValueError("expected a whole number, found true or false")  # noqa: TRY004
    return value


def _path_of_file(value: Path, info: ValidationInfo) -> Path:
    if value == Path() or "\0" in str(value):  # the empty path, and what no system opens
        raise ValueError("expected the path of a file")
    return info.context.folder / value if isinstance(info.context, TomlFile) else value


File = Annotated[Path, AfterValidator(_path_of_file)]
"""The path of a file, made absolute: in a TOML file, it starts at its folder."""

# --- mistakes ------------------------------------------------------------------------------------

Location: TypeAlias = tuple[int | str, ...]

_TABLE = re.compile(r"^\s*(\[\[?)\s*([\w.\"-]+)\s*\]\]?")
_KEY = re.compile(r"^\s*([\w\"-]+(?:\s*\.\s*[\w\"-]+)*)\s*=")
# By the beginning of pydantic's name for the mistake.
_EXPECTED: Final = {
    "string_type": "a string",
    "path_type": "a string",
    "int_": "a whole number",
    "float_": "a number",
    "finite_number": "a finite number",
    "bool_": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "model_": "a table",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "enum": "{expected}",
    "literal_error": "{expected}",
    "too_short": "at least one",
    "string_too_short": "at least one character",
}
_TYPES: Final = (
    (bool, "true or false"),
    (str, "a string"),
    (int, "a whole number"),
    (float, "a number"),
    (dict, "a table"),
    (list, "a list"),
    ((date, time), "a date or time"),
)


def mistakes_of(error: ValidationError, model: type[BaseModel]) -> Iterator[tuple[Location, str]]:
    """Yield the location of each mistake, and a message with what was expected there."""
    for mistake in error.errors(include_url=False):
        where, says = mistake["loc"], _message(mistake, model)
        member, _, rest = says.partition(": ")
        while rest and member in settings_in(_table_at(where, model) or model):
            where, says = (where if where[-1:] == (member,) else (*where, member)), rest
            member, _, rest = says.partition(": ")
        yield where, says


def _message(mistake: ErrorDetails, model: type[BaseModel]) -> str:
    kind, where = mistake["type"], mistake["loc"]
    if kind == "missing":
        return "expected, but missing"
    if kind == "extra_forbidden":
        return _unknown_setting(where, model)
    expected = next((says for name, says in _EXPECTED.items() if kind.startswith(name)), None)
    if expected is None:
        return mistake["msg"].removeprefix("Value error, ")
    found = _found(kind, mistake["input"])
    hint = (
        f": write [[{where[-1]}]]" if found == ", found a table" and _table_at(where, model) else ""
    )
    return f"expected {expected.format_map(mistake.get('ctx', {}))}{found}{hint}"


def _found(kind: str, found: object) -> str:
    if kind.endswith("_parsing"):
        return ", found text"
    if kind.endswith("_type"):
        named = (name for types, name in _TYPES if isinstance(found, types))
        return f", found {next(named, 'something else')}"
    return f", found {found}" if isinstance(found, int | float) else ""


def _unknown_setting(location: Location, model: type[BaseModel]) -> str:
    name, known = str(location[-1]), settings_in(_table_at(location[:-1], model) or model)
    if name not in known and name in settings_in(model):
        return "there is no such setting here: it belongs above the first [table]"
    return f"there is no such setting{did_you_mean(name, known)}"


def settings_in(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the settings of a table, by their names in the file."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def is_composite(annotation: object) -> bool:
    """Return whether a setting is a table or a list."""
    inner = (annotation, *get_args(annotation))
    return any(_is_model(each) or get_origin(each) is list for each in inner)


def _table_at(location: Location, model: type[BaseModel]) -> type[BaseModel] | None:
    """Return the model of the table, or of the list of tables, at a location; None for neither."""
    found: type[BaseModel] | None = model
    for step in location:
        if isinstance(step, str) and found is not None:
            field = settings_in(found).get(step)
            inner = (field.annotation, *get_args(field.annotation)) if field else ()
            found = next((each for each in inner if _is_model(each)), None)
    return found


def _is_model(annotation: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def line_of(text: str, location: Location) -> int:
    """Return the line number of a member in a TOML document, or of its closest parent."""
    best, best_depth = 1, 0
    table: Location = ()
    here: Location
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE.match(line):
            table = here = _opened(header[2], counts, of_array=header[1] == "[[")
        elif key := _KEY.match(line):
            here = (*table, *(each.strip().strip('"') for each in key[1].split(".")))
        else:
            continue
        # Of a table, or an array of tables, that is the member itself: its first line.
        depth = min(len(here), len(location))
        if here[:depth] != location[:depth]:
            depth = 0
        if depth > best_depth:
            best, best_depth = number, depth
    return best


def name_of(location: Location) -> str:
    """Return the name of a member, for example `senders[0].issuer`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return "".join(steps).removeprefix(".")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a suggestion to append to a message about an unknown name; empty for none."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _opened(name: str, counts: dict[str, int], *, of_array: bool) -> Location:
    """Return the location of a table, and count the tables of each array."""
    if of_array:
        counts[name] = counts.get(name, -1) + 1
    path: list[int | str] = []
    steps = name.split(".")
    for depth, step in enumerate(steps, start=1):
        path.append(step.strip('"'))
        array = ".".join(steps[:depth])
        if array in counts:
            path.append(counts[array])
    return tuple(path)
