"""Which parts of an intranet an operator may open, and which stay closed in any case.

`tests/network.py` keeps all of it on loopback: where something was dialled is only written down.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohappyeyeballs import SocketFactoryType
from aiohttp import web

from pushkit import DestinationRules
from pushkit.errors import (
    AddressRefusedError,
    ConfigError,
    DestinationRefusedError,
    TransportError,
    UrlDecision,
)
from pushkit.net import dialling
from pushkit.net.connection import HttpAnswer
from pushkit.net.destination import Decided, DestinationPolicy
from pushkit.net.guard import Guard
from pushkit.net.transport import Transport
from tests.eventually import PATIENT
from tests.internet import Internet
from tests.network import Network
from tests.unit.pushkit.net.conftest import MakeTransport

INTRANET = DestinationRules(
    allow_domains=["corp.example", "svc.internal"], allow_networks=["10.1.0.0/16", "fd12:3456::/32"]
)
EVERYTHING = DestinationRules(
    allow_domains=["internal", "local", "corp", "example", "svc", "test"],
    allow_networks=["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"],
)
HOOKS = "hooks.corp.example"
URL = f"https://{HOOKS}/a"


async def post(transport: Transport) -> HttpAnswer:
    return await transport.post(transport.policy.check(URL), [], b"{}", timeout=PATIENT)


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "https://corp.example/",
        "https://hooks.corp.example/a?b=c",
        "https://a.b.CORP.example.:8443/",
        "https://web.svc.internal/",
        "https://client.example.com/",
    ],
)
def test_names_of_an_intranet_may_be_posted_to_beside_public_ones(url: str) -> None:
    found = DestinationPolicy(rules=INTRANET).check(url)
    assert not found.allowed_by_name


@pytest.mark.parametrize(
    ("url", "decision"),
    [
        pytest.param("https://evilcorp.example/", UrlDecision.SPECIAL_NAME, id="the name's end"),
        pytest.param(
            "https://corp.example.evil.test/", UrlDecision.SPECIAL_NAME, id="its beginning"
        ),
        pytest.param("https://xcorp.example./", UrlDecision.SPECIAL_NAME, id="with a trailing dot"),
        pytest.param("https://internal.corp.test/", UrlDecision.SPECIAL_NAME, id="turned round"),
        pytest.param("https://a.internal/", UrlDecision.SPECIAL_NAME, id="above what is opened"),
        pytest.param("https://metadata.google.internal/", UrlDecision.SPECIAL_NAME, id="beside it"),
        pytest.param("https://localhost/", UrlDecision.SPECIAL_NAME, id="localhost"),
        pytest.param("https://hooks/", UrlDecision.SPECIAL_NAME, id="a single label"),
        pytest.param("http://hooks.corp.example/", UrlDecision.NOT_HTTPS, id="http"),
        pytest.param("https://hooks.corp.example:80/", UrlDecision.PORT, id="another port"),
        pytest.param("https://10.1.0.5/", UrlDecision.LITERAL_ADDRESS, id="an address"),
        pytest.param("https://[fd12:3456::1]/", UrlDecision.LITERAL_ADDRESS, id="an IPv6 address"),
        pytest.param("https://10.1.5/", UrlDecision.LITERAL_ADDRESS, id="a short address"),
        pytest.param("https://-a.corp.example/", UrlDecision.NOT_A_NAME, id="no host name"),
        pytest.param("https://a@corp.example/", UrlDecision.NOT_A_URL, id="a user"),
        pytest.param("https://corp.example\u3002evil/", UrlDecision.NOT_A_URL, id="another dot"),
    ],
)
def test_every_other_rule_holds_beside_them(url: str, decision: UrlDecision) -> None:
    with pytest.raises(DestinationRefusedError) as caught:
        DestinationPolicy(rules=INTRANET).check(url)
    assert caught.value.decision is decision


def test_a_single_label_stays_closed_where_everything_below_it_is_open() -> None:
    policy = DestinationPolicy(rules=EVERYTHING)
    assert policy.check("https://a.corp/")
    with pytest.raises(DestinationRefusedError):
        policy.check("https://corp/")


def test_domains_narrow_down_what_is_opened() -> None:
    rules = DestinationRules(allow_domains=["corp.example"], domains=["*.hooks.corp.example"])
    policy = DestinationPolicy(rules=rules)
    assert policy.check("https://a.hooks.corp.example/")
    for url in ("https://a.corp.example/", "https://client.example.com/"):
        with pytest.raises(DestinationRefusedError) as caught:
            policy.check(url)
        assert caught.value.decision is UrlDecision.OTHER_DOMAIN


# --- addresses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "decision"),
    [
        ("10.0.255.255", UrlDecision.NOT_PUBLIC),
        ("10.1.0.0", UrlDecision.INTRANET),
        ("10.1.255.255", UrlDecision.INTRANET),
        ("10.2.0.0", UrlDecision.NOT_PUBLIC),
        ("fd12:3455:ffff:ffff:ffff:ffff:ffff:ffff", UrlDecision.NOT_PUBLIC),
        ("fd12:3456::", UrlDecision.INTRANET),
        ("fd12:3457::", UrlDecision.NOT_PUBLIC),
        ("93.184.216.34", UrlDecision.PUBLIC),
    ],
)
def test_a_network_is_open_from_its_first_address_to_its_last(
    address: str, decision: UrlDecision
) -> None:
    assert DestinationPolicy(rules=INTRANET).decide_on_address(address) is decision


CLOSED = [
    pytest.param("127.0.0.1", id="loopback"),
    pytest.param("0.0.0.0", id="this machine"),  # noqa: S104
    pytest.param("169.254.169.254", id="metadata"),
    pytest.param("169.254.170.2", id="metadata of a container"),
    pytest.param("168.63.129.16", id="a cloud's wire server"),
    pytest.param("100.100.100.200", id="metadata in carrier-grade NAT"),
    pytest.param("192.0.0.192", id="metadata in protocol assignments"),
    pytest.param("224.0.0.1", id="multicast"),
    pytest.param("255.255.255.255", id="broadcast"),
    pytest.param("::", id="unspecified"),
    pytest.param("::1", id="IPv6 loopback"),
    pytest.param("fe80::1", id="IPv6 link-local"),
    pytest.param("fe80::a9fe:a9fe", id="IPv6 link-local metadata"),
    pytest.param("fd12::1%eth0", id="with a zone"),
    pytest.param("ff02::1", id="IPv6 multicast"),
    pytest.param("fec0::1", id="site-local"),
    pytest.param("fd00:ec2::254", id="Amazon's metadata"),
    pytest.param("fd20:ce::254", id="Google's metadata"),
    pytest.param("fd00:c1::a9fe:a9fe", id="Oracle's metadata"),
    pytest.param("fd00:42::42", id="Scaleway's metadata"),
    pytest.param("::ffff:10.1.0.5", id="mapped"),
    pytest.param("::ffff:0:10.1.0.5", id="translated"),
    pytest.param("::10.1.0.5", id="compatible"),
    pytest.param("64:ff9b::a01:5", id="NAT64"),
    pytest.param("64:ff9b:1::a01:5", id="local NAT64"),
    pytest.param("2002:a01:5::", id="6to4"),
    pytest.param("2001:0:a01:5::", id="Teredo"),
    pytest.param("fd12:3456::5efe:a01:5", id="ISATAP"),
    pytest.param("fd12:3456::200:5efe:a01:5", id="ISATAP, global"),
]


@pytest.mark.parametrize("beside", [(), ("10.1.0.5",)], ids=["alone", "beside a good one"])
@pytest.mark.parametrize("address", CLOSED)
async def test_no_rule_opens_such_an_address(
    network: Network, make_transport: MakeTransport, address: str, beside: tuple[str, ...]
) -> None:
    network.names.says(HOOKS, [*beside, address])
    transport = make_transport(DestinationPolicy(rules=EVERYTHING), resolver=network.names)
    with pytest.raises(AddressRefusedError) as caught:
        await post(transport)
    assert caught.value.decision is UrlDecision.NOT_PUBLIC
    assert (network.names.asked, network.dialled) == ([HOOKS], [])


async def test_an_own_address_stays_closed(network: Network, make_transport: MakeTransport) -> None:
    network.names.says(HOOKS, ["10.1.0.5"])
    transport = make_transport(
        DestinationPolicy(rules=INTRANET),
        resolver=network.names,
        is_own=lambda address: address == "10.1.0.5",
    )
    with pytest.raises(AddressRefusedError) as caught:
        await post(transport)
    assert caught.value.decision is UrlDecision.OWN_ADDRESS
    assert network.dialled == []


@pytest.mark.parametrize(
    ("rules", "decision"),
    [
        (DestinationRules(refused_networks=["10.1.9.0/24"]), UrlDecision.REFUSED_NETWORK),
        (DestinationRules(networks=["8.8.8.0/24"]), UrlDecision.OTHER_NETWORK),
        (DestinationRules(networks=["8.8.8.0/24", "10.1.9.0/24"]), UrlDecision.INTRANET),
    ],
)
def test_networks_narrow_down_what_is_opened(
    rules: DestinationRules, decision: UrlDecision
) -> None:
    opened = DestinationRules(
        allow_networks=["10.1.0.0/16"],
        networks=rules.networks,
        refused_networks=rules.refused_networks,
    )
    assert DestinationPolicy(rules=opened).decide_on_address("10.1.9.1") is decision


async def test_a_webhook_of_the_intranet_is_posted_to_over_verified_tls(
    internet: Internet, make_transport: MakeTransport
) -> None:
    async def accept(_: web.Request) -> web.Response:
        return web.Response(status=202)

    await internet.serve(accept, name=HOOKS, address="10.1.0.5")
    trusting, trusting_nobody = (
        make_transport(
            DestinationPolicy(rules=INTRANET), resolver=internet.network.names, ca_file=authority
        )
        for authority in (internet.ca_file, None)
    )
    assert (await post(trusting)).status == 202
    with pytest.raises(TransportError, match="certificate"):
        await post(trusting_nobody)
    assert internet.network.dialled == [("10.1.0.5", 443)] * 2


@pytest.mark.parametrize("then", ["127.0.0.1", "169.254.169.254", "10.2.0.1", "::ffff:10.1.0.5"])
async def test_a_name_that_resolves_differently_the_second_time_is_refused(
    network: Network, make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    network.names.says(HOOKS, ["10.1.0.5"], [then])
    transport = make_transport(DestinationPolicy(rules=INTRANET), resolver=network.names)
    with pytest.raises(TransportError):
        await post(transport)
    assert network.dialled == [("10.1.0.5", 443)]  # no server listens there
    with pytest.raises(AddressRefusedError):
        await post(transport)

    # The address changes between the check and the socket, too.
    dial = dialling._connect

    async def another(_: object, port: int, factory: SocketFactoryType) -> socket.socket:
        return await dial([then], port, factory)

    monkeypatch.setattr(dialling, "_connect", another)
    network.names.says(HOOKS, ["10.1.0.5"])
    with pytest.raises(AddressRefusedError):
        await post(transport)
    assert network.dialled == [("10.1.0.5", 443)]


async def test_without_a_guard_those_addresses_would_be_dialled(
    network: Network, make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Proves that the tests above would notice.
    monkeypatch.setattr(Guard, "check", lambda *_: None)
    network.names.says(HOOKS, ["169.254.169.254"])
    transport = make_transport(DestinationPolicy(rules=INTRANET), resolver=network.names)
    with pytest.raises(TransportError):
        await post(transport)
    assert network.dialled == [("169.254.169.254", 443)]


# --- what is no rule -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "network",
    [
        *(
            "8.8.8.0/24",
            "0.0.0.0/0",
            "10.0.0.0/7",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "100.64.0.0/10",
        ),
        *("172.0.0.0/8", "192.168.0.0/15", "::/0", "fc00::/6", "fe80::/10", "2000::/3", "::1/128"),
        *("::ffff:10.0.0.0/104", "10.1.0.1/16", "corp.example", "", "10.1.0.0/33"),
    ],
)
def test_only_private_networks_can_be_opened(network: str) -> None:
    with pytest.raises(ConfigError, match="allow_networks"):
        DestinationPolicy(rules=DestinationRules(allow_networks=[network]))


@pytest.mark.parametrize(
    "domain",
    [
        *("", ".", "*", "*.corp.example", "https://corp.example", "corp.example:443", "a..b"),
        *("localhost", "a.localhost", "LOCALHOST.", "10.1.0.5", "0x7f", "[fd12::1]", "a_b.c d"),
    ],
)
def test_only_names_can_be_opened_and_never_localhost(domain: str) -> None:
    with pytest.raises(ConfigError, match="allow_domains"):
        DestinationPolicy(rules=DestinationRules(allow_domains=[domain]))


@pytest.mark.parametrize(
    "domain", ["", "*", "localhost", "*.local", "10.1.0.5", "https://a.example"]
)
def test_what_is_opened_is_narrowed_down_to_public_names_alone(domain: str) -> None:
    with pytest.raises(ConfigError, match="domains"):
        DestinationPolicy(rules=DestinationRules(domains=[domain]))


def test_the_page_lists_each_decision_by_its_value() -> None:
    page = (Path(__file__).parents[4] / "docs" / "destinations.md").read_text()
    listed = {name for line in page.splitlines() for name in re.findall(r"`(\w+)`", line)}

    assert {each.value for each in UrlDecision} <= listed


# --- who hears of it -----------------------------------------------------------------------------


async def test_every_decision_is_reported_with_its_subject(
    network: Network, make_transport: MakeTransport
) -> None:
    heard: list[Decided] = []
    rules = DestinationRules(
        allow_domains=["corp.example"], allow_networks=["10.1.0.0/16"], on_decision=heard.append
    )
    network.names.says(HOOKS, ["10.1.0.5"], ["10.2.0.1"])
    transport = make_transport(DestinationPolicy(["[::1]:*"], rules), resolver=network.names)
    for url in ("not a URL", "https://evilcorp.example/"):
        with pytest.raises(DestinationRefusedError) as caught:
            transport.policy.check(url)
        assert caught.value.decision is heard[-1].decision
    transport.policy.check("http://[::1]:8080/")
    destination = transport.policy.check(URL)
    for _ in range(2):
        with pytest.raises(TransportError):
            await transport.post(destination, [], b"{}", timeout=PATIENT)
    assert heard == [
        Decided(decision=UrlDecision.NOT_A_URL),
        Decided(decision=UrlDecision.SPECIAL_NAME, host="evilcorp.example", port=443),
        Decided(decision=UrlDecision.NAMED, host="::1", port=8080),
        Decided(decision=UrlDecision.INTRANET, host=HOOKS, port=443),
        Decided(decision=UrlDecision.INTRANET, host=HOOKS, port=443, address="10.1.0.5"),
        Decided(decision=UrlDecision.INTRANET, port=443, address="10.1.0.5"),
        Decided(decision=UrlDecision.NOT_PUBLIC, host=HOOKS, port=443, address="10.2.0.1"),
    ]


@pytest.mark.parametrize("error", [ValueError, asyncio.InvalidStateError])
def test_on_decision_cannot_change_the_decision(
    caplog: pytest.LogCaptureFixture, error: Callable[[], Exception]
) -> None:
    def complain(_: Decided) -> None:
        raise error()

    policy = DestinationPolicy(rules=DestinationRules(on_decision=complain))
    assert policy.check("https://client.example.com/")
    with pytest.raises(DestinationRefusedError):
        policy.check("https://localhost/")
    assert caplog.text.count("on_decision failed") == 2


def test_each_refusal_has_a_reason_and_nothing_else_has() -> None:
    allowed = {UrlDecision.PUBLIC, UrlDecision.INTRANET, UrlDecision.NAMED}
    for decision in UrlDecision:
        assert bool(decision.reason) is decision.is_refusal is (decision not in allowed)
