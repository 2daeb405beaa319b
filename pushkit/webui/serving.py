"""A dashboard as a service: its listener, its token, its audit log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Final

from aiohttp import web

from pushkit.errors import ConfigError
from pushkit.files import read_private
from pushkit.programs import secret_variable
from pushkit.storage.database import Database, opened
from pushkit.storage.migrations import Access
from pushkit.terminal.listening import accepting_few, listen
from pushkit.terminal.options import DashboardOptions
from pushkit.terminal.output import LogFormat, log_to_stderr
from pushkit.terminal.processes import say, until_stopped
from pushkit.url import host_and_port
from pushkit.webui.access import DashboardAccess, is_loopback
from pushkit.webui.site import Site

_WRITTEN: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_A_LINE: Final = re.compile(rb"\d{4}-\d\d-\d\d |\Z")


def access_of(options: DashboardOptions) -> DashboardAccess:
    """Return the access rules that the options ask for.

    Raises:
        ConfigError: A needed token is missing, or a token is empty or weak.
        KeyFileError: The token's file cannot be read, or other users may read it.
    """
    token = secret_variable(options.variable)
    if options.token_file is not None:
        found = read_private(options.token_file, made_by="umask 077; openssl rand -hex 20 >")
        token = found.decode("utf-8", "replace").strip()
    host = options.listen.rpartition(":")[0].strip("[]")
    is_exposed = host != "localhost" and not is_loopback(host)
    if token is None and (options.allow_actions or is_exposed):
        why = "to allow actions" if options.allow_actions else f"to listen on {options.listen}"
        raise ConfigError(
            f"{why}, a dashboard needs a token: name a token file, or"
            f" export {options.variable}=$(openssl rand -hex 20)"
        )
    return DashboardAccess(token=token, allow_actions=options.allow_actions, hosts=options.hosts)


def audit_to(file: Path | None) -> None:
    """Send the audit log to a file, or to the log.

    Raises:
        ConfigError: The file cannot be opened, or is another one.
    """
    if file is None:
        return
    try:
        if file.is_file():
            with file.open("rb") as former:
                if not _A_LINE.match(former.read(16)):
                    raise ConfigError(f"audit log {file}: found another file, expected its own")
        handler = WatchedFileHandler(file, encoding="utf-8")  # logrotate may move the file away
    except OSError as exc:
        raise ConfigError(f"audit log {file}: {exc.strerror}") from exc
    handler.setFormatter(logging.Formatter(_WRITTEN))
    audit = logging.getLogger("pushkit.dashboard.audit")
    audit.addHandler(handler)
    audit.propagate = False


@contextlib.asynccontextmanager
async def serving(site: Site, sockets: Sequence[socket.socket]) -> AsyncIterator[None]:
    """Serve a dashboard on listening sockets while the context is open."""
    runner = web.AppRunner(site.app(), access_log=None, shutdown_timeout=2)
    await runner.setup()
    assert runner.server is not None  # noqa: S101  # it is set up
    try:
        async with accepting_few(runner.server, sockets):
            yield
    finally:
        await runner.cleanup()


def run_dashboard(
    options: DashboardOptions,
    database: Database,
    make: Callable[[DashboardAccess], Site],  # makes the dashboard of this database
) -> None:
    """Serve a dashboard until a stop signal. Raises ConfigError: bad address, or no token."""
    log_to_stderr(verbose=False, log_format=LogFormat.TEXT)

    async def run(access: DashboardAccess, sockets: Sequence[socket.socket]) -> None:
        mode = Access.WRITE if access.allow_actions else Access.READ
        with until_stopped() as stop:
            async with opened(database, mode), serving(make(access), sockets):
                host, port = sockets[0].getsockname()[:2]
                say(f"dashboard on http://{host_and_port(host, port)}/")
                await stop.wait()

    with contextlib.ExitStack() as closing:
        sockets = listen(options.listen, setting="--listen")
        for each in sockets:
            closing.enter_context(each)
        access = access_of(options)
        audit_to(options.audit_log)
        asyncio.run(run(access, sockets))
