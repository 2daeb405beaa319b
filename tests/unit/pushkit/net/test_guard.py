"""No connection to a forbidden address, with all checks in place and with each one removed.

`tests/network.py` keeps all of it on loopback, guard or no guard.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from aiohappyeyeballs import SocketFactoryType
from aiohttp import web
from yarl import URL

from pushkit.errors import DestinationRefusedError, TransportError, UrlDecision
from pushkit.net import addresses, dialling
from pushkit.net.addresses import address_is_own
from pushkit.net.destination import (
    Destination,
    DestinationPolicy,
    DestinationRules,
)
from pushkit.net.guard import Guard, dialling_socket
from pushkit.net.transport import Transport
from pushkit.url import Url
from tests.eventually import DEADLINE, PATIENT
from tests.hostile import PUBLIC, HostileUrl, attackers_dns, hostile_urls
from tests.internet import HOOKS, HOOKS_ADDRESS, Internet
from tests.network import LeftLoopbackError, Network, the_network
from tests.unit.pushkit.net.conftest import MakeTransport

PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


class Relaxed(DestinationPolicy):
    """A policy that allows http and any port, with all other rules."""

    def decide_on_url(self, url: Url) -> UrlDecision:
        return super().decide_on_url(replace(url, scheme="https", port=443))


class Naive(DestinationPolicy):
    """A policy without rules on URLs, parsed as aiohttp does: only addresses are judged."""

    def check(self, text: str) -> Destination:
        try:
            parsed = URL(text)
            scheme, host, port = parsed.scheme, parsed.raw_host, parsed.port
        except ValueError as exc:
            raise DestinationRefusedError("not one", decision=UrlDecision.NOT_A_URL) from exc
        if scheme not in {"http", "https"} or not host or not port:
            raise DestinationRefusedError("not of HTTP", decision=UrlDecision.NOT_A_URL)
        url = Url(scheme=scheme, host=host, port=port, target=parsed.raw_path_qs)
        return Destination(url=url)


class Nothing(Naive):
    """A policy without any rule on addresses, too."""

    def decide_on_address(self, text: str) -> UrlDecision:
        del text
        return UrlDecision.PUBLIC


class Canary:
    """Listens on all loopback addresses, and counts connections."""

    def __init__(self) -> None:
        self.connections = 0
        self.port = 0

    def met(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()


@pytest.fixture
async def canary() -> AsyncIterator[Canary]:
    canary = Canary()
    server = await asyncio.start_server(canary.met, "127.0.0.1", 0)
    canary.port = server.sockets[0].getsockname()[1]
    yield canary
    server.close()


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch, canary: Canary) -> Iterator[Network]:
    """Return a network with the attacker's DNS, and a proxy in the environment."""
    for variable in PROXY_VARIABLES:
        for name in (variable, variable.lower()):
            monkeypatch.setenv(name, f"http://127.0.0.1:{canary.port}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with the_network(monkeypatch) as network:
        attackers_dns(network.names)
        yield network


async def tried(transport: Transport, url: str) -> str:
    """Post to a URL as a sender does; return the result."""
    try:
        destination = transport.policy.check(url)
        async with asyncio.timeout(DEADLINE):
            answer = await transport.post(destination, [], b"{}", timeout=PATIENT)
    except DestinationRefusedError as exc:
        return f"refused: {exc}"
    except TransportError as exc:
        return f"failed: {exc}"
    return f"answered {answer.status}"


LeadsNowhere = Callable[..., Awaitable[list[str]]]


@pytest.fixture
def leads_nowhere(network: Network, canary: Canary, make_transport: MakeTransport) -> LeadsNowhere:
    """Check that no URL makes a socket dial, however often it is tried; return the results."""

    async def check(
        urls: list[str], policy: DestinationPolicy | None = None, **more: Any
    ) -> list[str]:
        transport, outcomes = make_transport(policy, resolver=network.names, **more), []
        for url in urls:
            for _ in range(3):  # a name may have other addresses the second time
                outcomes.append(await tried(transport, url))
                assert network.dialled == [], f"{url}: {outcomes[-1]}"
        assert canary.connections == 0
        return outcomes

    return check


def every(line: HostileUrl) -> bool:
    return bool(line.url)


def but_for_its_port(line: HostileUrl) -> bool:
    return not line.only_its_port_is_wrong


@pytest.mark.parametrize(
    ("policy", "of_list"),
    [
        pytest.param(DestinationPolicy, every, id="every rule"),
        pytest.param(Relaxed, but_for_its_port, id="any scheme and port"),
    ],
)
async def test_no_hostile_url_leads_to_a_connection(
    network: Network,
    canary: Canary,
    leads_nowhere: LeadsNowhere,
    policy: type[DestinationPolicy],
    of_list: Callable[[HostileUrl], bool],
) -> None:
    lines = [line for line in hostile_urls(canary.port) if of_list(line)]
    assert len(lines) >= 70
    await leads_nowhere([line.url for line in lines], policy())
    assert network.names.asked == []  # the URL alone was refused


def looked_up(line: HostileUrl) -> bool:
    # Its second answer is public, and is dialled: another test is about that.
    return but_for_its_port(line) and "rebind" not in line.url


INTRANET = DestinationRules(
    allow_domains=["corp.example"], allow_networks=["10.1.0.0/16", "fd00::/8"]
)


@pytest.mark.parametrize("rules", [DestinationRules(), INTRANET], ids=["", "with an intranet"])
@pytest.mark.parametrize("policy", [Relaxed, Naive])
async def test_the_addresses_alone_are_reason_enough(
    network: Network,
    canary: Canary,
    leads_nowhere: LeadsNowhere,
    policy: type[DestinationPolicy],
    rules: DestinationRules,
) -> None:
    lines = [line for line in hostile_urls(canary.port) if looked_up(line)]
    await leads_nowhere([line.looked_up() for line in lines], policy(rules=rules))
    assert "mixed.attacker.example.com" in network.names.asked


CHECKED = Guard.check


def at_the_socket_alone(
    guard: Guard, address: str, port: int | str, host: str | None = None
) -> None:
    if host is None:
        CHECKED(guard, address, port)


@pytest.mark.parametrize(
    ("removed", "put"),
    [
        pytest.param("check", at_the_socket_alone, id="without the check of a name's answers"),
        pytest.param(
            "open_socket",
            lambda _, address: dialling_socket(address),
            id="without the check at the socket",
        ),
    ],
)
async def test_either_check_of_addresses_keeps_the_other_ones_names(
    canary: Canary,
    leads_nowhere: LeadsNowhere,
    monkeypatch: pytest.MonkeyPatch,
    removed: str,
    put: Callable[..., object],
) -> None:
    monkeypatch.setattr(Guard, removed, put)
    lines = [
        line
        for line in hostile_urls(canary.port)
        # Without the first check, a name's public address may be dialled; never its private one.
        if line.reason.startswith("DNS") and looked_up(line) and "mixed" not in line.reason
    ]
    assert len(lines) >= 7
    await leads_nowhere([line.looked_up() for line in lines], Naive())


async def test_the_socket_has_the_last_word_on_a_name_that_changes_after_its_check(
    network: Network,
    canary: Canary,
    make_transport: MakeTransport,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Rebinding between check and connect: the socket gets another address than was checked.
    dial = dialling._connect

    async def another(_: object, port: int, factory: SocketFactoryType) -> socket.socket:
        return await dial(["127.0.0.1"], port, factory)

    monkeypatch.setattr(dialling, "_connect", another)
    network.names.says("rebind.example.com", [PUBLIC])
    transport = make_transport(Relaxed(), resolver=network.names)
    outcome = await tried(transport, f"http://rebind.example.com:{canary.port}/")
    assert "not public" in outcome
    assert (network.names.asked, network.dialled) == (["rebind.example.com"], [])


@pytest.mark.parametrize(
    "address",
    [
        pytest.param("127.0.0.1", id="loopback"),
        pytest.param("0.0.0.0", id="unspecified"),  # noqa: S104
        pytest.param("10.0.0.1", id="private"),
        pytest.param("169.254.169.254", id="metadata"),
        pytest.param("::1", id="IPv6 loopback"),
        pytest.param("fd00::1", id="ULA"),
        pytest.param("fe80::1", id="link-local"),
        pytest.param("::ffff:127.0.0.1", id="mapped"),
        pytest.param("::ffff:8.8.8.8", id="mapped, public"),
        pytest.param("::127.0.0.1", id="compatible"),
        pytest.param("::ffff:0:127.0.0.1", id="translated"),
        pytest.param("64:ff9b::7f00:1", id="NAT64"),
        pytest.param("64:ff9b:1::7f00:1", id="local NAT64"),
        pytest.param("2002:7f00:1::", id="6to4"),
        pytest.param("2001:0:7f00:1::", id="Teredo"),
        pytest.param("2606:4700::5efe:7f00:1", id="ISATAP"),
        pytest.param("2606:4700::200:5efe:808:808", id="ISATAP, public"),
    ],
)
@pytest.mark.parametrize("beside", [(), (PUBLIC,), ("2606:4700::1111",)])
async def test_a_name_with_such_an_address_is_not_dialled(
    network: Network, leads_nowhere: LeadsNowhere, address: str, beside: tuple[str, ...]
) -> None:
    network.names.says("client.example.com", [*beside, address])
    policy = DestinationPolicy(["127.0.0.1:*", "client.example.com:9999"])  # named, but not so
    outcomes = await leads_nowhere(["https://client.example.com/"], policy)
    assert outcomes
    assert all("not public" in outcome for outcome in outcomes)
    assert network.names.asked == ["client.example.com"] * 3  # each request asks again


async def test_an_address_of_this_machine_is_not_dialled(
    network: Network, leads_nowhere: LeadsNowhere
) -> None:
    network.names.says("client.example.com", [PUBLIC])
    await leads_nowhere(["https://client.example.com/"], is_own=lambda address: address == PUBLIC)


async def test_a_name_with_a_hundred_addresses_is_not_dialled(
    network: Network, leads_nowhere: LeadsNowhere
) -> None:
    network.names.says("client.example.com", [f"8.8.4.{last}" for last in range(100)])
    await leads_nowhere(["https://client.example.com/"])


async def test_a_public_address_is_dialled(network: Network, make_transport: MakeTransport) -> None:
    network.names.says("client.example.com", [PUBLIC])
    transport = make_transport(resolver=network.names)
    assert "failed" in await tried(transport, "https://client.example.com/")
    assert network.dialled == [(PUBLIC, 443)]


# --- connections that stay open, and answers that lead elsewhere ---------------------------------


async def test_a_connection_that_stays_open_goes_where_it_was_checked(
    internet: Internet, canary: Canary, make_transport: MakeTransport
) -> None:
    network, peers = internet.network, []

    async def note(request: web.Request) -> web.Response:
        peers.append(request.get_extra_info("peername"))
        return web.Response(headers={"Connection": "close"} if len(peers) == 2 else {})

    await internet.serve(note)
    network.names.says(HOOKS, [HOOKS_ADDRESS], ["127.0.0.1"])
    network.places["127.0.0.1", 443] = canary.port
    transport = make_transport(resolver=network.names, ca_file=internet.ca_file)
    outcomes = [await tried(transport, f"https://{HOOKS}/") for _ in range(3)]
    # The second request used the first one's connection; the third had to dial, and was refused.
    assert outcomes[:2] == ["answered 200"] * 2
    assert "not public" in outcomes[2]
    assert len(set(peers)) == 1
    assert (network.dialled, canary.connections) == ([(HOOKS_ADDRESS, 443)], 0)


@pytest.mark.parametrize("status", [300, 301, 302, 303, 305, 307, 308, 399])
async def test_an_answer_that_leads_to_loopback_is_not_followed(
    internet: Internet, canary: Canary, make_transport: MakeTransport, status: int
) -> None:
    async def redirect(_: web.Request) -> web.Response:
        place = f"http://127.0.0.1:{canary.port}/"
        return web.Response(
            status=status, headers={"Location": place, "Refresh": f"0; url={place}"}
        )

    await internet.serve(redirect)
    transport = make_transport(
        DestinationPolicy(["127.0.0.1:*"]),  # even where it would be allowed
        resolver=internet.network.names,
        ca_file=internet.ca_file,
    )
    assert await tried(transport, f"https://{HOOKS}/") == f"answered {status}"
    assert canary.connections == 0
    assert internet.network.dialled == [(HOOKS_ADDRESS, 443)]


# --- the harness ---------------------------------------------------------------------------------


async def test_the_harness_fails_when_the_guard_is_removed(
    network: Network, canary: Canary, leads_nowhere: LeadsNowhere, make_transport: MakeTransport
) -> None:
    urls = [line.url for line in hostile_urls(canary.port)]
    with pytest.raises(AssertionError):
        await leads_nowhere(urls, Nothing(), is_own=lambda _: False)

    transport = make_transport(Nothing(), resolver=network.names, is_own=lambda _: False)
    for url in urls:
        await tried(transport, url)
    assert len(network.dialled) > 40
    assert canary.connections > 10


async def test_the_harness_lets_nothing_out_of_loopback(
    network: Network, make_transport: MakeTransport
) -> None:
    transport = make_transport(Nothing(), resolver=network.names, is_own=lambda _: False)
    for url in ("http://169.254.169.254/", "http://example.com/", "http://10.0.0.1/"):
        assert "failed" in await tried(transport, url)
    assert len(network.dialled) == 3
    loop = asyncio.get_running_loop()
    with pytest.raises(LeftLoopbackError):
        await loop.create_connection(asyncio.Protocol, "93.184.216.34", 80)
    with pytest.raises(LeftLoopbackError):
        await loop.getaddrinfo("example.com", 80)


# --- own addresses -------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "0.0.0.0", "", "fe80::1%lo"])  # noqa: S104
def test_an_address_that_can_be_bound_is_this_machines_own(address: str) -> None:
    assert address_is_own(address)


@pytest.mark.parametrize("address", [PUBLIC, "8.8.8.8", "2606:4700::1111"])
def test_an_address_that_cannot_be_bound_is_not(address: str) -> None:
    assert not address_is_own(address)


def test_a_process_that_has_no_socket_left_takes_no_address_for_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addresses._any_can_be_bound.cache_clear()

    def none_left(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as full:
        full.setattr(socket, "socket", none_left)
        with pytest.raises(OSError, match="Too many"):
            address_is_own(PUBLIC)

    assert not address_is_own(PUBLIC)
