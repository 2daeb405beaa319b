"""A dashboard as a service: its listener, its token, its audit log."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aiohttp import web

from pushkit.errors import ConfigError
from pushkit.keys.private_file import read_private
from pushkit.url import host_and_port
from pushkit.webui.access import DashboardAccess, is_loopback

__all__ = ["audit_to", "listening_at", "serve", "service_access"]

_WRITTEN: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def listening_at(listen: str) -> tuple[str, int]:
    """Return the address and the port that `address:port` means.

    Raises:
        ConfigError: It means none.
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"--listen: found {listen!r}, expected address:port")
    return host.strip("[]"), int(port)


def service_access(
    host: str,
    *,
    variable: str,
    token_file: Path | None,
    allow_actions: bool,
    hosts: tuple[str, ...],
) -> DashboardAccess:
    """Return who may look and act at a dashboard that listens there.

    Args:
        host: Where it listens.
        variable: The environment variable that holds the token.
        token_file: The file that does, if there is one.
        allow_actions: Whether anything may be changed.
        hosts: Names that it is served under.

    Raises:
        ConfigError: No token where one is needed, or a weak one.
        KeyFileError: The file cannot be read, or others may.
    """
    token = os.environ.get(variable) or None
    if token_file is not None:
        made_by = "openssl rand -hex 20 >"
        token = read_private(token_file, made_by=made_by).decode("utf-8", "replace").strip()
    if token is None and (allow_actions or not is_loopback(host)):
        reason = "--allow-actions" if allow_actions else f"beyond loopback ({host})"
        raise ConfigError(f"{reason}: a token is needed: export {variable}=$(openssl rand -hex 20)")
    return DashboardAccess(token=token, allow_actions=allow_actions, hosts=hosts)


def audit_to(file: Path | None) -> None:
    """Write a line for every action to a file; None for standard error."""
    logging.basicConfig(level=logging.WARNING, format=_WRITTEN)
    audit = logging.getLogger("pushkit.dashboard.audit")
    audit.setLevel(logging.INFO)
    if file is not None:
        handler = logging.FileHandler(file, encoding="utf-8")
        handler.setFormatter(logging.Formatter(_WRITTEN))
        audit.addHandler(handler)
        audit.propagate = False


async def serve(
    app: web.Application,
    *,
    host: str,
    port: int,
    started: Callable[[str], None],
    stop: asyncio.Event,
) -> None:
    """Serve until `stop` is set.

    Args:
        app: The dashboard.
        host: The address to listen at.
        port: The port; 0 for any.
        started: Called with the URL, once it listens.
        stop: Ends it.

    Raises:
        ConfigError: Nobody can listen there.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as exc:
            where = host_and_port(host, port)
            raise ConfigError(f"--listen {where}: {exc.strerror or exc}") from exc
        started(f"http://{host_and_port(host, runner.addresses[0][1])}/")
        await stop.wait()
    finally:
        await runner.cleanup()
