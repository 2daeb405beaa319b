"""Reads TOML files into tables: pydantic models, which are made from classes of options."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, cast

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

from pushkit.bounded_json import JsonObject
from pushkit.errors import ConfigError
from pushkit.files import read_file
from pushkit.options import REQUIRED, Bounds, Option, options_of
from pushkit.terminal.toml import Location, is_composite, line_of, mistakes_of, name_of, settings_in

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
    def read(cls, path: Path, *, variables: str = "") -> TomlFile:
        """Read a file. Raises ConfigError: it cannot be read; FileNotFoundError: there is none."""
        try:
            text = read_file(path).decode("utf-8")
        except FileNotFoundError:
            raise
        except OSError as exc:
            raise ConfigError(f"{path}: {exc.strerror}") from exc
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
        if location and self.variables and self._variable(location[0]) in os.environ:
            return f"{self._variable(location[0])}: {says}"
        named = f"{name_of(location)}: {says}" if location else says
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
