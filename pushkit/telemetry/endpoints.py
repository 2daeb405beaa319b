"""Serves `/metrics`, `/healthz` and `/readyz` to operators.

The answers give reasons for each fault, so they are served on a listener that is not public.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import prometheus_client
from aiohttp import web

from pushkit.logs import RepeatedLog, printable
from pushkit.telemetry.metrics import Metrics, ScrapeAnswer
from pushkit.telemetry.readiness import readiness
from pushkit.terminal.listening import accepting_few

_log = logging.getLogger("pushkit.telemetry")

_READS: Final = ("GET", "HEAD")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """The answers of the three endpoints."""

    metrics: Metrics
    # Returns the faults, by part, that stop all service: with any, `/readyz` answers 503.
    unready: Callable[[], Awaitable[Mapping[str, str]]]
    # Returns the faults, by part, that affect only some senders or destinations.
    degraded: Callable[[], Mapping[str, str]] = dict

    async def answer(self, method: str, path: str) -> ScrapeAnswer:
        """Answer a request."""
        if path not in {"/metrics", "/healthz", "/readyz"}:
            return ScrapeAnswer(404, b"expected /metrics, /healthz or /readyz\n")
        if method not in _READS:
            return ScrapeAnswer(405, b"expected GET\n")
        if path == "/metrics":
            return await self.metrics.page()
        if path == "/healthz":
            return ScrapeAnswer(200, b"alive\n")
        return ScrapeAnswer(*readiness(await self.unready(), self.degraded()))


@contextlib.asynccontextmanager
async def serving(endpoints: Endpoints, sockets: Sequence[socket.socket]) -> AsyncIterator[None]:
    """Serve on listening sockets within this context."""
    faults = RepeatedLog(_log)

    async def handle(request: web.BaseRequest) -> web.Response:
        try:
            page = await endpoints.answer(request.method, request.path)
        except Exception as exc:  # noqa: BLE001  # the top of a request
            path = printable(request.path)
            faults.log(type(exc).__name__, logging.ERROR, "%s failed", path, exc_info=exc)
            page = ScrapeAnswer(500, b"internal error: see the log\n")
        headers = {"Content-Type": page.content_type, "Server": "pushkit"}
        if page.status == 405:
            headers["Allow"] = ", ".join(_READS)
        return web.Response(status=page.status, body=page.body, headers=headers)

    # `_created` series would double the page; the setting is global, and this is our process.
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    server = web.Server(handle, access_log=None)
    endpoints.metrics.start()
    try:
        async with accepting_few(server, sockets):
            yield
    finally:
        await server.shutdown(timeout=1.0)
