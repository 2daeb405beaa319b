"""Servers that webhooks stand on, each as its own project made it, on loopback.

Every one of them answers with the `webhook-id` that it was asked with, in the way that the path
says. They close kept-alive connections soon, and at moments of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

import hypercorn.asyncio
import hypercorn.config
import trustme
import uvicorn
from aiohttp import web

from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import ConnectionOptions, Transport
from tests.eventually import DEADLINE, eventually

__all__ = ["SERVERS", "Certificate", "Serve", "ask_many", "nginx"]

_PATIENT: Final = timedelta(seconds=DEADLINE)
_PATHS: Final = ("/length", "/chunks", "/close", "/nothing", "/unread")


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a server shows, and who vouches for it.

    Attributes:
        chain: A PEM file: the certificate and its key.
        roots: A PEM file for who asks.
    """

    chain: Path
    roots: Path

    @classmethod
    def issued_in(cls, directory: Path) -> Certificate:
        """Return one for the loopback address."""
        authority = trustme.CA()
        made = cls(directory / "server.pem", directory / "roots.pem")
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(made.chain)
        authority.cert_pem.write_to_path(made.roots)
        return made


# Serves while the block runs, over TLS if there is a certificate; yields its base URL.
Serve: TypeAlias = Callable[[Certificate | None], AbstractAsyncContextManager[str]]


async def _app(scope: Any, receive: Any, send: Any) -> None:
    """Answer as an ASGI application."""
    if scope["type"] != "http":
        return
    path = scope["path"]
    said = next(value for name, value in scope["headers"] if name == b"webhook-id")
    while path != "/unread" and (await receive()).get("more_body"):
        pass
    headers = [] if path in {"/chunks", "/nothing"} else [(b"content-length", b"%d" % len(said))]
    if path == "/close":
        headers.append((b"connection", b"close"))
    status = 204 if path == "/nothing" else 200
    await send({"type": "http.response.start", "status": status, "headers": headers})
    pieces = [b""] if path == "/nothing" else [said[:3], said[3:], b""]
    for number, piece in enumerate(pieces, start=1):
        more = number < len(pieces)
        await send({"type": "http.response.body", "body": piece, "more_body": more})


async def _handler(request: web.Request) -> web.StreamResponse:
    """Answer as an application of aiohttp's."""
    said = request.headers["webhook-id"].encode()
    # From here on: at a runner it counts before the first request, too, which may take its time.
    request.protocol._keepalive_timeout = 0.05
    if request.path != "/unread":
        await request.read()
    if request.path == "/nothing":
        return web.Response(status=204)
    if request.path == "/chunks":
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(said[:3])
        await answer.write(said[3:])
        return answer
    found = web.Response(body=said)
    if request.path == "/close":
        found.force_close()
    return found


@contextlib.contextmanager
def _listening() -> Iterator[socket.socket]:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
        sock.listen(128)
        sock.setblocking(False)
        yield sock


def _url(sock: socket.socket, certificate: Certificate | None) -> str:
    return f"{'https' if certificate else 'http'}://127.0.0.1:{sock.getsockname()[1]}"


@asynccontextmanager
async def _aiohttp(certificate: Certificate | None) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path}", _handler)
    context = None
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate.chain)
    runner = web.AppRunner(app, keepalive_timeout=0, access_log=None)
    await runner.setup()
    with _listening() as sock:
        await web.SockSite(runner, sock, ssl_context=context).start()
        yield _url(sock, certificate)
        await runner.cleanup()


def _uvicorn(http: str) -> Serve:
    @asynccontextmanager
    async def serve(certificate: Certificate | None) -> AsyncIterator[str]:
        chain = str(certificate.chain) if certificate else None
        server = uvicorn.Server(
            uvicorn.Config(
                _app,
                http=http,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="critical",
                timeout_keep_alive=0,
                ssl_certfile=chain,
                ssl_keyfile=chain,
            )
        )
        with _listening() as sock:
            running = asyncio.create_task(server.serve([sock]))

            await eventually(lambda: server.started)
            yield _url(sock, certificate)
            server.should_exit = True
            await running

    return serve


