"""Ended connections to webhooks leave nothing behind in a sender."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from pushkit.errors import ConnectionFailedError, TlsError, TransportError
from pushkit.net.connection import Connection, HttpRequest
from pushkit.net.destination import DestinationPolicy
from tests.eventually import PATIENT, eventually
from tests.network import Names, Network
from tests.ports import free_port
from tests.unit.pushkit.net.conftest import MakeTransport
from tests.unit.pushkit.net.test_transport import Talk, says, serving


@contextlib.asynccontextmanager
async def _leaving_none(*kinds: type) -> AsyncIterator[None]:
    """Check that no more objects of some kinds are left afterwards, without a collection."""

    def number() -> int:
        # By its type: an object that pretends to be of another class may act when it is asked.
        return sum(issubclass(type(each), kinds) for each in gc.get_objects())

    gc.collect()
    before = number()
    gc.disable()
    try:
        yield
        await eventually(lambda: number() == before)
    finally:
        gc.enable()


async def _speaks_no_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(100)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


async def _closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"{}")
    writer.close()


async def _answers_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"{}")
    writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
    writer.close()


@pytest.mark.parametrize(
    "hosts",
    [
        pytest.param(["127.0.0.1"], id="one address"),
        pytest.param(["127.0.0.1", "127.0.0.2", "::1"], id="several addresses"),
    ],
)
async def test_a_refused_connection_leaves_nothing_in_memory(
    make_transport: MakeTransport, hosts: list[str]
) -> None:
    policy, names = DestinationPolicy(["webhook.example:*"]), Names()
    names.says("webhook.example", hosts)
    client = make_transport(policy, resolver=names)
    url = f"http://webhook.example:{free_port()}/"
    async with _leaving_none(HttpRequest, Connection):
        for _ in range(5):
            with pytest.raises(ConnectionFailedError):
                await client.post(policy.check(url), [], b"{}", timeout=PATIENT)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"no HTTP\r\n\r\n", id="no HTTP"),
        pytest.param(b"HTTP/1.1 403 Forbidden\r\n\r\n", id="forbidden"),
        pytest.param(b"HTTP/1.1 500 No\r\n\r\n", id="not reached"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n", id="closed in the handshake"),
    ],
)
async def test_a_request_that_a_proxy_failed_leaves_nothing_in_memory(
    network: Network, make_transport: MakeTransport, answer: bytes
) -> None:
    network.names.says("client.example.com", ["8.8.8.8"])
    async with serving(says(answer)) as proxy, _leaving_none(HttpRequest, Connection):
        client = make_transport(resolver=network.names, proxy=f"http://127.0.0.1:{proxy.port}")
        hook = client.policy.check("https://client.example.com/")
        for _ in range(5):
            with pytest.raises(TransportError):
                await client.post(hook, [], b"{}", timeout=PATIENT)


@pytest.mark.parametrize(
    ("talk", "over_tls", "outcome", "kinds"),
    [
        pytest.param(
            _speaks_no_tls, False, TlsError, (SSLProtocol, Connection), id="a failed handshake"
        ),
        pytest.param(_closes, False, TransportError, (HttpRequest, Connection), id="no answer"),
        pytest.param(_answers_once, True, 204, (Connection,), id="a connection that ended"),
    ],
)
async def test_what_has_ended_leaves_nothing_in_memory(
    make_transport: MakeTransport,
    tmp_path: Path,
    talk: Talk,
    *,
    over_tls: bool,
    outcome: object,
    kinds: tuple[type, ...],
) -> None:
    authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=tls if over_tls else None)
    scheme = "http" if outcome is TransportError else "https"
    url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    client = make_transport(DestinationPolicy.naming(url), ca_file=tmp_path / "ca.pem")
    async with server, _leaving_none(*kinds):
        for _ in range(5):
            found: object
            try:
                found = (
                    await client.post(client.policy.check(url), [], b"{}", timeout=PATIENT)
                ).status
            except TransportError as exc:
                found = type(exc)
            assert found == outcome
