"""`pushkit dashboard`: the outbox in a browser, on a listener of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from pushkit.cli.keys import read_passphrase
from pushkit.cli.outbox import checked_database, database_option
from pushkit.delivery.admin import OutboxAdmin, open_outbox
from pushkit.delivery.subscription_admin import SubscriptionAdmin
from pushkit.errors import ConfigError
from pushkit.keys.source import FileKeySource
from pushkit.secrets.sealing import SecretKeys
from pushkit.secrets.vault import Vault
from pushkit.storage import Access, opened
from pushkit.terminal.output import example
from pushkit.terminal.processes import until_stopped

__all__ = ["dashboard"]

_TOKEN_VARIABLE = "PUSHKIT_DASHBOARD_TOKEN"  # noqa: S105 - where it is, not what


@click.command(
    epilog=example(
        "pushkit dashboard --database outbox.db",
        "export PUSHKIT_DASHBOARD_TOKEN=$(openssl rand -hex 20)",
        "pushkit dashboard --database outbox.db --allow-actions",
    )
)
@database_option
@click.option(
    "--listen",
    default="127.0.0.1:8090",
    show_default=True,
    help="Address and port. Beyond loopback a token is needed.",
)
@click.option("--host", "hosts", multiple=True, help="A name that it is served under.")
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"A file with the token, mode 0600.  [env var: {_TOKEN_VARIABLE} holds the token itself]",
)
@click.option("--allow-actions", is_flag=True, help="Let who has the token redrive, cancel, …")
@click.option(
    "--keys",
    "keys_file",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="PUSHKIT_KEYS",
    show_envvar=True,
    help="The key file, to show the states of its keys.",
)
@click.option(
    "--passphrase-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the passphrase of the private keys.",
)
@click.option(
    "--issuer", envvar="PUSHKIT_ISSUER", show_envvar=True, help="`iss`, to show requests whole."
)
@click.option(
    "--audit-log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file that a line is added to for every action.  [default: standard error]",
)
def dashboard(
    *,
    database: str,
    listen: str,
    hosts: tuple[str, ...],
    token_file: Path | None,
    allow_actions: bool,
    keys_file: Path | None,
    passphrase_file: Path | None,
    issuer: str | None,
    audit_log: Path | None,
) -> None:
    """Serve a dashboard of the outbox, until SIGTERM or Ctrl-C.

    Without a token it is for this machine alone, and for reading alone.
    """
    try:
        from pushkit.dashboard.app import dashboard_app
        from pushkit.webui.serving import audit_to, listening_at, serve, service_access
    except ImportError as exc:
        raise ConfigError("the dashboard needs Jinja2: pip install 'pushkit[dashboard]'") from exc
    host, port = listening_at(listen)
    access = service_access(
        host,
        variable=_TOKEN_VARIABLE,
        token_file=token_file,
        allow_actions=allow_actions,
        hosts=hosts,
    )
    audit_to(audit_log)
    location = checked_database(database)
    keys = FileKeySource(keys_file, read_passphrase(passphrase_file)) if keys_file else None

    async def run() -> None:
        vault = Vault(SecretKeys.from_environment())
        how = Access.WRITE if allow_actions else Access.READ
        with until_stopped() as stop:
            async with opened(open_outbox(location), how) as outbox:
                app = dashboard_app(
                    OutboxAdmin(outbox, vault=vault),
                    SubscriptionAdmin(outbox, vault=vault),
                    access=access,
                    keys=keys,
                    issuer=issuer,
                )
                await serve(
                    app,
                    host=host,
                    port=port,
                    started=lambda url: click.echo(f"dashboard on {url}"),
                    stop=stop,
                )

    asyncio.run(run())
