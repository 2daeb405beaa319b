"""Loading the file: every mistake with its line, what was found and what was expected."""

from __future__ import annotations

import functools
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError
from pydantic_settings import SettingsError

from pushkit.errors import ConfigError, DestinationRefusedError
from pushkit.files import read_file
from pushkit.net.destination import DestinationPolicy
from pushkit.terminal.toml import Location, line_of, mistakes_of, name_of
from pushkit.url import parse_host_and_port
from receiver.settings.service import ReceiverSettings

_NO_SETTING = "there is no such setting"


def load_settings(path: Path) -> ReceiverSettings:
    """Read and check a configuration file.

    Raises:
        ConfigError: `file:line: member: what was expected`, one line per mistake.
    """
    try:
        text = read_file(path).decode("utf-8")
        place = functools.partial(_place, path, text)
        document = tomllib.loads(text)
        # Arguments of pydantic's, not settings: members of ours never begin with `_`.
        unknown: list[Location] = [(name,) for name in document if name.startswith("_")]
        for each in unknown:
            del document[str(each[0])]
        settings = ReceiverSettings(**document).read_from(path, place)
    except FileNotFoundError as exc:
        instead = "name the configuration by --config or RECEIVER_CONFIG"
        raise ConfigError(f"{path}: {exc.strerror}; {instead}") from exc
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: not UTF-8 at byte {exc.start}") from exc
    except ValidationError as exc:
        found = [(at, _NO_SETTING) for at in unknown] + list(mistakes_of(exc, ReceiverSettings))
        raise ConfigError("\n".join(f"{place(at)}: {says}" for at, says in found)) from exc
    except SettingsError as exc:
        field = re.search(r'field "(\w+)"', str(exc))
        variable = f"RECEIVER_{field[1].upper()}" if field else "the environment"
        raise ConfigError(f'{variable}: expected JSON, such as ["a", "b"] for a list') from exc
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{path}: not TOML: {exc}") from exc
    wrong = [
        *((at, _NO_SETTING) for at in unknown),
        *_unknown_senders(settings),
        *_refused_urls(settings),
        *_taken_ports(settings),
    ]
    if wrong:
        raise ConfigError("\n".join(f"{place(at)}: {says}" for at, says in wrong))
    return settings


def _unknown_senders(settings: ReceiverSettings) -> Iterator[tuple[Location, str]]:
    """Find callbacks and forwards that name an unknown sender: they would never be called."""
    known = [sender.name for sender in settings.senders]
    for table in ("callbacks", "forwards"):
        for number, entry in enumerate(getattr(settings, table)):
            for name in entry.senders:
                if name not in known:
                    says = f"found {name!r}, expected one of {', '.join(known)}"
                    yield (table, number, "senders"), says


def _refused_urls(settings: ReceiverSettings) -> Iterator[tuple[Location, str]]:
    """Find senders whose keys could not be fetched: their URLs are neither public nor allowed."""
    try:
        policy = DestinationPolicy(settings.allow, loopback=True)
    except ConfigError as exc:
        yield ("allow",), str(exc).removeprefix("allow: ")
        return
    for number, sender in enumerate(settings.senders):
        if sender.jwks_url is not None:
            try:
                policy.check(sender.jwks_url)
            except DestinationRefusedError as exc:
                advice = exc.advice('allow = ["{}"]')
                yield ("senders", number, "jwks_url"), f"{exc}{advice}"


def _taken_ports(settings: ReceiverSettings) -> Iterator[tuple[Location, str]]:
    """Find listeners whose port another listener of this file has."""
    addresses: dict[Location, str | None] = {
        ("listen",): settings.listen,
        ("ops_listen",): settings.ops_listen,
    }
    if settings.dashboard is not None:
        addresses["dashboard", "listen"] = settings.dashboard.listen
    taken: dict[tuple[str, int], Location] = {}
    for location, address in addresses.items():
        host_and_port = parse_host_and_port(address or "")
        if host_and_port is not None and host_and_port[1]:  # port 0 stands for any free port
            other = taken.setdefault(host_and_port, location)
            if other != location:
                yield location, f"found {address}, which {name_of(other)} has: choose another port"


def _place(path: Path, text: str, location: Location) -> str:
    """Return where a member was set: its variable, or its line in the file and its name."""
    variable = f"RECEIVER_{str(location[0]).upper()}" if location else ""
    if variable in os.environ:
        return variable
    return f"{path}:{line_of(text, location)}: {name_of(location)}"
