"""`receiver serve`: one process, or several that share its sockets, from start to graceful end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
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
from pushkit.keys.files import fingerprint
from pushkit.lazy import from_extra
from pushkit.telemetry.endpoints import serving_operators
from pushkit.telemetry.together import counted_together
from pushkit.terminal.listening import accepting, listen
from pushkit.terminal.options import choice_option, gathered
from pushkit.terminal.output import LogFormat, example, log_to_stderr
from pushkit.terminal.processes import (
    Supervisor,
    accept_signal,
    is_first_process,
    run_service_loop,
    say,
    serve_until,
    unless_stopped,
    until_stopped,
)
from receiver.options import config_option
from receiver.receiver import Receiver
from receiver.serving.server import HttpServer, TlsFiles
from receiver.settings import ReceiverSettings, load_settings

if TYPE_CHECKING:
    from pushkit.webui.access import DashboardAccess

_log = logging.getLogger("receiver")

_RESTART_AFTER = timedelta(seconds=1)
# For closing database and connections, once requests and callbacks have ended.
_MARGIN = timedelta(seconds=30)
# For the end of the process; after it, running threads are abandoned.
_LEAVING_SECONDS = 2.0
_OTHER_FILES = 512  # databases, callbacks, forwards, key hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """The options of the command line; the configuration has the rest."""

    config: Path
    processes: int = 1
    verbose: bool = False  # also log accepted notifications
    log_format: LogFormat | None = None  # None for the format in the configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sockets:
    """The sockets that all processes share."""

    webhook: Sequence[socket.socket]
    ops: Sequence[socket.socket] = ()  # metrics and probes
    pages: Sequence[socket.socket] = ()  # the dashboard
    events_in: socket.socket | None = None  # where the process with the dashboard receives events
    events_out: socket.socket | None = None  # where all others send them


@click.command(
    epilog=example("receiver serve --config receiver.toml --processes 2 --log-format json")
)
@gathered(
    "options",
    ServiceOptions,
    config=config_option,
    processes=click.option(
        "--processes",
        type=click.IntRange(1, 64),
        default=1,
        help="Processes that share one socket; one per core is enough.",
    ),
    verbose=click.option(
        "--verbose", is_flag=True, help="Log accepted notifications too, not only refusals."
    ),
    log_format=choice_option(
        "--log-format",
        of=LogFormat,
        help="Lines for people, or JSON objects; by default as the configuration says.",
    ),
)
def serve(*, options: ServiceOptions) -> None:
    """Serve the webhook and run callbacks until SIGTERM or Ctrl-C.

    Then requests in flight are answered, and the exit status is 0. SIGHUP reloads the senders and
    the certificate. If one of several processes dies, it is started again.
    """
    # Blocked until there is a handler; unhandled, it would end the process.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    settings, receiver, tls = _built(options)
    dashboard_access(settings)  # mistakes in it are reported before the sockets are opened
    pages_at = settings.dashboard.listen if settings.dashboard else None
    sockets = _Sockets(
        webhook=listen(settings.listen, setting="listen"),
        ops=listen(settings.ops_listen, setting="ops_listen") if settings.ops_listen else (),
        pages=listen(pages_at, setting="dashboard.listen") if pages_at else (),
    )
    if options.processes == 1:
        _run(settings, receiver, tls, sockets)
        return
    if pages_at:
        from receiver.dashboard.memory import event_sockets

        events_in, events_out = event_sockets()
        sockets = replace(sockets, events_in=events_in, events_out=events_out)
    # Faults of the inbox are reported once, before there are processes.
    asyncio.run(_try(receiver))
    service = Supervisor(
        target=_child,
        arguments=[options, sockets],
        count=options.processes,
        name="receiver",
        deadline=settings.stop_timeout + settings.drain + _MARGIN,
        restart_after=_RESTART_AFTER,
        forward=[signal.SIGHUP],
    )
    with counted_together():
        sys.exit(service.run())


def _built(options: ServiceOptions) -> tuple[ReceiverSettings, Receiver, TlsFiles | None]:
    """Log as the configuration says, and build what it describes."""
    settings = load_settings(options.config)
    log_format = options.log_format or settings.log_format
    log_to_stderr(verbose=options.verbose, log_format=log_format)
    return settings, settings.build(), tls_of(settings)


def tls_of(settings: ReceiverSettings) -> TlsFiles | None:
    """Return the certificate and key that the configuration names; None without TLS.

    Raises:
        ConfigError: A file cannot be read, or the two do not match.
    """
    tls = settings.tls
    return None if tls is None else TlsFiles(tls.certificate, tls.key)


async def _try(receiver: Receiver) -> None:
    await receiver.open()
    await receiver.close()


def _child(options: ServiceOptions, sockets: _Sockets) -> None:
    _run(*_built(options), sockets)


def _run(
    settings: ReceiverSettings, receiver: Receiver, tls: TlsFiles | None, sockets: _Sockets
) -> None:
    # uvloop reads before our TLS handshake can begin: the first bytes would be lost.
    run_service_loop(_serve(settings, receiver, tls, sockets), uvloop=tls is None)


async def _serve(
    settings: ReceiverSettings, receiver: Receiver, tls: TlsFiles | None, sockets: _Sockets
) -> None:
    with until_stopped() as stop:
        async with watching(receiver, settings) as watcher:
            accept_signal(signal.SIGHUP, lambda: _reload(watcher, tls))
            if not await unless_stopped(stop, receiver.start()):
                return
            async with (
                receiver,
                serving_operators(receiver, sockets.ops, receiver.degraded),
                _looked_at(receiver, settings, sockets),
                _server(receiver, settings, sockets.webhook, tls),
            ):
                _say_what_is_served(receiver, settings)
                await serve_until(
                    stop, serving="serves", ending="answers what is in flight, and ends"
                )
                receiver.wind_down()  # now: callbacks drain while the last requests are answered
    _leave_soon()


def _say_what_is_served(receiver: Receiver, settings: ReceiverSettings) -> None:
    """Print the URLs for agents and operators, once for all processes."""
    if not is_first_process():
        return
    for sender in receiver.senders.values():
        url = f"{receiver.url}{sender.path}"
        say(f"receiving from {sender.name} at {url} (listening on {settings.listen})")
    for mailbox in receiver.mailboxes:
        say(f"mailbox {mailbox.name} at {receiver.url}{mailbox.path}")
    if settings.dashboard is not None:
        say(f"dashboard on http://{settings.dashboard.listen}/")


def _leave_soon() -> None:
    """End this process in two seconds, even if threads still run: everything else is closed.

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


