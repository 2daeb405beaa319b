"""libpq's parameters of a DSN (PostgreSQL manual, 34.1.2), for asyncpg, which knows some of them.

asyncpg passes those that it does not know on, as settings of the server, which refuses them. Here
they are honoured; or, if they only tune, left out, with a line in the log; or refused, if the
connection would be less secure without them. Parameters of a service file, and variables of libpq
(`PGCHANNELBINDING`), count like those of the DSN. `pooler=transaction` is pushkit's own.
"""

from __future__ import annotations

import configparser
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote_plus

from pushkit.errors import ConfigError

__all__ = ["Connecting", "connecting"]

_CONNECT_TIMEOUT = 10.0  # seconds
_NO_LIMIT = 86_400.0
_PROVES = "with sslmode=verify-full the server's certificate proves who it is"
# What cannot be honoured, with the values that change nothing, and what to do instead.
_REFUSED = {
    "channel_binding": ({"prefer", "disable"}, f"leave it out: {_PROVES}"),
    "gssencmode": ({"prefer", "disable"}, f"use TLS: {_PROVES}"),
    "hostaddr": (set(), "give the address as the host"),
    "min_protocol_version": ({"3.0"}, "leave it out"),
    "replication": ({"false", "off", "no", "0"}, "leave it out"),
    "require_auth": (set(), f"leave it out: {_PROVES}"),
    "requirepeer": (set(), "leave it out, and let only the server write to its socket's folder"),
    "requiressl": ({"0"}, "write sslmode=require or, better, sslmode=verify-full"),
    "ssl": (set(), "write sslmode=require or, better, sslmode=verify-full"),  # SQLAlchemy's
    "sslcertmode": ({"allow"}, "leave it out; sslcert names the client's certificate"),
    "sslcrldir": (set(), "give the revocation lists as one file: sslcrl"),
    **dict.fromkeys(
        ("scram_client_key", "scram_server_key", "oauth_issuer", "oauth_client_id"),
        (set[str](), "log in by a password or by a client's certificate"),
    ),
}
_ONLY_TUNE = {
    *("client_encoding", "gssdelegation", "load_balance_hosts", "max_protocol_version"),
    *("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"),
    *("sslcompression", "sslkeylogfile", "sslsni", "tcp_user_timeout"),
}
# asyncpg does not look at these if it is given a TLS context.
_NOT_WITH_CONTEXT = ("sslcrl", "ssl_min_protocol_version", "ssl_max_protocol_version")
# A pooler in transaction mode drops these settings of a session: tables would be elsewhere.
_NOT_WITH_POOLER = ("search_path", "options")


class Connecting(NamedTuple):
    """How asyncpg connects to the server of a DSN."""

    dsn: str  # without what asyncpg would take for a setting of the server
    timeout: float  # for a connection, in seconds
    tls: ssl.SSLContext | None  # with the system's roots, if the DSN says so
    without_effect: tuple[str, ...]  # the names of parameters that were left out
    has_pooler: bool  # the DSN says that a pooler in transaction mode is before the server
    not_with_pooler: tuple[str, ...]  # the names of parameters that it would drop


def connecting(dsn: str) -> Connecting:
    """Return how to connect to the server of a DSN.

    Raises:
        ConfigError: A parameter cannot be honoured, or has a value that is none of its own. The
            message names it, and never has its value.
    """
    head, _, query = dsn.partition("?")
    given = dict(parse_qsl(query))
    of_service = _of_service(given.get("service"))
    parameters = {**_of_variables(), **of_service, **given}
    for name, (harmless, advice) in _REFUSED.items():
        if parameters.get(name, "") not in {"", *harmless}:
            where = "the service file" if name in of_service else f"the variable {_variable(name)}"
            where = "the DSN" if name in given else where
            raise ConfigError(f"database: {name} in {where} cannot be honoured: {advice}")
    kept, left_out = [], []
    for each in query.split("&"):
        name = unquote_plus(each.partition("=")[0])
        if name == "fallback_application_name" and "application_name" not in given:
            kept.append(f"application_name={each.partition('=')[2]}")
        elif name in _REFUSED or name in _ONLY_TUNE:
            left_out.append(name)
        elif name not in {"connect_timeout", "fallback_application_name", "pooler"}:
            kept.append(each)
    if given.get("pooler", "transaction") != "transaction":
        raise ConfigError(
            "database: pooler in the DSN: expected transaction; leave it out for session mode"
        )
    return Connecting(
        f"{head}?{'&'.join(kept)}" if any(kept) else head,
        _timeout(parameters.get("connect_timeout", "")),
        _system_roots(parameters),
        tuple(left_out),
        "pooler" in given,
        tuple(name for name in _NOT_WITH_POOLER if name in given),
    )


def _of_variables() -> dict[str, str]:
    names = (*_REFUSED, "connect_timeout", "sslmode", "sslrootcert")
    return {name: found for name in names if (found := os.environ.get(_variable(name)))}


def _variable(name: str) -> str:
    """Return the name of a parameter's environment variable."""
    short = name if name == "connect_timeout" else name.replace("_", "")
    return f"PG{short.upper()}"


def _of_service(name: str | None) -> Mapping[str, str]:
    """Return the parameters of a service, from the file that asyncpg reads them from."""
    name = name or os.environ.get("PGSERVICE")
    path = os.environ.get("PGSERVICEFILE") or _at_home(".pg_service.conf")
    services = configparser.ConfigParser(interpolation=None)
    try:
        services.read(path)
    except configparser.Error:
        raise ConfigError("database: the service file of the DSN cannot be read") from None
    return services[name] if name and services.has_section(name) else {}


def _timeout(text: str) -> float:
    if not text:
        return _CONNECT_TIMEOUT
    try:
        seconds = int(text)
    except ValueError:
        raise ConfigError(
            "database: connect_timeout in the DSN: expected whole seconds, 0 for no limit"
        ) from None
    return float(seconds) if seconds > 0 else _NO_LIMIT


def _system_roots(parameters: Mapping[str, str]) -> ssl.SSLContext | None:
    mode, roots = parameters.get("sslmode"), parameters.get("sslrootcert")
    if roots != "system":
        own = _at_home(".postgresql/root.crt")  # asyncpg's default
        if mode in {"verify-ca", "verify-full"} and not roots and not own.exists():
            raise ConfigError(
                f"database: sslmode={mode} in the DSN needs the certificates to trust: add"
                " sslrootcert=system, or sslrootcert=FILE"
            )
        return None
    if mode not in {None, "verify-full"}:
        raise ConfigError("database: sslrootcert=system in the DSN needs sslmode=verify-full")
    for name in _NOT_WITH_CONTEXT:
        if parameters.get(name):
            raise ConfigError(
                f"database: {name} in the DSN has no effect beside sslrootcert=system: give a file"
                " of certificates as sslrootcert"
            )
    context = ssl.create_default_context()
    if certificate := parameters.get("sslcert"):
        password = parameters.get("sslpassword")
        context.load_cert_chain(certificate, parameters.get("sslkey"), lambda: password or "")
    return context


def _at_home(name: str) -> Path:
    return Path(os.path.expanduser("~"), name)  # noqa: PTH111  # Path raises if there is no home
