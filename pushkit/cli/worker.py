"""`pushkit worker`: runs processes that only deliver.

One process per core is enough; any number of machines may run workers on one PostgreSQL database.
If a process dies, the others drain, the command ends with status 1, and its service manager
(systemd, Kubernetes) restarts it. The queues that the dead process had leased are taken over when
their leases end.
"""

from __future__ import annotations

import functools
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from pushkit.alerts import AlertOptions
from pushkit.cli.databases import database_option
from pushkit.cli.destinations import load_destinations
from pushkit.cli.options import KeyFile, key_file_options, signing_options
from pushkit.delivery.options import SenderOptions
from pushkit.delivery.sender import PushSender
from pushkit.options import age_text
from pushkit.outbox.retention import Retention
from pushkit.programs import secret_variable
from pushkit.scheduling import stop_after_attempt, stop_after_delay
from pushkit.scheduling.retry import DEFAULT_SCHEDULE, MAX_AGE, RetryPolicy, wait_schedule
from pushkit.telemetry.endpoints import serving_operators
from pushkit.telemetry.together import counted_together
from pushkit.terminal.command import parse_age
from pushkit.terminal.listening import listen
from pushkit.terminal.options import (
    PATH,
    age_option,
    allow_option,
    choice_option,
    gathered,
    option_of,
    read_by,
    seconds_option,
    variable_option,
)
from pushkit.terminal.output import LogFormat, example, log_to_stderr
from pushkit.terminal.processes import (
    Supervisor,
    run_service_loop,
    serve_until,
    unless_stopped,
    until_stopped,
)

# The time after its drain in which a process closes its connections; then it is killed.
_MARGIN = timedelta(seconds=10)
_ALERT_TOKEN_VARIABLE = "PUSHKIT_ALERT_TOKEN"  # noqa: S105  # the name of the variable


# --- options -------------------------------------------------------------------------------------


def _waits(value: str) -> tuple[timedelta, ...]:
    return tuple(parse_age(each.strip()) for each in value.split(","))


def _alerts(
    *,
    alert_log: bool,
    alert_command: str | None,
    alert_webhook: str | None,
    alert_token: str | None,
    alert_every: timedelta,
) -> AlertOptions | None:
    """Return where alerts go; None without any of the options."""
    try:
        command = tuple(shlex.split(alert_command or ""))
    except ValueError as exc:
        raise click.UsageError("--alert-command: a quote is not closed") from exc
    if alert_command is not None and not command:
        raise click.UsageError("--alert-command: found an empty text, expected a program")
    if not (alert_log or command or alert_webhook):
        return None
    return AlertOptions(
        log=alert_log,
        command=command,
        webhook=alert_webhook,
        webhook_token=alert_token or secret_variable(_ALERT_TOKEN_VARIABLE),
        every=alert_every,
    )


_alert_options = gathered(
    "alerts",
    _alerts,
    alert_log=option_of(AlertOptions, "log", "--alert-log"),
    alert_command=click.option(
        "--alert-command",
        metavar="COMMAND",
        help="Run this for each alert, with the alert as JSON on standard input; without a shell.",
    ),
    alert_webhook=variable_option(
        "--alert-webhook",
        metavar="URL",
        envvar="PUSHKIT_ALERT_WEBHOOK",
        help="Send alerts to this webhook, signed, through the same outbox.",
    ),
    alert_token=option_of(
        AlertOptions, "webhook_token", "--alert-token", envvar=_ALERT_TOKEN_VARIABLE
    ),
    alert_every=option_of(AlertOptions, "every", "--alert-every"),
)


_own = functools.partial(option_of, SenderOptions)
# The arguments of `sender_of`.
worker_settings = gathered(
    "settings",
    dict,
    database=database_option,
    issuer=variable_option(
        "--issuer",
        required=True,
        envvar="PUSHKIT_ISSUER",
        help="The `iss`, which names the sender.",
    ),
    key_file=key_file_options(),
    signing=signing_options,
    allow=allow_option,
    destinations=variable_option(
        "--destinations",
        type=PATH,
        envvar="PUSHKIT_DESTINATIONS",
        help="A TOML file with destination rules, proxy and credentials.",
    ),
    concurrency=_own("concurrency", type=click.IntRange(1, 4096)),
    concurrency_per_host=_own(
        "concurrency_per_host", "--per-host", "concurrency_per_host", type=click.IntRange(1, 4096)
    ),
    drain=seconds_option(
        "--drain",
        within=(0, 600),
        default=SenderOptions().drain // timedelta(seconds=1),
        help="Seconds that attempts in progress get at the end.",
    ),
    timeout=_own("timeout"),
    waits=click.option(
        "--waits",
        metavar="AGE,AGE,…",
        default=",".join(age_text(timedelta(seconds=wait)) for wait in DEFAULT_SCHEDULE),
        callback=read_by(_waits),
        help="The waits after the 1st, 2nd, … failed attempt; one more failure is final.",
    ),
    max_age=age_option(
        "--max-age",
        metavar="AGE",
        default=age_text(MAX_AGE),
        help="Give up deliveries that are older than this.",
    ),
    disable_after=_own("disable_after"),
    keep_delivered=option_of(Retention, "delivered", "--keep-delivered"),
    keep_dead=option_of(Retention, "dead", "--keep-dead"),
    keep_answers=_own("keep_answers"),
    go_token_spelling=_own("go_token_spelling"),
    alerts=_alert_options,
    tracing=click.option(
        "--tracing", is_flag=True, help="Make OpenTelemetry spans, see opentelemetry-instrument."
    ),
)


