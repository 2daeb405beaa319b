"""Real servers for the tests that need one."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import shutil
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import hypothesis
import pytest
from _pytest.runner import runtestprotocol

from pushkit.outbox.schema import open_outbox
from tests.databases import (
    MadeSchemas,
    PostgresConnection,
    PostgresServer,
    ScriptRunner,
    SqliteConnection,
    fresh,
)
from tests.internet import Internet, an_internet
from tests.long_runs import examples
from tests.network import Network, the_network
from tests.ports import free_port
from tests.redis_server import RedisServer
from tests.stalls import stalls_not_counted

BOTH = ("sqlite", "postgresql")

# Databases are made by the thousand: in memory, where there is room, nobody waits for a disk.
_MEMORY = Path("/dev/shm")  # noqa: S108  # pytest makes a folder of its own in it
if "TMPDIR" not in os.environ and _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 2 << 30:
    os.environ["TMPDIR"] = str(_MEMORY)
    tempfile.tempdir = None  # somebody has asked already

# Without a deadline, for an example or for making it up: a busy machine is no defect.
hypothesis.settings.register_profile(
    "share",
    hypothesis.settings(),
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("share")

# Modules and tests stay until the end: nobody looks for garbage among them.
gc.disable()


def pytest_xdist_auto_num_workers() -> int:
    """Two to a core: tests wait, for processes, time-outs and servers."""
    return 2 * (len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


# What `make test-fast` leaves out, besides what is marked `slow`: whole programs at work and pages,
SLOW_ROOMS = {"contract/docs", "unit/pushkit/dashboard", "unit/receiver/dashboard"} | {
    *("system/examples", "system/faults", "system/integration", "system/security"),
    *("verification/interop", "verification/simulation", "verification/soak"),
}
# what needs a server, or certificates and names,
SLOW_PARAMETERS = {"postgresql"}
SLOW_FIXTURES = {"postgres_server", "redis_server", "internet"}
# and four of five cases, where there are many.
MANY = 12


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow; random cases by the hundred are, too."""
    families = Counter(_family(item) for item in items)
    met = Counter[str]()
    for item in items:
        family = _family(item)
        met[family] += 1
        fixtures = set(getattr(item, "fixturenames", ()))
        callspec = getattr(item, "callspec", None)
        parameters = (
            {each for each in callspec.params.values() if isinstance(each, str)}
            if callspec
            else set()
        )
        if (
            _is_slow_room(item.path)
            or (families[family] > MANY and met[family] % 5 != 1)
            or fixtures & SLOW_FIXTURES
            or parameters & SLOW_PARAMETERS
            or getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        ):
            item.add_marker(pytest.mark.slow)
    items[:] = _waiting_first(items)


def _waiting_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """Let half of the workers begin with the rooms whose tests wait, beside others that compute.

    Workers begin with consecutive shares of the tests, and later take over the ends of others'.
    """
    waiting = [item for item in items if _is_slow_room(item.path)]
    others = [item for item in items if not _is_slow_room(item.path)]
    parts = max(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) // 2, 1)
    return [
        item
        for part in range(parts)
        for some in (waiting, others)
        for item in some[len(some) * part // parts : len(some) * (part + 1) // parts]
    ]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave rooms of slow tests unread where they are not asked for."""
    fast = config.getoption("markexpr") == "not slow"
    return True if fast and _is_slow_room(collection_path) else None


@functools.cache  # it is asked three times for each of thousands of tests, of a few hundred files
def _is_slow_room(path: Path) -> bool:
    """Say whether this is a room of slow tests, or stands in one."""
    parts = path.relative_to(Path(__file__).parent).parts
    return not SLOW_ROOMS.isdisjoint({"/".join(parts[:2]), "/".join(parts[:3])})


def _family(item: pytest.Item) -> str:
    """Return which test a case is of."""
    return item.nodeid.partition("[")[0]


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test; of what ends well a worker tells the outcome alone: six messages cost more."""
    if not hasattr(item.config, "workerinput") or item.config.option.durations is not None:
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Take back what a command sets up for the log of a whole process."""
    root = logging.getLogger()
    names = ("", "aiohttp.server", "pushkit", "receiver")
    before = {each: vars(each).copy() for each in map(logging.getLogger, names)}
    handlers = {each: set(each.handlers) for each in before}
    yield
    logging.setLoggerClass(logging.Logger)
    for logger in root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger) and type(logger).__module__.startswith("pushkit."):
            logger.__class__ = logging.Logger
    for logger, found in before.items():
        logger.setLevel(found["level"])
        logger.propagate = found["propagate"]
        for handler in set(logger.handlers) - handlers[logger]:
            if type(handler) is logging.StreamHandler:
                logger.removeHandler(handler)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Return the DSN of a PostgreSQL server: `PUSHKIT_TEST_POSTGRES_DSN`, or one from the wheel."""
    if dsn := os.environ.get("PUSHKIT_TEST_POSTGRES_DSN"):
        yield dsn
        return
    server = PostgresServer()
    yield server.dsn
    server.remove()


@pytest.fixture
def postgres_dsn(postgres_server: str) -> str:
    """Return the DSN of an empty schema on a PostgreSQL server."""
    return fresh(postgres_server)


@pytest.fixture(scope="session")
def made_outboxes(postgres_server: str) -> MadeSchemas:
    """Return schemas that have an outbox: for rooms whose tests are not about making one."""
    return MadeSchemas(postgres_server, open_outbox)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """Return the URL of a Redis server: `PUSHKIT_TEST_REDIS_URL`, or one from the wheel."""
    if url := os.environ.get("PUSHKIT_TEST_REDIS_URL"):
        yield url
        return
    server = RedisServer()
    yield server.url
    server.remove()


@pytest.fixture(params=BOTH)
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return where an empty database is: the same test runs on both kinds."""
    if request.param == "sqlite":
        return str(tmp_path / "database.db")
    dsn: str = request.getfixturevalue("postgres_dsn")
    return dsn


@pytest.fixture(params=BOTH)
def scripts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ScriptRunner]:
    """Return what runs scripts on an empty database: the same test runs on both kinds."""
    runner: ScriptRunner
    if request.param == "sqlite":
        runner = SqliteConnection(tmp_path / "database.db")
    else:
        runner = PostgresConnection(
            request.getfixturevalue("postgres_server"), request.getfixturevalue("postgres_dsn")
        )
    yield runner
    runner.close()


@pytest.fixture
def unused_tcp_port() -> int:
    """Return a port that nobody uses; no other worker of this run gets it."""
    return free_port()


@pytest.fixture
async def no_stalls() -> AsyncIterator[None]:
    """Have deadlines of the test's loop count no time in which this process stands still."""
    with stalls_not_counted(asyncio.get_running_loop()):
        yield


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return every statement of every SQLite connection that is opened from here on."""
    statements: list[str] = []
    connect = sqlite3.connect

    def connect_traced(*args: object, **options: object) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **options)  # type: ignore[call-overload]
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_traced)
    return statements


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    """Return a network that records who is dialled, and never leaves loopback."""
    with the_network(monkeypatch) as network:
        yield network


@pytest.fixture
async def internet(network: Network, tmp_path: Path) -> AsyncIterator[Internet]:
    """Return servers with public names and real certificates, on loopback."""
    async with an_internet(network, tmp_path) as internet:
        yield internet
