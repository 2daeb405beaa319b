"""`pushkit worker`: processes that do nothing but deliver.

One process per core is plenty; any number of machines may run them against one PostgreSQL database.
A process that dies takes the whole command with it: the others drain, it ends with status 1, and
whatever started it (systemd, Kubernetes) starts it again. What the dead one had in work comes back
with its leases.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from pushkit.cli.destinations import load_destinations
from pushkit.cli.worker_options import WorkerSettings, worker_options
from pushkit.delivery.options import SenderOptions
from pushkit.delivery.sender import PushSender
from pushkit.telemetry.together import counted_together
from pushkit.terminal.listening import listen
from pushkit.terminal.log_output import log_to_stderr
from pushkit.terminal.output import example
from pushkit.terminal.processes import (
    Supervisor,
    place_in_service,
    run_service_loop,
    unless_stopped,
    until_stopped,
)
from pushkit.terminal.systemd import reporting_to_systemd

if TYPE_CHECKING:
    from pushkit.telemetry.tracing import Tracing

# After its drain a process closes its connections; one that still does not end is killed.
_MARGIN = timedelta(seconds=10)


@click.command(
    epilog=example(
        "pushkit worker --database postgresql://pushkit@db/agent --keys keys.json \\",
        "    --issuer https://agent.example.com --processes 4",
    )
)
@worker_options
@click.option("--processes", type=click.IntRange(1, 64), default=1)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Where to answer /metrics, /healthz and /readyz: of all processes, for operators.",
)
def worker(*, settings: WorkerSettings, processes: int, http: str | None) -> None:
    """Deliver what is in the outbox, until SIGTERM or Ctrl-C.

    Then nothing new is begun, running attempts are given their time, and the exit status is 0. It
    is 1 if a process died: the others are stopped likewise.
    """
    sockets = tuple(listen(http, setting="--http")) if http else ()
    # Wrong settings are reported once, before there are processes.
    settings.key_file.ring()
    _sender(settings)
    if processes == 1:
        _serve(settings, sockets)
    else:
        workers = Supervisor(
            _serve,
            [settings, sockets],
            count=processes,
            name="pushkit-worker",
            deadline=settings.drain + _MARGIN,
        )
        with counted_together(processes):
            status = workers.run()
        sys.exit(status)


# --- one process --------------------------------------------------------------------------------


def _serve(settings: WorkerSettings, sockets: Sequence[socket.socket]) -> None:
    log_to_stderr(verbose=settings.verbose, log_format=settings.log_format)
    run_service_loop(_deliver(settings, sockets))


async def _deliver(settings: WorkerSettings, sockets: Sequence[socket.socket]) -> None:
    """Deliver until a signal comes, or the process that started this one is gone."""
    with until_stopped() as stop:
        sender = _sender(settings)
        if not await unless_stopped(stop, sender.start()):
            return
        async with sender, _operated(sender, sockets), reporting_to_systemd():
            click.echo(f"process {os.getpid()} delivers for {settings.issuer}")
            await stop.wait()
            click.echo(f"process {os.getpid()} drains")


@contextlib.asynccontextmanager
async def _operated(sender: PushSender, sockets: Sequence[socket.socket]) -> AsyncIterator[None]:
    """Answer operators, where that is asked for."""
    if not sockets:
        yield
        return
    from pushkit.telemetry.endpoints import Endpoints, serving
    from pushkit.telemetry.metrics import count_in_place

    count_in_place(place_in_service())
    endpoints = Endpoints(metrics=sender.metrics, unready=sender.unready)
    async with serving(endpoints, sockets):
        yield


def _sender(settings: WorkerSettings) -> PushSender:
    """Return a sender that is not open yet. Raises ConfigError: a setting is wrong."""
    file = settings.destinations
    return PushSender(
        issuer=settings.issuer,
        keys=settings.key_file.path,
        database=settings.database,
        allow=settings.allow,
        options=SenderOptions(
            concurrency=settings.concurrency,
            concurrency_per_host=settings.concurrency_per_host,
            drain=settings.drain,
            signing=settings.signing.read(),
            alerts=settings.alerts,
            **settings.delivering.options(),
            **({} if file is None else load_destinations(file).options),
        ),
        passphrase=settings.key_file.passphrase,
        tracing=_tracing() if settings.tracing else None,
    )


def _tracing() -> Tracing:
    from pushkit.telemetry.tracing import Tracing

    return Tracing()
