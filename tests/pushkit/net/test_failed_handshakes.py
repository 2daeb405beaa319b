"""What a webhook's failed TLS handshakes leave behind in a sender."""

from __future__ import annotations

import asyncio
import gc
from asyncio.sslproto import SSLProtocol
from datetime import timedelta

import pytest

from pushkit.errors import TlsError
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import Transport
from tests.eventually import eventually


async def _speaks_no_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(100)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


def _handshakes() -> int:
    return sum(isinstance(each, SSLProtocol) for each in gc.get_objects())


async def test_a_handshake_that_failed_leaves_nothing_in_memory() -> None:
    server = await asyncio.start_server(_speaks_no_tls, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    client = Transport(DestinationPolicy.naming(url))
    destination = client.policy.check(url)

    async def none_is_left() -> bool:
        return _handshakes() == before

    gc.collect()
    before = _handshakes()
    gc.disable()
    try:
        for _ in range(5):
            with pytest.raises(TlsError):
                await client.post(destination, [], b"{}", timeout=timedelta(seconds=10))
        await eventually(none_is_left)
    finally:
        gc.enable()
        await client.close()
        server.close()
