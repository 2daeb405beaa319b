"""Locations of databases are parsed, and shown without their secrets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import ssl
import traceback
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from pushkit.clock import utc_now
from pushkit.errors import ConfigError, StorageError
from pushkit.storage.database import Database
from pushkit.storage.location import is_file, is_missing, masked
from pushkit.storage.migrations import Migration
from pushkit.storage.opening import open_location
from pushkit.storage.postgres import PostgresDatabase
from pushkit.storage.sqlite import SqliteDatabase
from pushkit.url import host_and_port
from tests.system.security.canaries import Canaries

NOTHING = Migration(1, ())


def at(location: str | Path) -> Database:
    return open_location(location, component="things", migrations=(NOTHING,), clock=utc_now)


@pytest.mark.parametrize(
    "scheme", ["postgresql", "postgres", "postgresql+asyncpg", "PostgreSQL", "postgresql+ASYNCPG"]
)
async def test_postgresql_is_known_by_every_spelling_of_its_scheme(
    postgres_dsn: str, scheme: str
) -> None:
    database = at(f"{scheme}://{postgres_dsn.partition('://')[2]}")
    assert isinstance(database, PostgresDatabase)
    await database.open()
    await database.close()


@pytest.mark.parametrize("path", ["missing.db", "there.db/below.db", "zero\0byte.db"], ids=repr)
async def test_a_path_without_a_file_is_missing(tmp_path: Path, path: str) -> None:
    (tmp_path / "there.db").touch()
    location = tmp_path / path
    assert is_missing(location)
    assert not is_missing(tmp_path / "there.db")
    assert not is_missing("postgresql://localhost/missing.db")
    with pytest.raises(StorageError, match=r"no such folder|there is no"):
        (await at(location).schema()).check_current(str(location))


@pytest.mark.parametrize(
    "path",
    [
        "things.db",
        "a folder/things.db",
        "./c:/things.db",
        "./d/c:/things@home.db",
        "/srv/me@home/t.db",
    ],
)
def test_a_path_is_a_sqlite_file(path: str) -> None:
    for location in (path, Path(path)):
        assert isinstance(at(location), SqliteDatabase)
        assert is_file(location)
    assert not is_file("postgresql://u@db/agent")


@pytest.mark.parametrize(
    ("location", "said"),
    [
        pytest.param("mysql://u:{0}@db/agent", "'mysql'", id="another database"),
        pytest.param("postgresql+psycopg://u:{0}@db/agent", "'postgresql+psycopg'", id="driver"),
        pytest.param("sqlite:///{0}.db", "'sqlite'", id="SQLAlchemy's SQLite"),
        pytest.param("postgresql:/u:{0}@db/agent", "'postgresql'", id="one slash"),
        pytest.param(":memory:", "':memory:'", id="SQLite's memory"),
        pytest.param("file:{0}.db?mode=memory", "'file:'", id="a URI of SQLite"),
        pytest.param("'postgresql://u:{0}@db/agent'", "a URL", id="in quotes"),
        pytest.param("DSN=postgresql://u:{0}@db/agent", "a URL", id="an assignment"),
        pytest.param("u:{0}://@db/agent", "a URL", id="a secret where a scheme would end"),
        pytest.param("host=db user=u password={0}", "a password", id="words of libpq"),
        pytest.param("u:{0}@db/agent", "a password", id="no scheme"),
        pytest.param("postgres//u:{0}@db/agent", "a password", id="no colon"),
        pytest.param("postgres//u:1/{0}@db/agent", "a password", id="no colon, a slash"),
        pytest.param("/u:{0}@db/agent", "a password", id="a slash alone"),
        pytest.param("host=db PassWord = '{0}'", "a password", id="words of libpq, spaced"),
    ],
)
def test_another_location_is_refused_by_its_scheme_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    canaries = Canaries()
    secret = canaries.plant("password")
    with pytest.raises(ConfigError, match=re.escape(said)) as refused:
        at(location.format(secret))
    written = "".join(traceback.format_exception(refused.value)) + repr(refused.value)
    assert canaries.found_in(written) == set()
    assert list(tmp_path.iterdir()) == []


def test_a_dsn_that_went_through_a_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="'postgresql'"):
        at(Path("postgresql://u@db/agent"))


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("outbox.db", "outbox.db"),
        ("postgresql://db/agent", "postgresql://db/agent"),
        ("postgresql://u@db/agent", "postgresql://u@db/agent"),
        ("postgresql://u:SECRET@db:5/agent", "postgresql://u:***@db:5/agent"),
        ("postgresql+asyncpg://u:SECRET@db/agent", "postgresql+asyncpg://u:***@db/agent"),
        ("what.ever-1://u:SECRET@db/agent", "what.ever-1://u:***@db/agent"),
        ("postgresql://u:SE/CR?E#T@@db/agent", "postgresql://u:***@db/agent"),
        ("postgresql://u:SECRET/agent", "postgresql://***/agent"),
        ("postgresql:///agent?host=/run", "postgresql:///agent?host=/run"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
        ("redis://:SECRET@cache/0", "redis://:***@cache/0"),
        ("postgresql://db/a?password=SECRET&x=1", "postgresql://db/a?password=***&x=1"),
        ("postgresql://db/a?x=1&ssl%70assword=SECRET", "postgresql://db/a?x=1&ssl%70assword=***"),
        ("postgresql://db/a?scram_client_key=SECRET", "postgresql://db/a?scram_client_key=***"),
        ("postgresql://db/a?oauth_client_secret=S", "postgresql://db/a?oauth_client_secret=***"),
        ("postgresql://u:SECRET@db/a?PassWord=SECRET", "postgresql://u:***@db/a?PassWord=***"),
    ],
)
def test_a_location_is_shown_without_its_passwords(location: str, shown: str) -> None:
    assert masked(location) == shown


@pytest.mark.parametrize(
    ("dsn", "host"),
    [
        ("postgresql://u:{0}@127.0.0.1:1/agent", "127.0.0.1:1"),
        ("postgresql+asyncpg://u:{0}@127.0.0.1:1/agent", "127.0.0.1:1"),
        ("postgresql://u:{0}@[::1]:1/agent", r"\[::1\]:1"),
        ("postgresql://u:{0}@127.0.0.1:1,127.0.0.1:2/agent", "127.0.0.1:1,127.0.0.1:2"),
        ("postgresql:///agent?host=127.0.0.1&port=1&password={0}", "127.0.0.1:1"),
        ("postgresql:///agent?host=/nowhere&password={0}", "/nowhere:5432"),
        ("postgresql://nobody.invalid/agent?password={0}", "nobody.invalid:5432"),
    ],
)
async def test_a_server_out_of_reach_is_named_by_host_and_port(dsn: str, host: str) -> None:
    canaries = Canaries()
    database = at(dsn.format(canaries.plant("password")))
    with pytest.raises(StorageError, match=f"cannot connect to {host}: ") as refused:
        await database.open()
    assert "the DSN cannot be read" not in str(refused.value)
    assert canaries.found_in("".join(traceback.format_exception(refused.value))) == set()


@pytest.mark.parametrize(
    "dsn",
    [
        pytest.param("postgresql://u:12/{0}@127.0.0.1/agent", id="a slash in the password"),
        pytest.param("postgresql://u:{0}/agent", id="no host behind the password"),
        pytest.param("postgresql://127.0.0.1:{0}/agent", id="a port that is none"),
        pytest.param("postgresql://[{0}/agent", id="half of a bracket"),
        pytest.param("postgresql://127.0.0.1:1/agent?sslmode={0}", id="an unknown mode"),
        pytest.param("postgresql://127.0.0.1:1/agent?port={0}", id="an unknown port"),
    ],
)
async def test_a_dsn_that_cannot_be_read_is_not_repeated(dsn: str) -> None:
    canaries = Canaries()
    database = at(dsn.format(canaries.plant("password")))
    with pytest.raises(StorageError) as refused:
        await database.open()
    written = "".join(traceback.format_exception(refused.value)) + repr(refused.value)
    assert canaries.found_in(written) == set()


@pytest.mark.parametrize("where", ["127.0.0.1:65536/agent", "/agent?host=127.0.0.1&port=65536"])
async def test_a_port_beyond_the_last_one_is_refused(where: str) -> None:
    with pytest.raises(StorageError, match=r"127\.0\.0\.1:65536: expected a port from 1 to 65535"):
        await at(f"postgresql://{where}").open()


async def test_no_part_of_a_password_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    async def note(*host: object, **__: object) -> None:
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", note)
    database = at("postgresql://u:half@secret@127.0.0.1:1/agent")
    with pytest.raises(StorageError, match=r"127\.0\.0\.1:1: the DSN cannot be read"):
        await database.open()
    assert asked == []


async def test_an_unknown_host_name_is_reported_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
    database = at("postgresql://u:secret@nowhere.example.com/agent")
    with pytest.raises(StorageError, match="the host name cannot be looked up: Name or service"):
        await database.open()


@contextlib.asynccontextmanager
async def a_tls_server(authority: trustme.CA) -> AsyncIterator[str]:
    """Yield the address of a server that speaks TLS, and hangs up then."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)  # whether the server speaks TLS
        writer.write(b"S")
        with contextlib.suppress(OSError):
            await writer.start_tls(tls)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield host_and_port(*server.sockets[0].getsockname())


