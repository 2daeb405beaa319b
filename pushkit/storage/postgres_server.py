"""A PostgreSQL server: connections to it, how its DSN is read, and what a role may do there.

Of libpq's parameters of a DSN (PostgreSQL manual, 34.1.2) asyncpg knows some, and passes the others
on, as settings of the server, which refuses them. Here they are honoured; or, if they only tune,
left out, with a line in the log; or refused, if the connection would be less secure without them.
Parameters of a service file, and variables of libpq (`PGCHANNELBINDING`), count like those of the
DSN. `pooler=transaction` is pushkit's own.
"""

from __future__ import annotations

import configparser
import contextlib
import logging
import os
import re
import socket
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote_plus

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from pushkit.errors import ConfigError, StorageError
from pushkit.storage.location import host_of

_log = logging.getLogger("pushkit.storage")

_NOT_READ = (
    "the DSN cannot be read; in user and password, percent-encode every character but letters and"
    " digits, and check the values behind `?`"
)
_NO_SETTING = "it is neither libpq's nor a setting of the server; leave it out of the DSN"
_GRANT_CONNECT = "have its owner run: GRANT CONNECT ON DATABASE … TO …"
_CLOSING_SECONDS = 2.0  # seconds; then the connection is dropped
_SESSION = "SELECT pg_backend_pid()"
_STATEMENTS = 100  # that a connection prepares, and keeps
_FOUND_POOLER = (
    "PostgreSQL: found a pooler in transaction mode: statements are parsed each time, and what"
    " other processes store is found by polling; to say so in the DSN: pooler=transaction"
)
_NOT_WITH_POOLER = (
    "database: {} in the DSN cannot be honoured behind a pooler in transaction mode: leave it out,"
    " and have the owner run: ALTER ROLE … IN DATABASE … SET search_path = …"
)
FAULTS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the connection is being closed
    OSError,
    TimeoutError,
)