def dashboard_access(settings: ReceiverSettings) -> DashboardAccess | None:
    """Return who may access the dashboard; None if it is not configured.

    Raises:
        ConfigError: It needs a token, or Jinja2 is not installed.
    """
    if settings.dashboard is None:
        return None
    with from_extra("dashboard", "[dashboard] needs Jinja2"):
        from pushkit.webui.serving import access_of
    return access_of(settings.dashboard.build())


@contextlib.asynccontextmanager
async def _looked_at(
    receiver: Receiver, settings: ReceiverSettings, sockets: _Sockets
) -> AsyncIterator[None]:
    """Serve the dashboard, if that is configured: in the first process, for all of them."""
    access = dashboard_access(settings)
    if settings.dashboard is None or access is None:
        yield
        return
    from pushkit.webui.serving import audit_to, serving
    from receiver.dashboard.app import dashboard_of
    from receiver.dashboard.memory import RecentEvents, receiving, sending

    if sockets.events_out is not None and not is_first_process():
        receiver.events.add(sending(sockets.events_out))
        yield
        return
    audit_to(settings.dashboard.build().audit_log)
    memory = RecentEvents()
    site = dashboard_of(receiver, access=access, memory=memory)
    async with contextlib.AsyncExitStack() as stack:
        if sockets.events_in is not None:
            stack.enter_context(receiving(sockets.events_in, memory.record))
        await stack.enter_async_context(serving(site, sockets.pages))
        yield


@contextlib.asynccontextmanager
async def _server(
    receiver: Receiver,
    settings: ReceiverSettings,
    sockets: Sequence[socket.socket],
    tls: TlsFiles | None,
) -> AsyncIterator[None]:
    """Accept connections; at the end accept no more, and answer the requests in progress."""
    limits = settings.connection_limits
    server = HttpServer(
        receiver.handler.handle,
        limits=replace(limits, max_connections=_with_files(limits.max_connections)),
        is_proxy=receiver.handler.peers.is_proxy,
        max_head_bytes=receiver.handler.limits.max_header_bytes,
        tls=tls.context if tls else None,
        refuse=receiver.handler.refuse,
    )
    try:
        async with accepting(server.protocol_for, sockets):
            yield
    finally:
        await server.drain(settings.stop_timeout.total_seconds())