async def test_a_refused_certificate_is_reported_in_words(tmp_path: Path) -> None:
    trusted = tmp_path / "trusted.pem"
    trustme.CA().cert_pem.write_to_path(trusted)
    async with a_tls_server(trustme.CA()) as where:
        database = at(f"postgresql://u:p@{where}/a?sslmode=verify-full&sslrootcert={trusted}")
        expected = f"cannot connect to {where}: its certificate is refused: "
        with pytest.raises(StorageError, match=expected):
            await database.open()


@pytest.mark.parametrize(
    ("is_known", "says"),
    [
        pytest.param(True, "connection was closed", id="a root of the system"),
        pytest.param(False, "its certificate is refused", id="another root"),
    ],
)
async def test_the_roots_of_the_system_can_be_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool, says: str
) -> None:
    authority, roots = trustme.CA(), tmp_path / "roots.pem"
    (authority if is_known else trustme.CA()).cert_pem.write_to_path(roots)
    monkeypatch.setenv("SSL_CERT_FILE", str(roots))
    async with a_tls_server(authority) as where:
        database = at(f"postgresql://u:p@{where}/a?sslmode=verify-full&sslrootcert=system")
        with pytest.raises(StorageError, match=says):
            await database.open()


async def test_a_file_without_certificates_is_reported_by_openssls_reason(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    database = at(f"postgresql://u:p@127.0.0.1:1/a?sslmode=verify-full&sslrootcert={empty}")
    with pytest.raises(StorageError, match="TLS failed: NO_CERTIFICATE_OR_CRL_FOUND"):
        await database.open()


@pytest.mark.parametrize(
    ("query", "without_effect"),
    [
        pytest.param("connect_timeout=10", None, id="honoured"),
        pytest.param("fallback_application_name=a&options=-c%20work_mem%3D64kB", None, id="names"),
        pytest.param(
            "keepalives=1&keepalives_idle=30&keepalives_interval=5&keepalives_count=3"
            "&tcp_user_timeout=9&load_balance_hosts=random&client_encoding=auto&sslcompression=0",
            "keepalives, keepalives_idle, keepalives_interval, keepalives_count, tcp_user_timeout,"
            " load_balance_hosts, client_encoding, sslcompression",
            id="only tune",
        ),
        pytest.param(
            "channel_binding=prefer&gssencmode=disable&requiressl=0",
            "channel_binding, gssencmode, requiressl",
            id="with a value that changes nothing",
        ),
    ],
)
async def test_parameters_of_libpq_are_no_settings_of_the_server(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture, query: str, without_effect: str | None
) -> None:
    caplog.set_level(logging.INFO, "pushkit.storage")
    database = at(f"{postgres_dsn}&{query}")
    await database.open()
    await database.close()
    lines = [f"PostgreSQL: without effect in the DSN: {without_effect}"] if without_effect else []
    assert caplog.messages == lines


@pytest.mark.parametrize("place", ["the DSN", "the variable PG", "the service file"])
@pytest.mark.parametrize(
    ("parameter", "advice"),
    [
        ("channel_binding=require", "leave it out: with sslmode=verify-full"),
        ("gssencmode=require", "use TLS"),
        ("require_auth=scram-sha-256", "leave it out"),
        ("requirepeer=postgres", "leave it out"),
        ("requiressl=1", "write sslmode=require"),
        ("sslcertmode=require", "leave it out"),
        ("sslcrldir=/etc/ssl/crl", "sslcrl"),
        ("hostaddr=127.0.0.1", "as the host"),
    ],
)
def test_what_would_make_a_connection_less_secure_if_ignored_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, parameter: str, advice: str
) -> None:
    query = ""
    name, _, value = parameter.partition("=")
    if place == "the DSN":
        query = parameter
    elif place == "the variable PG":
        monkeypatch.setenv(f"PG{name.replace('_', '').upper()}", value)
    else:
        (tmp_path / "services").write_text(f"[agent]\n{parameter}\n")
        monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
        query = "service=agent"
    with pytest.raises(ConfigError, match=f"{name} in {place}.*{re.escape(advice)}") as refused:
        at(f"postgresql://u@127.0.0.1:1/agent?{query}")
    assert value == "1" or value not in str(refused.value)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        pytest.param("connect_timeout=soon", "expected whole seconds", id="timeout"),
        pytest.param("pooler=pgbouncer", "pooler in the DSN: expected transaction", id="pooler"),
        pytest.param("sslmode=verify-full", "add sslrootcert=system, or", id="no roots"),
        pytest.param("sslmode=require&sslrootcert=system", "needs sslmode=verify-full", id="mode"),
        pytest.param("sslrootcert=system&sslcrl=a.pem", "give a file of certificates", id="crl"),
    ],
)
def test_a_parameter_with_a_wrong_value_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str, says: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=says):
        at(f"postgresql://u@127.0.0.1:1/agent?{query}")


async def test_a_parameter_of_other_drivers_is_named(postgres_dsn: str) -> None:
    with pytest.raises(StorageError, match=r'"pgbouncer": .*leave it out of the DSN'):
        await at(f"{postgres_dsn}&pgbouncer=true").open()


async def test_a_silent_server_is_given_up_after_the_connect_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # the system connects; nobody answers
        where = host_and_port(*listener.getsockname())
        async with asyncio.timeout(8):  # without the parameter it would be 10 s
            with pytest.raises(StorageError, match="TimeoutError"):
                await at(f"postgresql://u@{where}/a?sslmode=disable&connect_timeout=1").open()
