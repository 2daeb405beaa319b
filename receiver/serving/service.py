"""`receiver serve`: one process or several over the same sockets, from start to graceful end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pushkit.errors import ConfigError
from pushkit.telemetry.together import counted_together
from pushkit.terminal.listening import LISTEN_BACKLOG, listen
from pushkit.terminal.log_output import LogFormat, log_to_stderr
from pushkit.terminal.processes import (
    Supervisor,
    accept_signal,
    is_first_process,
    place_in_service,
    run_service_loop,
    unless_stopped,
    until_stopped,
)
from pushkit.terminal.systemd import reporting_to_systemd
from receiver.receiver import Receiver
from receiver.reload import SettingsWatcher, watching
from receiver.serving.server import HttpServer
from receiver.serving.tls import TlsFiles
from receiver.settings import ReceiverSettings, load_settings

if TYPE_CHECKING:
    from pushkit.webui.access import DashboardAccess

_log = logging.getLogger("receiver")

_RESTART_AFTER = timedelta(seconds=1)
# For closing what is open, once requests and callbacks have ended.
_MARGIN = timedelta(seconds=30)
# For the rest: then whatever is left in threads is left.
_LEAVING_SECONDS = 2.0
_OTHER_FILES = 512  # databases, callbacks, forwards, key hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """What the command line says; the rest stands in the configuration."""

    config: Path
    processes: int = 1
    verbose: bool = False  # log what was accepted, too
    log_format: LogFormat | None = None  # how to log; None for what the configuration says


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sockets:
    """What all processes listen on: the webhook, operators' pages, the dashboard."""

    webhook: Sequence[socket.socket]
    ops: Sequence[socket.socket] = ()
    pages: Sequence[socket.socket] = ()
    heard: socket.socket | None = None  # by the process that serves the dashboard
    told: socket.socket | None = None  # by all others


def run_service(options: ServiceOptions) -> int:
    """Serve until SIGTERM or Ctrl-C; return the exit status.

    Raises:
        PushkitError: It cannot start: configuration, address, certificate or database.
    """
    settings = load_settings(options.config)
    _log_as(options, settings)
    # Until there is a handler it waits; unhandled, it would end the process.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    receiver, tls = settings.build(), TlsFiles.of(settings)
    dashboard_access(settings)  # what is wrong with it is said before anybody listens
    pages_at = settings.dashboard.listen if settings.dashboard else None
    _raise_file_limit(settings.max_connections)
    sockets = _Sockets(
        webhook=listen(settings.listen, setting="listen"),
        ops=listen(settings.ops_listen, setting="ops_listen") if settings.ops_listen else (),
        pages=listen(pages_at, setting="dashboard.listen") if pages_at else (),
    )
    if options.processes == 1:
        _run(receiver, settings, sockets, tls)
        return 0
    if pages_at:
        from receiver.serving.heard_together import one_line

        heard, told = one_line()
        sockets = replace(sockets, heard=heard, told=told)
    # Wrong settings are reported once, before there are processes.
    asyncio.run(_try(receiver))
    service = Supervisor(
        _child,
        [options, sockets],
        count=options.processes,
        name="receiver",
        deadline=settings.stop_timeout + settings.drain + _MARGIN,
        restart_after=_RESTART_AFTER,
        forward=[signal.SIGHUP],
    )
    with counted_together(options.processes):
        return service.run()


def _log_as(options: ServiceOptions, settings: ReceiverSettings) -> None:
    log_format = options.log_format or settings.log_format
    log_to_stderr(verbose=options.verbose, log_format=log_format)


async def _try(receiver: Receiver) -> None:
    await receiver.open()
    await receiver.close()


def _child(options: ServiceOptions, sockets: _Sockets) -> None:
    settings = load_settings(options.config)
    _log_as(options, settings)
    receiver, tls = settings.build(), TlsFiles.of(settings)
    _run(receiver, settings, sockets, tls)


def _run(
    receiver: Receiver, settings: ReceiverSettings, sockets: _Sockets, tls: TlsFiles | None
) -> None:
    # uvloop reads on before a handshake of ours can begin, and its first bytes would be lost.
    run_service_loop(_serve(receiver, settings, sockets, tls), uvloop=tls is None)


async def _serve(
    receiver: Receiver, settings: ReceiverSettings, sockets: _Sockets, tls: TlsFiles | None
) -> None:
    with until_stopped() as stop:
        async with watching(receiver, settings) as watcher:
            accept_signal(signal.SIGHUP, lambda: _reload(watcher, tls))
            if not await unless_stopped(stop, receiver.start()):
                return
            async with (
                receiver,
                _operated(receiver, sockets.ops),
                _looked_at(receiver, settings, sockets),
                _server(receiver, settings, sockets.webhook, tls),
                reporting_to_systemd(),
            ):
                _say_what_is_served(receiver, settings)
                click.echo(f"process {os.getpid()} serves")
                await stop.wait()
                click.echo(f"process {os.getpid()} answers what is in flight, and ends")
                receiver.wind_down()  # beside the answers, not after them
    _leave_soon()