@asynccontextmanager
async def _hypercorn(certificate: Certificate | None) -> AsyncIterator[str]:
    config = hypercorn.config.Config()
    config.keep_alive_timeout = 0.05
    config.keep_alive_max_requests = 7
    config.errorlog = None
    if certificate is not None:
        config.certfile = config.keyfile = str(certificate.chain)
    over = asyncio.Event()
    with _listening() as sock:
        config.bind = [f"fd://{os.dup(sock.fileno())}"]  # which it closes
        serving: Awaitable[None] = hypercorn.asyncio.serve(
            _app,
            config,
            shutdown_trigger=over.wait,
        )
        running = asyncio.ensure_future(serving)
        yield _url(sock, certificate)
        over.set()
        await running


SERVERS: Final[dict[str, Serve]] = {
    "aiohttp": _aiohttp,
    "uvicorn, h11": _uvicorn("h11"),
    "uvicorn, httptools": _uvicorn("httptools"),
    "hypercorn": _hypercorn,
}

_NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/errors crit;
events {{ worker_connections 512; }}
http {{
    access_log off; client_body_temp_path {folder}; proxy_temp_path {folder};
    fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
    keepalive_requests 7; keepalive_timeout 1;
    server {{
        listen 127.0.0.1:{port}{ssl};
        {certificates}
        location / {{ return 200 $http_webhook_id; }}
        location /nothing {{ return 204; }}
        location /close {{ keepalive_timeout 0; return 200 $http_webhook_id; }}
        location /chunks {{ error_page 405 =200 /ssi; return 405; }}
        location /ssi {{ root {folder}; ssi on; ssi_types *; }}
    }}
}}
"""


@asynccontextmanager
async def nginx(certificate: Certificate | None) -> AsyncIterator[str]:
    """Serve by nginx, which has to be installed."""
    binary = shutil.which("nginx") or "/usr/sbin/nginx"
    with tempfile.TemporaryDirectory() as folder, _listening() as sock:
        port = sock.getsockname()[1]
        sock.close()
        certificates = ""
        if certificate is not None:
            chain = certificate.chain
            certificates = f"ssl_certificate {chain}; ssl_certificate_key {chain};"
        places = {"folder": folder, "port": port, "ssl": " ssl" if certificate else ""}
        _write(folder, "ssi", '<!--# echo var="http_webhook_id" -->')
        _write(folder, "conf", _NGINX.format(**places, certificates=certificates))
        command: Sequence[str] = (binary, "-p", folder, "-c", f"{folder}/conf")
        process = await asyncio.create_subprocess_exec(*command)

        async def listens() -> bool:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return True
            assert process.returncode is None, "nginx did not start"
            return False

        try:
            await eventually(listens)
            yield f"{'https' if certificate else 'http'}://127.0.0.1:{port}"
        finally:
            process.terminate()
            await process.wait()


def _write(folder: str, name: str, text: str) -> None:
    Path(folder, name).write_text(text)


async def ask_many(
    base: str, certificate: Certificate | None, chance: random.Random, requests: int
) -> None:
    """Post and get over eight connections, and see that each request gets its own answer."""
    client = Transport(
        DestinationPolicy(["127.0.0.1:*"]),
        ConnectionOptions(
            max_connections_per_host=8, ca_file=certificate.roots if certificate else None
        ),
    )
    for first in range(0, requests, 20):
        asked = ((chance.choice(_PATHS), chance.choice((0, 2, 600, 60_000))) for _ in range(20))
        await asyncio.gather(
            *(_ask(client, base, first + n, *each) for n, each in enumerate(asked))
        )
    await client.close()


async def _ask(client: Transport, base: str, number: int, path: str, size: int) -> None:
    said = f"dlv_{number:06}"
    destination, headers = client.policy.check(base + path), [("webhook-id", said)]
    if size:
        answer = await client.post(destination, headers, b"x" * size, timeout=_PATIENT)
    else:
        answer = await client.get(destination, headers, timeout=_PATIENT)
    found = (answer.status, answer.body, answer.complete)
    expected = (204, b"", True) if path == "/nothing" else (200, said.encode(), True)
    assert found == expected, f"{path}: {found}"
