"""Ended connections to webhooks leave nothing behind in a sender."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import trustme

from pushkit.errors import TlsError, TransportError
from pushkit.net.connection import Connection, Request
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import ConnectionOptions, Transport
from tests.eventually import eventually


async def _speaks_no_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(100)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


@contextlib.asynccontextmanager
async def _leaving_none(*kinds: type) -> AsyncIterator[None]:
    """Check that no more objects of some kinds are left afterwards, without a collection."""

    def number() -> int:
        return sum(isinstance(each, kinds) for each in gc.get_objects())

    async def none_is_left() -> bool:
        return number() == before

    gc.collect()
    before = number()
    gc.disable()
    try:
        yield
        await eventually(none_is_left)
    finally:
        gc.enable()


async def test_a_handshake_that_failed_leaves_nothing_in_memory() -> None:
    server = await asyncio.start_server(_speaks_no_tls, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    client = Transport(DestinationPolicy.naming(url))
    destination = client.policy.check(url)
    try:
        async with _leaving_none(SSLProtocol, Connection):
            for _ in range(5):
                with pytest.raises(TlsError):
                    await client.post(destination, [], b"{}", timeout=timedelta(seconds=10))
    finally:
        await client.close()
        server.close()


async def _closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"{}")
    writer.close()


async def test_a_request_without_an_answer_leaves_nothing_in_memory() -> None:
    server = await asyncio.start_server(_closes, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    client = Transport(DestinationPolicy.naming(url))
    destination = client.policy.check(url)
    try:
        async with _leaving_none(Request, Connection):
            for _ in range(5):
                with pytest.raises(TransportError):
                    await client.post(destination, [], b"{}", timeout=timedelta(seconds=10))
    finally:
        await client.close()
        server.close()


async def _answers_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"{}")
    writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
    writer.close()


async def test_a_connection_that_ended_leaves_nothing_in_memory(tmp_path: Path) -> None:
    authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server = await asyncio.start_server(_answers_once, "127.0.0.1", 0, ssl=tls)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    options = ConnectionOptions(ca_file=tmp_path / "ca.pem")
    client = Transport(DestinationPolicy.naming(url), options)
    destination = client.policy.check(url)
    try:
        async with _leaving_none(Connection):
            for _ in range(5):
                answer = await client.post(destination, [], b"{}", timeout=timedelta(seconds=10))
                assert answer.status == 204
    finally:
        await client.close()
        server.close()