# The arguments of `log_to_stderr`.
log_options = gathered(
    "logs",
    dict,
    verbose=click.option("--verbose", is_flag=True, help="Log every attempt."),
    log_format=choice_option(
        "--log-format",
        of=LogFormat,
        default=LogFormat.TEXT.value,
        envvar="PUSHKIT_LOG_FORMAT",
        show_envvar=True,
        help="Log lines for people, or JSON objects.",
    ),
)


@click.command(
    epilog=example(
        "pushkit worker --database postgresql://pushkit@db/agent --keys keys.json \\",
        "    --issuer https://agent.example.com --processes 4",
    )
)
@worker_settings
@log_options
@click.option(
    "--processes", type=click.IntRange(1, 64), default=1, help="How many processes to run."
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Serve /metrics, /healthz and /readyz of all processes there, for operators.",
)
def worker(
    *,
    settings: Mapping[str, Any],
    logs: Mapping[str, Any],
    processes: int,
    http: str | None,
) -> None:
    """Deliver from the outbox until SIGTERM or Ctrl-C.

    Upon a signal, no attempt begins any more, those in progress get --drain seconds, and the exit
    status is 0. If a process dies, the others stop in the same way, and the exit status is 1.
    """
    sockets = tuple(listen(http, setting="--http")) if http else ()
    # Wrong settings are reported once, before the processes start.
    settings["key_file"].ring()
    sender_of(**settings)
    if processes == 1:
        _serve(settings, logs, sockets)
    else:
        workers = Supervisor(
            target=_serve,
            arguments=[settings, logs, sockets],
            count=processes,
            name="pushkit-worker",
            deadline=settings["drain"] + _MARGIN,
        )
        with counted_together():
            status = workers.run()
        sys.exit(status)


# --- one process --------------------------------------------------------------------------------


def _serve(
    settings: Mapping[str, Any],
    logs: Mapping[str, Any],
    sockets: Sequence[socket.socket],
) -> None:
    log_to_stderr(**logs)
    run_service_loop(_deliver(settings, sockets))


async def _deliver(settings: Mapping[str, Any], sockets: Sequence[socket.socket]) -> None:
    """Deliver until a signal comes, or the supervisor ends."""
    with until_stopped() as stop:
        sender = sender_of(**settings)
        if not await unless_stopped(stop, sender.start()):
            return
        async with sender, serving_operators(sender, sockets):
            await serve_until(stop, serving=f"delivers for {settings['issuer']}")


def sender_of(
    *,
    database: str,
    issuer: str,
    key_file: KeyFile,
    allow: tuple[str, ...],
    destinations: Path | None,
    waits: tuple[timedelta, ...],
    max_age: timedelta,
    keep_delivered: timedelta | None,
    keep_dead: timedelta | None,
    tracing: bool,
    **options: Any,  # of `SenderOptions`, by its names
) -> PushSender:
    """Return a sender, not yet open. Raises PushkitError: a setting or the key file is wrong."""
    tracer = None
    if tracing:
        from pushkit.telemetry.tracing import Tracing

        tracer = Tracing()
    retry = RetryPolicy(
        wait=wait_schedule([wait.total_seconds() for wait in waits]),
        stop=stop_after_attempt(len(waits) + 1) | stop_after_delay(max_age.total_seconds()),
    )
    retain = Retention(delivered=keep_delivered, dead=keep_dead)
    if destinations is not None:
        options |= load_destinations(destinations)
    return PushSender(
        issuer=issuer,
        keys=key_file.path,
        database=database,
        allow=allow,
        options=SenderOptions(retry=retry, retain=retain, **options),
        passphrase=key_file.passphrase,
        tracing=tracer,
    )
