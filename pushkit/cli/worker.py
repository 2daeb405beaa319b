"""`pushkit worker`: runs processes that only deliver.

One process per core is enough; any number of machines may run workers on one PostgreSQL database.
If a process dies, the others drain, the command ends with status 1, and its service manager
(systemd, Kubernetes) restarts it. Deliveries that the dead process had in flight are claimed again
when their leases expire.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

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

# The time after its drain in which a process closes its connections; then it is killed.
_MARGIN = timedelta(seconds=10)


@click.command(
    epilog=example(
        "pushkit worker --database postgresql://pushkit@db/agent --keys keys.json \\",
        "    --issuer https://agent.example.com --processes 4",
    )
)
@worker_options
@click.option(
    "--processes", type=click.IntRange(1, 64), default=1, help="How many processes to run."
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Serve /metrics, /healthz and /readyz of all processes there, for operators.",
)
def worker(*, settings: WorkerSettings, processes: int, http: str | None) -> None:
    """Deliver from the outbox until SIGTERM or Ctrl-C.

    Upon a signal, no attempt begins any more, those in progress get --drain seconds, and the exit
    status is 0. If a process dies, the others stop in the same way, and the exit status is 1.
    """
    sockets = tuple(listen(http, setting="--http")) if http else ()
    # Wrong settings are reported once, before the processes start.
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
    """Deliver until a signal comes, or the supervisor ends."""
    with until_stopped() as stop:
        sender = _sender(settings)
        if not await unless_stopped(stop, sender.start()):
            return
        async with sender, _serving(sender, sockets), reporting_to_systemd():
            click.echo(f"process {os.getpid()} delivers for {settings.issuer}")
            await stop.wait()
            click.echo(f"process {os.getpid()} drains")


@contextlib.asynccontextmanager
async def _serving(sender: PushSender, sockets: Sequence[socket.socket]) -> AsyncIterator[None]:
    """Serve metrics and health, if there are sockets."""
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
    """Return a sender, not yet open. Raises ConfigError: a setting is wrong."""
    tracing = None
    if settings.tracing:
        from pushkit.telemetry.tracing import Tracing

        tracing = Tracing()
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
            signing=settings.signing,
            alerts=settings.alerts,
            **settings.delivering.options(),
            **({} if file is None else load_destinations(file).options),
        ),
        passphrase=settings.key_file.passphrase,
        tracing=tracing,
    )