def _reload(watcher: SettingsWatcher, tls: TlsFiles | None) -> None:
    """Reload the senders, and the certificate."""
    watcher.hang_up()
    if tls is None:
        return
    try:
        tls.reload()
    except ConfigError as exc:
        _log.error("TLS certificate not reloaded, the old one stays in use: %s", exc)
        return
    _log.warning("reloaded the TLS certificate")


def _with_files(connections: int) -> int:
    """Raise the limit of open files to what so many connections need; return how many it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections
    wanted = connections + _OTHER_FILES
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    allowed = min(connections, max(soft - _OTHER_FILES, soft // 2))
    if allowed < connections and is_first_process():
        _log.warning(
            "max_connections is %d, but %d open files are allowed: %d connections at most."
            " Raise the limit (ulimit -n, LimitNOFILE=)",
            connections,
            soft,
            allowed,
        )
    return allowed


# --- reloading the trusted senders, without a restart --------------------------------------------

# On SIGHUP, and when one of their files changes. Wrong settings are logged and change nothing: the
# service continues with the current senders.
_POLL = timedelta(seconds=2)
_MAY_PASS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE}


class SettingsWatcher:
    """Watches a configuration file, and the files of tokens, secrets and keys that it names.

    The receiver was built from these settings; `poll` is how often the files are checked.
    """

    def __init__(
        self, receiver: Receiver, settings: ReceiverSettings, *, poll: timedelta = _POLL
    ) -> None:
        self._receiver = receiver
        self._started_from = settings
        self._poll = poll
        self._hangup = asyncio.Event()
        self._files = _files_of(settings)
        self._seen = self._fingerprints()
        self._refused = ""  # why the last reload failed, if that may pass by itself

    def hang_up(self) -> None:
        """Reload soon, whether a file has changed or not: called on SIGHUP."""
        self._hangup.set()

    async def run(self) -> None:
        """Reload whenever it is due, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll.total_seconds()):
                    await self._hangup.wait()
            await self.run_once()

    async def run_once(self) -> None:
        """Reload if there was a SIGHUP or a file has changed since the last check."""
        is_asked = self._hangup.is_set()
        if not is_asked and self._fingerprints() == self._seen:
            return
        self._hangup.clear()
        try:
            await self.reload()
        except ConfigError as exc:
            if is_asked or str(exc) != self._refused:
                # The message names the line, and never a secret; a traceback might.
                _log.error("the senders trusted before stay in use: %s", exc)
            self._refused = ""
            if _may_pass(exc):
                self._refused, self._seen = str(exc), {}  # it is tried again
        else:
            self._refused = ""

    async def reload(self) -> None:
        """Read the settings again, and trust their senders.

        Raises:
            ConfigError: The settings are wrong; nothing has changed.
        """
        # Before the files are read: a write during the reading counts as another change.
        before = self._seen = self._fingerprints()
        settings = load_settings(self._started_from.path)
        # Including newly named files: one of them may be written after the configuration.
        self._files = _files_of(settings)
        self._seen = {path: before.get(path, at) for path, at in self._fingerprints().items()}
        old, new = self._started_from.document(), settings.document()
        # Before the senders, which may be refused for want of it.
        if waiting := sorted(name for name in new.keys() - {"senders"} if old[name] != new[name]):
            _log.warning("changed, but only a restart applies it: %s", ", ".join(waiting))
        await self._receiver.reload_senders(settings.trusted_senders())
        _log.warning("reloaded; trusting %s", ", ".join(sorted(self._receiver.senders)))

    def _fingerprints(self) -> dict[Path, tuple[int, ...] | None]:
        return {path: fingerprint(path) for path in self._files}


def _may_pass(exc: BaseException | None) -> bool:
    """Return whether a file could not be read for a reason that is not the file's own."""
    while exc is not None and not isinstance(exc, OSError):
        exc = exc.__cause__
    return exc is not None and exc.errno in _MAY_PASS


def _files_of(settings: ReceiverSettings) -> list[Path]:
    """Return the files that define the senders: the configuration, and those that it names."""
    return [settings.path, *(file for sender in settings.senders for file in sender.files)]


@contextlib.asynccontextmanager
async def watching(
    receiver: Receiver, settings: ReceiverSettings, *, poll: timedelta = _POLL
) -> AsyncIterator[SettingsWatcher]:
    """Watch the configuration while a service runs.

    The service handles signals itself: its handler of SIGHUP calls `hang_up`.
    """
    watcher = SettingsWatcher(receiver, settings, poll=poll)
    task = asyncio.create_task(watcher.run(), name="receiver-reload")
    try:
        yield watcher
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
