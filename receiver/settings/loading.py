"""Loading the file: every mistake with its line, what was found and what was expected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pushkit.errors import ConfigError, DestinationRefusedError
from pushkit.net.destination import DestinationPolicy
from pushkit.terminal.tables import TomlFile
from pushkit.terminal.toml import Location, name_of
from pushkit.url import parse_host_and_port
from receiver.settings.service import ReceiverSettings


def load_settings(path: Path) -> ReceiverSettings:
    """Read and check a configuration file.

    Raises:
        ConfigError: `file:line: member: what was expected`, one line per mistake.
    """
    try:
        file = TomlFile.read(path, variables="RECEIVER_")
    except FileNotFoundError as exc:
        instead = "name the configuration by --config or RECEIVER_CONFIG"
        raise ConfigError(f"{path}: {exc.strerror}; {instead}") from exc
    settings = file.to(ReceiverSettings)
    wrong = [*_unknown_senders(settings), *_refused_urls(settings), *_taken_ports(settings)]
    if wrong:
        raise ConfigError("\n".join(file.placed(at, says) for at, says in wrong))
    return settings


def _unknown_senders(settings: ReceiverSettings) -> Iterator[tuple[Location, str]]:
    """Find callbacks, forwards and mailboxes that name an unknown sender: it sends nothing."""
    known = [sender.name for sender in settings.senders]
    for table in ("callbacks", "forwards", "mailbox"):
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
