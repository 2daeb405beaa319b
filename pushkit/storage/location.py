"""The location of a database: how it is read, and which part of it may be shown.

A location is the path of a SQLite file or a PostgreSQL DSN, and a DSN may hold a password: a text
that looks like another DSN or a URL is refused by its scheme alone, and never taken for a path.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from urllib.parse import parse_qs, unquote

from pushkit.errors import ConfigError
from pushkit.url import has_password

# SQLAlchemy appends the driver to the scheme.
_POSTGRES = {"postgresql", "postgres", "postgresql+asyncpg"}
_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*)://")
# A DSN that was made a `Path`, which drops a slash.
_SHORT_DSN = re.compile(r"\s*(postgres[A-Za-z0-9+]*):/", re.IGNORECASE)
# SQLite's own spellings of a database in memory, and of a URI: as a path, each would name a file.
_NO_FILE = re.compile(r":memory:$|file:")
_HOST = r"(\[[0-9A-Fa-f:.%]+\]|[\w.-]+)(:[0-9]+)?"
_HOSTS = re.compile(f"{_HOST}(,{_HOST})*")
_AUTHORITY = re.compile(r"(?<=://)[^/?#]*")
_USER_AND_PASSWORD = re.compile(r"([^:/?#\s]*://[^:@/?#]*):.*@", re.DOTALL)
_SECRET = re.compile("pass|secret|scram", re.IGNORECASE)
_PARAMETER = re.compile(r"(?<=[?&])([^=&]*)=[^&]*")


def postgres_dsn(location: str | Path) -> str | None:
    """Return the DSN in a location, as asyncpg reads it; None for the path of a file.

    Raises:
        ConfigError: It is neither; the message shows its scheme alone.
    """
    if not isinstance(location, str | os.PathLike):
        raise ConfigError(f"database: found {type(location).__name__}, expected a path or a DSN")
    text = str(location)
    found = _SCHEME.match(text)
    if found and found[1].lower() in _POSTGRES:
        return f"postgresql://{text[found.end() :]}"
    found = found or _SHORT_DSN.match(text)
    if found or "://" in text:
        named = f"the scheme {found[1]!r}" if found else "a URL"
        raise ConfigError(
            f"database: found {named}, expected postgresql://user:password@host/name, or the path"
            " of a SQLite file"
        )
    if no_file := _NO_FILE.match(text):
        raise ConfigError(
            f"database: found {no_file[0]!r}, expected the path of a SQLite file: in tests"
            " take one in a temporary folder"
        )
    if has_password(text):
        raise ConfigError(
            "database: found a password without a scheme, expected"
            " postgresql://user:password@host/name, or the path of a SQLite file"
        )
    return None


def is_file(location: str | Path) -> bool:
    """Return whether a location is the path of a file.

    Raises:
        ConfigError: It is neither that nor a PostgreSQL DSN.
    """
    return postgres_dsn(location) is None


def is_missing(location: str | Path) -> bool:
    """Return whether a location is the path of a file that does not exist.

    Raises:
        ConfigError: It is neither a path nor a PostgreSQL DSN.
        OSError: The system does not say.
    """
    return is_file(location) and not file_exists(location)


def file_exists(path: str | Path) -> bool:
    """Return whether there is a file; raise OSError if the system does not say.

    From Python 3.14 on, `Path.exists` calls a file missing whose folder may not be entered.
    """
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: a zero byte
        return False
    return True


def host_of(dsn: str) -> str:
    """Return the hosts and ports of a DSN for an error message, never a part of a password."""
    authority, after = re.match(r"([^/?#]*)(.*)", dsn.partition("://")[2], re.DOTALL).groups()  # type: ignore[union-attr]  # matches anything
    if "@" in after:  # a password with a slash, of which the authority is the beginning
        return "the host of the DSN"
    query = parse_qs(after.partition("?")[2])
    port = _first(query, "port") or os.environ.get("PGPORT", "5432")
    hosts = authority.rpartition("@")[2]
    if not hosts:
        hosts = _first(query, "host") or os.environ.get("PGHOST", "localhost")
        return f"{hosts}:{port}" if port.isdecimal() else hosts
    if not _HOSTS.fullmatch(hosts):
        return "the host of the DSN"
    return hosts if re.search(r":[0-9]+$", hosts) else f"{hosts}:{port}"


def masked(location: str) -> str:
    """Return a DSN or URL with its passwords masked, before the host and in the query."""
    if "://" not in location:
        return location
    if "@" in location:
        shown = _USER_AND_PASSWORD.sub(r"\1:***@", location, count=1)
    else:
        shown = _AUTHORITY.sub(_masked_authority, location, count=1)
    return _PARAMETER.sub(_masked_parameter, shown)


def with_database(command: str, location: str) -> str:
    """Return a command for this database, as a shell runs it in any folder; a password is masked.

    Args:
        command: The command, without the option.
        location: `Database.location`.
    """
    return f"{command} --database {shlex.quote(location)}"


def _masked_authority(found: re.Match[str]) -> str:
    # Without a host, `user:password` may be in its place.
    is_host = not found[0] or _HOSTS.fullmatch(found[0])
    return found[0] if is_host else "***"


def _masked_parameter(found: re.Match[str]) -> str:
    return f"{found[1]}=***" if _SECRET.search(unquote(found[1])) else found[0]


def _first(query: dict[str, list[str]], name: str) -> str:
    return query.get(name, [""])[0]
