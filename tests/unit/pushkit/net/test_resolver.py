"""Lookups by a real name server on loopback, which never answers for some names."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import cast

import aiodns
import pytest

from pushkit.errors import TransportError
from pushkit.net import guard
from pushkit.net.guard import NameLookup, SystemResolver
from tests.eventually import DEADLINE
from tests.unit.pushkit.net.conftest import MakeTransport

SILENT = "silent"
NAMES = 100  # far more than a process has threads for lookups


class NameServer(asyncio.DatagramProtocol):
    """Answers every A question with one public address, but for names below `silent`."""

    def __init__(self) -> None:
        self.asked: set[str] = set()
        self.all_asked = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        labels, at = [], 12
        while length := data[at]:
            labels.append(data[at + 1 : at + 1 + length].decode())
            at += 1 + length
        question, (kind,) = data[12 : at + 5], struct.unpack_from("!H", data, at + 1)
        self.asked.add(".".join(labels))
        if SILENT in labels:
            if len(self.asked) == NAMES:
                self.all_asked.set()
            return
        found = kind == 1
        head = data[:2] + struct.pack("!HHHHH", 0x8180, 1, int(found), 0, 0)
        answer = struct.pack("!HHHIH4B", 0xC00C, 1, 1, 60, 4, 93, 184, 216, 34) if found else b""
        self.transport.sendto(head + question + answer, addr)


@pytest.fixture
async def name_server() -> AsyncIterator[tuple[NameServer, int]]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    yield server, transport.get_extra_info("sockname")[1]
    transport.close()


async def test_names_whose_servers_are_silent_keep_no_other_name_waiting(
    name_server: tuple[NameServer, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "_LOOKUP_TIMEOUT", timedelta(seconds=60))
    server, port = name_server
    asked = SystemResolver()
    asked._resolver = aiodns.DNSResolver(["127.0.0.1"], udp_port=port, timeout=60, tries=1)
    names = NameLookup(asked)
    threads = set(threading.enumerate())
    async with asyncio.timeout(DEADLINE):
        silent = [
            asyncio.create_task(names.addresses(f"{number}.{SILENT}.example.com"))
            for number in range(NAMES)
        ]
        await server.all_asked.wait()
        found = await names.addresses("client.example.com")
    assert found == ["93.184.216.34"]
    assert not any(task.done() for task in silent)
    assert set(threading.enumerate()) - threads == set()
    for task in silent:
        task.cancel()
    await asyncio.gather(*silent, return_exceptions=True)
    await asked.close()


async def test_a_lookup_has_its_own_deadline(
    make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "_LOOKUP_TIMEOUT", timedelta(milliseconds=20))
    transport = make_transport(resolver=Silent())
    with pytest.raises(TransportError, match="could not be looked up in time"):
        await transport.get(
            transport.policy.check("https://client.example.com/"), [], timeout=timedelta(seconds=20)
        )


@pytest.mark.parametrize("proxy", [None, "http://10.0.0.5:3128"])
async def test_the_one_deadline_is_over_the_lookup_too(
    make_transport: MakeTransport, proxy: str | None
) -> None:
    transport = make_transport(resolver=Silent(), proxy=proxy)
    with pytest.raises(TransportError, match=r"no complete answer from .* within 0.05 s") as caught:
        await transport.post(
            transport.policy.check("https://client.example.com/"),
            [],
            b"",
            timeout=timedelta(milliseconds=50),
        )
    assert caught.value.timing is not None
    assert caught.value.timing.resolve is not None


async def test_by_default_the_systems_name_servers_are_asked_without_threads() -> None:
    names = NameLookup(None)
    assert isinstance(names._resolver, SystemResolver)
    await names.close()
    await names.close()


class Silent:
    """Never answers."""

    async def resolve(self, host: str) -> list[str]:
        del host
        await asyncio.Event().wait()
        raise AssertionError
