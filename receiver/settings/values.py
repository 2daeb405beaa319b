"""The types of settings that no option of the code has, each with its check."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from pydantic import AfterValidator, Field, PlainSerializer

from pushkit.errors import ConfigError
from pushkit.files import read_file
from pushkit.net.dialling import EgressProxy
from pushkit.options import Bounds
from pushkit.terminal.tables import whole
from pushkit.url import audience_of, parse_host_and_port
from receiver.callbacks.registry import NO_TIMEOUT, Timeout
from receiver.limits import RateLimit


def _read_by(read: Callable[[str], object], says: str = "") -> AfterValidator:
    """Refuse a text that cannot be read; `says` is the message, else that of `read`."""

    def check(value: str) -> str:
        try:
            found = read(value)
        except (ConfigError, ValueError) as exc:
            raise ValueError(says or str(exc).partition(": ")[2]) from exc
        if found is None:
            raise ValueError(says)
        return value

    return AfterValidator(check)


_FUNCTION = re.compile(r"[\w.]+:[\w.]+")
NotEmpty = Annotated[str, Field(min_length=1)]
Url = Annotated[str, _read_by(audience_of, "expected an absolute http or https URL")]
Proxy = Annotated[str, _read_by(EgressProxy.parse)]
HostAndPort = Annotated[
    str, _read_by(parse_host_and_port, "expected host:port, for example 127.0.0.1:9000")
]
Network = Annotated[
    str, _read_by(ipaddress.ip_network, "expected an address or a network, like 10.0.0.0/8")
]
ModuleAndFunction = Annotated[
    str, _read_by(_FUNCTION.fullmatch, "expected module:function, for example handlers:completed")
]

_SECOND = timedelta(seconds=1)
_PER_SECOND = Bounds(least=1)
if TYPE_CHECKING:
    Rate: TypeAlias = RateLimit
    Seconds: TypeAlias = timedelta
    SecondsOrNone: TypeAlias = Timeout
else:
    Rate = Annotated[
        whole(_PER_SECOND),
        AfterValidator(lambda number: RateLimit(per_second=number, burst=2 * number)),
        PlainSerializer(lambda rate: rate and int(rate.per_second)),
    ]
    Seconds = whole(Bounds(above=timedelta(0)), unit=_SECOND)
    SecondsOrNone = Annotated[
        whole(Bounds(above=timedelta(0)), unit=_SECOND, word_for_none=NO_TIMEOUT),
        AfterValidator(lambda timeout: NO_TIMEOUT if timeout is None else timeout),
        PlainSerializer(
            lambda timeout: timeout // _SECOND if isinstance(timeout, timedelta) else timeout
        ),
    ]


def read_text(path: Path, *, setting: str) -> str:
    """Return the text of a file that a setting names. Raises ConfigError: it cannot be read."""
    try:
        return read_file(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not UTF-8"
        raise ConfigError(f"{setting}: cannot read {path}: {reason}") from exc
