"""The dashboard as a service: a listener of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from pushkit.dashboard.app import dashboard_app
from pushkit.delivery.admin import OutboxAdmin
from pushkit.delivery.subscription_admin import SubscriptionAdmin
from pushkit.errors import ConfigError
from pushkit.keys.source import KeySource
from pushkit.url import host_and_port
from pushkit.webui.access import DashboardAccess

__all__ = ["serve"]


async def serve(
    outbox: OutboxAdmin,
    subscriptions: SubscriptionAdmin,
    *,
    access: DashboardAccess,
    keys: KeySource | None,
    issuer: str | None,
    host: str,
    port: int,
    started: Callable[[str], None],
    stop: asyncio.Event,
) -> None:
    """Serve until `stop` is set.

    Args:
        outbox: The outbox, open.
        subscriptions: Its subscriptions.
        access: Who may look, and act.
        keys: The signing keys, to show their states.
        issuer: `iss`, to show requests whole.
        host: The address to listen at.
        port: The port; 0 for any.
        started: Called with the URL, once it listens.
        stop: Ends it.

    Raises:
        ConfigError: Nobody can listen there.
    """
    app = dashboard_app(outbox, subscriptions, access=access, keys=keys, issuer=issuer)
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
