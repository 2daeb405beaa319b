"""The types of settings, each with its check."""

from __future__ import annotations

import ipaddress
import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from pushkit.arguments import LONGEST_AGE
from pushkit.errors import ConfigError
from pushkit.files import read_file
from pushkit.net.dialling import EgressProxy
from pushkit.url import audience_of, parse_host_and_port
from receiver.limits import RateLimit


def _absolute_url(value: str) -> str:
    try:
        audience_of(value)
    except ConfigError as exc:
        raise ValueError("expected an absolute http or https URL") from exc
    return value


def _proxy(value: str) -> str:
    try:
        EgressProxy.parse(value)
    except ConfigError as exc:
        raise ValueError(str(exc).removeprefix("proxy: ")) from exc
    return value


def _host_and_port(value: str) -> str:
    if parse_host_and_port(value) is None:
        raise ValueError("expected host:port, for example 127.0.0.1:9000")
    return value


def _network(value: str) -> str:
    try:
        ipaddress.ip_network(value)
    except ValueError as exc:
        raise ValueError("expected an address or a network, like 10.0.0.0/8") from exc
    return value


def _module_and_function(value: str) -> str:
    if not re.fullmatch(r"[\w.]+:[\w.]+", value):
        raise ValueError("expected module:function, for example handlers:completed")
    return value


def _none_for_ever(value: object) -> object:
    if value is None or value == FOREVER:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= LONGEST_AGE.days:
        raise ValueError(f"expected a whole number from 1 to {LONGEST_AGE.days}, or {FOREVER!r}")
    return value


def _no_boolean(value: object) -> object:
    if isinstance(value, bool):  # pydantic reads it as 0 or 1
        raise ValueError("expected a whole number, found true or false")  # noqa: TRY004
    return value


def _whole_or_none(value: object, read: ValidatorFunctionWrapHandler) -> object:
    try:
        return read(value)
    except ValidationError as exc:
        raise ValueError("expected a whole number from 1 on, or 'none'") from exc


FOREVER: Final = "forever"
# Fits a duration, a moment that far in the future, and an integer column of a database.
_LARGEST: Final = 2**31 - 1
Days = Annotated[
    int | None,
    BeforeValidator(_none_for_ever),
    PlainSerializer(lambda days: FOREVER if days is None else days),
]
"""Whole days, or `"forever"`: None."""
Secrets = Annotated[
    list[str], PlainSerializer(lambda secrets: ["***"] * len(secrets), when_used="json")
]
"""Secrets: `receiver check` shows only how many there are."""
Positive = Annotated[int, BeforeValidator(_no_boolean), Field(gt=0, le=_LARGEST)]
NotNegative = Annotated[int, BeforeValidator(_no_boolean), Field(ge=0, le=_LARGEST)]
PositiveOrNone = Annotated[Positive | Literal["none"], WrapValidator(_whole_or_none)]
NotEmpty = Annotated[str, Field(min_length=1)]
Url = Annotated[str, AfterValidator(_absolute_url)]
Proxy = Annotated[str, AfterValidator(_proxy)]
HostAndPort = Annotated[str, AfterValidator(_host_and_port)]
Network = Annotated[str, AfterValidator(_network)]
ModuleAndFunction = Annotated[str, AfterValidator(_module_and_function)]


def seconds_of(duration: timedelta) -> int:
    """Return a default of the code in the unit of the file."""
    return duration // timedelta(seconds=1)


def rate(per_second: int) -> RateLimit:
    """Return a rate whose burst is twice as much."""
    return RateLimit(per_second=per_second, burst=2 * per_second)


def read_text(path: Path, *, setting: str) -> str:
    """Return the text of a file that a setting names. Raises ConfigError: it cannot be read."""
    try:
        return read_file(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not UTF-8"
        raise ConfigError(f"{setting}: cannot read {path}: {reason}") from exc