class _Connection(asyncpg.Connection):
    """A connection of the pool: scripts leave nothing in the session to be reset.

    An unfinished transaction is rolled back all the same when the connection is released.
    """

    def get_reset_query(self) -> str:
        """Return no query, which saves a round trip after every script."""
        return ""

    async def close(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109  # asyncpg's
        """Close it, soon by force: the pool sets no limit to those that it replaces."""
        with contextlib.suppress(*FAULTS):
            await super().close(timeout=timeout or _CLOSING_SECONDS)


class PostgresServer:
    """The server of a DSN."""

    def __init__(
        self,
        dsn: str,
        *,
        connections: int,  # how many the pool may hold
        command_timeout: timedelta,  # how long one statement may take
    ) -> None:
        self._dsn = dsn
        self._how = _connecting(dsn)
        self._connections = connections
        self._command_timeout = command_timeout
        # A pooler in transaction mode; None: not known yet.
        self.has_pooler: bool | None = self._how.has_pooler or None
        self.own_processes: set[int] = set()  # the server's, of the pool's connections

    async def new_pool(self) -> asyncpg.Pool:
        """Return a pool that has connected once; it is known then whether there is a pooler.

        Raises:
            StorageError: The server cannot be reached, or lets nobody in.
            ConfigError: The DSN has what a pooler in transaction mode would drop.
        """
        # asyncpg takes what follows the first `@` for the host, and would look that up.
        if re.split(r"[/?#]", self._dsn.partition("://")[2], maxsplit=1)[0].count("@") > 1:
            raise self._unreachable(_NOT_READ)
        try:
            if self.has_pooler is None:
                self.has_pooler = await self._find_pooler()
            if self.has_pooler and (names := self._how.not_with_pooler):
                raise ConfigError(_NOT_WITH_POOLER.format(", ".join(names)))
            pool = await asyncpg.create_pool(
                self._how.dsn,
                min_size=0,  # asyncpg logs a traceback when it cannot keep a minimum
                max_size=self._connections,
                connection_class=_Connection,
                command_timeout=self._command_timeout.total_seconds(),
                timeout=self._how.timeout,
                ssl=self._how.tls,
                init=self._note_connection,
                statement_cache_size=0 if self.has_pooler else _STATEMENTS,
            )
            if names := self._how.without_effect:
                _log.info("PostgreSQL: without effect in the DSN: %s", ", ".join(names))
            try:
                async with pool.acquire():
                    pass
            except BaseException:
                pool.terminate()
                raise
            else:
                return pool
        except ssl.SSLError as exc:  # a refused certificate is a ValueError, too
            raise self._unreachable(reason_of(exc)) from exc
        except ValueError:
            pass  # its message quotes the DSN, and would be shown as the cause
        except OverflowError as exc:
            raise self._unreachable("expected a port from 1 to 65535") from exc
        except asyncpg.UndefinedObjectError as exc:
            raise self._unreachable(f"{reason_of(exc)}: {_NO_SETTING}") from exc
        except asyncpg.InsufficientPrivilegeError as exc:
            raise self._unreachable(f"{reason_of(exc)}: {_GRANT_CONNECT}") from exc
        except FAULTS as exc:
            raise self._unreachable(reason_of(exc)) from exc
        raise self._unreachable(_NOT_READ)

    async def connect(self) -> asyncpg.Connection:
        """Open a connection beside those of the pool."""
        how = self._how
        return await asyncpg.connect(
            how.dsn, timeout=how.timeout, ssl=how.tls, statement_cache_size=0
        )

    async def _find_pooler(self) -> bool:
        """Return whether a pooler gives a session now to one connection, now to another."""
        async with self.patient_connection() as first:
            try:
                async with self.patient_connection() as other:
                    # A busy pooler may give both the same ones again, for a while.
                    found = [await self._session(each) for each in (first, other) * 5]
            except asyncpg.TooManyConnectionsError:
                return False  # not known: a role that only reads may have one connection
        is_shared = found[0] == found[1] or found[:2] * 5 != found
        if is_shared:
            _log.info(_FOUND_POOLER)
        return is_shared

    async def _session(self, connection: asyncpg.Connection) -> bytes:
        """Return the number of a connection's session, preparing nothing in it."""
        answer = bytearray()

        async def take(data: bytes) -> None:
            answer.extend(data)

        seconds = self._command_timeout.total_seconds()
        await connection.copy_from_query(_SESSION, output=take, timeout=seconds)
        return bytes(answer)

    def _unreachable(self, reason: str) -> StorageError:
        return StorageError(f"PostgreSQL: cannot connect to {host_of(self._dsn)}: {reason}")

    @contextlib.asynccontextmanager
    async def patient_connection(self) -> AsyncIterator[asyncpg.Connection]:
        """Connect without a time-out of statements: to make an index, or wait for that."""
        connection = await self.connect()
        try:
            yield connection
        finally:
            with contextlib.suppress(*FAULTS):
                await connection.close(timeout=1)

    async def _note_connection(self, connection: asyncpg.Connection) -> None:
        own = connection.get_server_pid()
        self.own_processes.add(own)
        connection.add_termination_listener(lambda _: self.own_processes.discard(own))


def reason_of(exc: BaseException) -> str:
    """Return what may be logged of a fault: a server's own message; others might hold the DSN."""
    if isinstance(exc, socket.gaierror):
        return f"the host name cannot be looked up: {exc.strerror}"
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {exc.verify_message}"
    if isinstance(exc, ssl.SSLError):  # its number is none of the operating system
        return f"TLS failed: {exc.reason or type(exc).__name__}"
    # Not its subclasses, which quote values or the DSN.
    if isinstance(exc, asyncpg.InternalClientError) or type(exc) is asyncpg.InterfaceError:
        # Else it is a mistake: an unknown kind of login, a connection that is in use.
        broke = isinstance(exc, asyncpg.InternalClientError) or "closed" in str(exc)
        return "the connection broke" if broke else str(exc)
    if not isinstance(exc, asyncpg.PostgresError):
        number = exc.errno if isinstance(exc, OSError) else None
        return os.strerror(number) if number else type(exc).__name__
    # The message names tables and limits. Its detail holds the refused row, with tokens and bodies,
    # and would be shown in every traceback.
    exc.detail = None
    if isinstance(exc, asyncpg.DataError):  # it quotes the value
        exc.args = (f"a value cannot be stored: {type(exc).__name__}",)
    return str(exc).replace("\n", " ")  # a hint is a line of its own


# --- how a DSN is read ---------------------------------------------------------------------------

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
_LOST_IN_POOLER = ("search_path", "options")


class _Connecting(NamedTuple):
    """How asyncpg connects to the server of a DSN."""

    dsn: str  # without what asyncpg would take for a setting of the server
    timeout: float  # for a connection, in seconds
    tls: ssl.SSLContext | None  # with the system's roots, if the DSN says so
    without_effect: tuple[str, ...]  # the names of parameters that were left out
    has_pooler: bool  # the DSN says that a pooler in transaction mode is before the server
    not_with_pooler: tuple[str, ...]  # the names of parameters that it would drop


def _connecting(dsn: str) -> _Connecting:
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
    return _Connecting(
        f"{head}?{'&'.join(kept)}" if any(kept) else head,
        _timeout(parameters.get("connect_timeout", "")),
        _system_roots(parameters),
        tuple(left_out),
        "pooler" in given,
        tuple(name for name in _LOST_IN_POOLER if name in given),
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


# --- what a role may do --------------------------------------------------------------------------

# The schema of the tables, also one that the role may not look into: that one is left out when
# PostgreSQL looks a name up. Where there are no tables yet, the schema that would get them.
_SCHEMA = """
    SELECT quote_ident(current_user) AS role, oid, quote_ident(nspname) AS name,
        pg_get_userbyid(nspowner) AS owner, has_schema_privilege(oid, 'USAGE') AS is_open,
        has_schema_privilege(oid, 'CREATE') AS may_create, EXISTS (SELECT FROM pg_class
        WHERE relnamespace = pg_namespace.oid AND relname = 'pushkit_schema') AS has_tables
    FROM unnest(string_to_array(current_setting('search_path'), ',')) WITH ORDINALITY
        AS named (name, place)
    JOIN pg_namespace ON nspname = replace(trim(BOTH '" ' FROM named.name), '$user', current_user)
    ORDER BY has_tables DESC, is_open DESC, place LIMIT 1
"""
_TABLES = """
    SELECT relname AS name, format('%I.%I', relnamespace::regnamespace::text, relname) AS full_name,
        pg_get_userbyid(relowner) AS owner, pg_has_role(relowner, 'USAGE') AS is_own,
        ARRAY(SELECT privilege FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE'])
            WITH ORDINALITY AS each (privilege, place)
            WHERE NOT has_table_privilege(oid, privilege) ORDER BY place) AS lacks
    FROM pg_class WHERE relnamespace = $1 AND relname = ANY($2::text[]) ORDER BY relname
"""
_FUNCTIONS = """
    SELECT oid::regprocedure::text AS name, pg_get_userbyid(proowner) AS owner,
        pg_has_role(proowner, 'USAGE') AS is_own, has_function_privilege(oid, 'EXECUTE') AS may_call
    FROM pg_proc WHERE pronamespace = $1 AND proname LIKE 'pushkit%' ORDER BY 1
"""
_LANGUAGES = """
    SELECT lanname AS name FROM pg_language
    WHERE lanname IN ('sql', 'plpgsql') AND NOT has_language_privilege(oid, 'USAGE')
"""
_READING = {"SELECT"}
_WRITING = {"SELECT", "INSERT", "UPDATE", "DELETE"}
_OF_ALL = ("pushkit_schema", "pushkit_writers")  # tables that components share


async def missing_rights(
    connection: asyncpg.Connection | PoolConnectionProxy,
    own_tables: Collection[str],
    *,
    reads_only: bool,
    migrates: bool,
) -> str | None:
    """Return which rights the role of a connection lacks, and who gives them how; None for none.

    Args:
        connection: The role's.
        own_tables: The names of the component's tables, also of those that do not exist.
        reads_only: Whether it only reads.
        migrates: Whether it creates or changes tables.
    """
    schema = await connection.fetchrow(_SCHEMA)
    if schema is None:
        path = await connection.fetchval("SELECT current_setting('search_path')")
        return (
            f"no schema of the search_path ({path}) exists: create one, or name another in the DSN"
            " (?search_path=…)"
        )
    role = schema["role"]
    tables = await connection.fetch(_TABLES, schema["oid"], [*_OF_ALL, *own_tables])
    functions = await connection.fetch(_FUNCTIONS, schema["oid"])
    if migrates:
        for each in (*tables, *functions):
            if not each["is_own"] and each["name"] not in _OF_ALL:
                return (
                    f"a migration changes {each['name']}, which belongs to the role"
                    f" {each['owner']}: found the role {role}; run `migrate` as the owner"
                )
    grants: list[str] = []
    on_schema = {"USAGE": not schema["is_open"], "CREATE": migrates and not schema["may_create"]}
    if lacks := ", ".join(name for name, is_missing in on_schema.items() if is_missing):
        grants.append(f"{lacks} ON SCHEMA {schema['name']}")
    needed = _READING if reads_only else _WRITING
    needed_of_all = _WRITING - {"DELETE"} if migrates else _READING
    tables_of = defaultdict[str, list[str]](list)  # by what is missing
    for each in tables:
        needs = needed_of_all if each["name"] in _OF_ALL else needed
        tables_of[", ".join(x for x in each["lacks"] if x in needs)].append(each["full_name"])
    grants += [f"{lacks} ON {', '.join(names)}" for lacks, names in tables_of.items() if lacks]
    if names := [each["name"] for each in functions if not each["may_call"]]:
        grants.append(f"EXECUTE ON FUNCTION {', '.join(names)}")
    if migrates:
        languages = [each["name"] for each in await connection.fetch(_LANGUAGES)]
        grants += [f"USAGE ON LANGUAGE {each}" for each in languages]
    if not grants:
        return None
    return f"the role {role} lacks rights; have the owner run: " + "; ".join(
        f"GRANT {each} TO {role}" for each in grants
    )
