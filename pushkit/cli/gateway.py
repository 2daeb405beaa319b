"""`pushkit gateway`: durable, signed push notifications for an agent that has none."""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import click

from pushkit.cli.worker import log_options, sender_of, worker_settings
from pushkit.gateway.options import GatewayOptions
from pushkit.gateway.service import Service
from pushkit.keys.files import FileKeySource
from pushkit.net.tls import ClientCertificate
from pushkit.programs import secret_variable
from pushkit.telemetry.endpoints import serving_operators
from pushkit.terminal.listening import accepting, listen
from pushkit.terminal.options import FILE, gathered, option_of
from pushkit.terminal.output import example, log_to_stderr
from pushkit.terminal.processes import (
    run_service_loop,
    serve_until,
    unless_stopped,
    until_stopped,
)


def _options(
    *,
    upstream_authorization_env: str | None,
    upstream_certificate: Any,
    upstream_key: Any,
    upstream_timeout: timedelta,
    **options: Any,  # of `GatewayOptions`, by its names
) -> GatewayOptions:
    authorization = None
    if upstream_authorization_env is not None:
        authorization = secret_variable(upstream_authorization_env)
        if not authorization:
            raise click.UsageError(
                f"--upstream-authorization-env: the variable {upstream_authorization_env} is not"
                " set, expected the value of `Authorization` for the agent"
            )
    certificate = None
    if upstream_certificate is not None:
        certificate = ClientCertificate(certificate=upstream_certificate, key=upstream_key)
    elif upstream_key is not None:
        raise click.UsageError("--upstream-key: expected --upstream-certificate with it")
    return GatewayOptions(
        upstream_authorization=authorization,
        upstream_certificate=certificate,
        timeout=upstream_timeout,
        **options,
    )


_own = functools.partial(option_of, GatewayOptions)
_gateway_options = gathered(
    "options",
    _options,
    public_url=_own("public_url", metavar="URL", envvar="PUSHKIT_PUBLIC_URL"),
    identity_jwks=_own("identity_jwks", metavar="URL"),
    identity_claim=_own("identity_claim", metavar="NAME"),
    identity_issuer=_own("identity_issuer", metavar="ISS"),
    identity_audience=_own("identity_audience", metavar="AUD"),
    identity_header=_own("identity_header", metavar="NAME"),
    trusted_proxies=_own("trusted_proxies", metavar="NETWORK"),
    shared_configs=_own("shared_configs"),
    trust=_own("trust", metavar="FILE"),
    credential_headers=_own("credential_headers", metavar="NAME"),
    upstream_authorization_env=click.option(
        "--upstream-authorization-env",
        metavar="VARIABLE",
        help="The variable with the `Authorization` with which the gateway itself asks the agent.",
    ),
    upstream_ca_file=_own("upstream_ca_file", metavar="FILE"),
    upstream_certificate=click.option(
        "--upstream-certificate", type=FILE, help="The client certificate towards the agent."
    ),
    upstream_key=click.option("--upstream-key", type=FILE, help="Its private key."),
    upstream_timeout=_own("timeout", "--upstream-timeout"),
    max_body_bytes=_own("max_body_bytes"),
    max_requests=_own("max_requests"),
    max_requests_per_caller=_own("max_requests_per_caller"),
    max_watches=_own("max_watches"),
    watch_for=_own("watch_for"),
)


@click.command(
    epilog=example(
        "pushkit gateway --upstream http://127.0.0.1:8000 --listen 127.0.0.1:8080 \\",
        "    --issuer http://127.0.0.1:8080 --keys keys.json --database outbox.db --shared-configs",
    )
)
@click.option("--upstream", required=True, metavar="URL", help="The base URL of the agent.")
@click.option(
    "--listen", "address", default="127.0.0.1:8080", metavar="HOST:PORT", help="Serve there."
)
@_gateway_options
@worker_settings
@log_options
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Serve /metrics, /healthz and /readyz there, for operators.",
)
def gateway(
    *,
    upstream: str,
    address: str,
    options: GatewayOptions,
    settings: Mapping[str, Any],
    logs: Mapping[str, Any],
    http: str | None,
) -> None:
    """Give an agent durable, signed push notifications.

    Until SIGTERM, all requests are passed on to the agent behind --upstream, except for push
    configs, which the gateway answers itself, and messages that come with one: their tasks are
    watched, and each update is signed and delivered. Who may see a task, by the agent's own answer,
    may set its push configs.
    """
    serving = listen(address, setting="--listen")
    operators = listen(http, setting="--http") if http else []
    with contextlib.ExitStack() as listeners:
        for listener in (*serving, *operators):
            listeners.enter_context(listener)
        settings["key_file"].ring()
        log_to_stderr(**logs)
        run_service_loop(_serve(upstream, options, settings, serving, operators))


async def _serve(
    upstream: str,
    options: GatewayOptions,
    settings: Mapping[str, Any],
    sockets: Sequence[socket.socket],
    operators: Sequence[socket.socket],
) -> None:
    """Serve until a signal comes."""
    with until_stopped() as stop:
        sender, keys = sender_of(**settings), settings["key_file"]
        service = Service(
            upstream,
            sender=sender,
            # Each card that is asked for needs it: as with deliveries, read after a change alone.
            ring=FileKeySource(keys.path, keys.passphrase).ring,
            public_url=options.public_url or settings["issuer"],
            options=options,
        )
        if not await unless_stopped(stop, sender.start()):
            return
        async with sender, serving_operators(sender, operators, service.degraded):
            if not await unless_stopped(stop, service.open()):
                return
            async with service.serving() as server:
                names = [listener.getsockname() for listener in sockets]
                where = ", ".join(f"{name[0]}:{name[1]}" for name in names)
                async with accepting(lambda _: server(), sockets):
                    await serve_until(stop, serving=f"serves {upstream} at {where}")
