"""`receiver dashboard`: the inbox in a browser, on a listener of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from pushkit.errors import ConfigError
from pushkit.storage import Access, is_file, opened
from pushkit.terminal.output import example
from pushkit.terminal.processes import until_stopped
from receiver.admin import InboxAdmin, open_inbox
from receiver.settings import load_settings

__all__ = ["dashboard"]

_TOKEN_VARIABLE = "RECEIVER_DASHBOARD_TOKEN"  # noqa: S105 - where it is, not what


@click.command(
    epilog=example(
        "receiver dashboard --config receiver.toml",
        "export RECEIVER_DASHBOARD_TOKEN=$(openssl rand -hex 20)",
        "receiver dashboard --config receiver.toml --allow-actions",
    )
)
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("receiver.toml"),
    envvar="RECEIVER_CONFIG",
    show_default=True,
    show_envvar=True,
    help="The configuration that names the inbox.",
)
@click.option("--database", help="Instead: the path of a SQLite file, or a PostgreSQL DSN.")
@click.option(
    "--listen",
    default="127.0.0.1:8091",
    show_default=True,
    help="Address and port. Beyond loopback a token is needed.",
)
@click.option("--host", "hosts", multiple=True, help="A name that it is served under.")
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"A file with the token, mode 0600.  [env var: {_TOKEN_VARIABLE} holds the token itself]",
)
@click.option("--allow-actions", is_flag=True, help="Let who has the token redrive.")
@click.option(
    "--audit-log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file that a line is added to for every action.  [default: standard error]",
)
def dashboard(
    *,
    config: Path,
    database: str | None,
    listen: str,
    hosts: tuple[str, ...],
    token_file: Path | None,
    allow_actions: bool,
    audit_log: Path | None,
) -> None:
    """Serve a dashboard of the inbox, until SIGTERM or Ctrl-C.

    Without a token it is for this machine alone, and for reading alone.
    """
    try:
        from pushkit.webui.serving import audit_to, listening_at, serve, service_access
        from receiver.dashboard.app import inbox_dashboard
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
    location = database or load_settings(config).inbox_location(config.parent.resolve())
    # A mistyped path is no empty inbox.
    if is_file(location) and not Path(location).exists():
        raise ConfigError(f"database: there is no file {location}, and it is no PostgreSQL DSN")

    async def run() -> None:
        how = Access.WRITE if allow_actions else Access.READ
        with until_stopped() as stop:
            async with opened(open_inbox(location), how) as inbox:
                await serve(
                    inbox_dashboard(InboxAdmin(inbox), access=access),
                    host=host,
                    port=port,
                    started=lambda url: click.echo(f"dashboard on {url}"),
                    stop=stop,
                )

    asyncio.run(run())