def _say_what_is_served(receiver: Receiver, settings: ReceiverSettings) -> None:
    """Say where agents and operators find it, once for all processes."""
    if not is_first_process():
        return
    for sender in receiver.senders.values():
        url = f"{receiver.url}{sender.path}"
        click.echo(f"receiving from {sender.name} at {url} (listening on {settings.listen})")
    if settings.dashboard is not None:
        click.echo(f"dashboard on http://{settings.dashboard.listen}/")


def _leave_soon() -> None:
    """End this process in a moment, whatever threads do: all is closed, and nothing waits for them.

    A callback may hang in a thread of ours, of the loop's own pool, or in one that it started.
    """

    def leave() -> None:
        time.sleep(_LEAVING_SECONDS)
        _log.warning("process %d ends while threads still run", os.getpid())
        flushing = threading.Thread(target=_flush, daemon=True)
        flushing.start()
        flushing.join(1)  # a thread that hangs may hold a stream
        os._exit(0)

    threading.Thread(target=leave, name="leaving", daemon=True).start()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


@contextlib.asynccontextmanager
async def _operated(receiver: Receiver, sockets: Sequence[socket.socket]) -> AsyncIterator[None]:
    """Answer operators, where that is configured."""
    if not sockets:
        yield
        return
    from pushkit.telemetry.endpoints import Endpoints, serving
    from pushkit.telemetry.metrics import count_in_place

    count_in_place(place_in_service())
    endpoints = Endpoints(
        metrics=receiver.metrics, unready=receiver.unready, degraded=receiver.degraded
    )
    async with serving(endpoints, sockets):
        yield


def dashboard_access(settings: ReceiverSettings) -> DashboardAccess | None:
    """Return who may look at the dashboard; None if there is to be none.

    Raises:
        ConfigError: It needs a token, or what renders its pages.
    """
    if settings.dashboard is None:
        return None
    try:
        from pushkit.webui.serving import access_of
    except ImportError as exc:
        raise ConfigError("[dashboard] needs Jinja2: pip install 'pushkit[dashboard]'") from exc
    return access_of(settings.dashboard.build(settings.folder))


@contextlib.asynccontextmanager
async def _looked_at(
    receiver: Receiver, settings: ReceiverSettings, sockets: _Sockets
) -> AsyncIterator[None]:
    """Serve the dashboard, where that is configured: in the first process, for all of them."""
    access = dashboard_access(settings)
    if settings.dashboard is None or access is None:
        yield
        return
    from pushkit.clock import utc_now
    from pushkit.webui.serving import audit_to, serving
    from receiver.dashboard.app import dashboard_of
    from receiver.dashboard.memory import Memory
    from receiver.serving.heard_together import hearing, telling

    if sockets.told is not None and not is_first_process():
        receiver.events.add(telling(sockets.told))
        yield
        return
    audit_to(settings.dashboard.build(settings.folder).audit_log)
    memory = Memory(utc_now)
    site = dashboard_of(receiver, access=access, memory=memory)
    others = hearing(sockets.heard, memory.record) if sockets.heard else contextlib.nullcontext()
    with others:
        async with serving(site, sockets.pages):
            yield


@contextlib.asynccontextmanager
async def _server(
    receiver: Receiver,
    settings: ReceiverSettings,
    sockets: Sequence[socket.socket],
    tls: TlsFiles | None,
) -> AsyncIterator[None]:
    """Accept connections; at the end accept none, and answer what is in flight."""
    server = HttpServer(
        receiver.edge.begin,
        limits=settings.connection_limits,
        is_proxy=receiver.edge.peers.is_proxy,
        max_head_bytes=receiver.intake.limits.max_header_bytes,
        tls=tls.context if tls else None,
        refusals=receiver.intake.refusals,
    )
    loop = asyncio.get_running_loop()
    accepting = [
        await loop.create_server(server, sock=listener, backlog=LISTEN_BACKLOG)
        for listener in sockets
    ]
    try:
        yield
    finally:
        for each in accepting:
            each.close()
        await server.drain(settings.stop_timeout.total_seconds())


def _reload(watcher: SettingsWatcher, tls: TlsFiles | None) -> None:
    """Read again what may change without a restart: the senders, and the certificate."""
    watcher.hang_up()
    if tls is None:
        return
    try:
        tls.reload()
    except ConfigError as exc:
        _log.error("not reloaded, going on with what was loaded before: %s", exc)
        return
    _log.warning("reloaded the TLS certificate")


def _raise_file_limit(max_connections: int) -> None:
    """Let there be as many open files as connections are allowed, and what else there is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Sockets over the cap are open, too, until they are closed.
    wanted = max_connections + LISTEN_BACKLOG + _OTHER_FILES
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
