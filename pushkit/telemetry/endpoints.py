"""Serves `/metrics`, `/healthz` and `/readyz` to operators.

The answers give reasons for each fault, so they are served on a listener that is not public.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from pushkit.logs import RepeatedLog, printable
from pushkit.telemetry.together import count_in_place, place_in_service
from pushkit.terminal.listening import accepting_few
from pushkit.webhook import DocumentResponse

if TYPE_CHECKING:
    from aiohttp import web

    from pushkit.telemetry.metrics import Metrics

_log = logging.getLogger("pushkit.telemetry")

_READS: Final = ("GET", "HEAD")


class HasMetrics(Protocol):
    """A `PushSender`, or a `Receiver`."""

    @property
    def metrics(self) -> Metrics:
        """Its metrics."""


class HasHealth(Protocol):
    """A `PushSender`, a `Receiver`, or an `A2AIntegration`."""

    async def unready(self) -> dict[str, str]:
        """Return what stops all service, by part."""


class Operated(HasMetrics, HasHealth, Protocol):
    """A `PushSender`, or a `Receiver`."""


def readiness(
    unready: Mapping[str, str], degraded: Mapping[str, str] = MappingProxyType({})
) -> DocumentResponse:
    """Return the answer to `/readyz`: 503 with any fault, by part, that stops all service."""
    lines = ["not ready" if unready else "ready"]
    lines += [*unready.values(), *(f"degraded: {each}" for each in degraded.values())]
    text = "".join(f"{' '.join(line.split())}\n" for line in lines)
    return _text(503 if unready else 200, text)


@contextlib.asynccontextmanager
async def serving_operators(
    of: Operated,
    sockets: Sequence[socket.socket],
    # Returns the faults, by part, that affect only some senders or destinations.
    degraded: Callable[[], Mapping[str, str]] = dict,
) -> AsyncIterator[None]:
    """Serve within this context, if there are sockets."""
    if not sockets:
        yield
        return
    import prometheus_client
    from aiohttp import web

    count_in_place(place_in_service())
    metrics, faults = of.metrics, RepeatedLog(_log)

    async def answer(method: str, path: str) -> DocumentResponse:
        if path not in {"/metrics", "/healthz", "/readyz"}:
            return _text(404, "expected /metrics, /healthz or /readyz\n")
        if method not in _READS:
            return _text(405, "expected GET\n", {"Allow": ", ".join(_READS)})
        if path == "/metrics":
            return await metrics.page()
        if path == "/healthz":
            return _text(200, "alive\n")
        return readiness(await of.unready(), degraded())

    async def handle(request: web.BaseRequest) -> web.Response:
        try:
            found = await answer(request.method, request.path)
        except Exception as exc:  # noqa: BLE001  # the top of a request
            path = printable(request.path)
            faults.log(type(exc).__name__, logging.ERROR, "%s failed", path, exc_info=exc)
            found = _text(500, "internal error: see the log\n")
        headers = {**found.headers, "Server": "pushkit"}
        return web.Response(status=found.status, body=found.body, headers=headers)

    # `_created` series would double the page; the setting is global, and this is our process.
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    server = web.Server(handle, access_log=None)
    try:
        async with accepting_few(server, sockets):
            yield
    finally:
        await server.shutdown(timeout=1.0)


def _text(
    status: int, text: str, headers: Mapping[str, str] = MappingProxyType({})
) -> DocumentResponse:
    fields = {"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store", **headers}
    # A path of the file system may contain surrogates, which UTF-8 cannot encode.
    body = text.encode("utf-8", "backslashreplace")
    return DocumentResponse(status=status, headers=fields, body=body)
