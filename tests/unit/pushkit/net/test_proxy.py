"""An egress proxy on loopback, and the guard in front of it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trustme
from aiohttp import web

from pushkit.errors import (
    ConfigError,
    DestinationRefusedError,
    EgressProxyError,
    JwksError,
    TransportError,
)
from pushkit.net.connection import HttpAnswer
from pushkit.net.destination import DestinationPolicy, DestinationRules
from pushkit.net.dialling import EgressProxy
from pushkit.net.transport import Transport
from tests.eventually import DEADLINE, PATIENT
from tests.hostile import attackers_dns, hostile_urls
from tests.internet import HOOKS, HOOKS_ADDRESS, Internet, Proxy
from tests.unit.pushkit.net.conftest import MakeTransport
from tests.unit.pushkit.net.test_transport import says, serving

PROXY_URL = "http://proxy.corp.internal:3128"
PROXY_PLACE = ("10.0.0.5", 3128)


async def echo(request: web.Request) -> web.Response:
    tls = request.transport
    assert tls is not None
    said = f"{request.method} {request.raw_path} {await request.text()}"
    return web.Response(text=said, headers={"X-Host": request.headers["Host"]})


@pytest.fixture
async def proxy(internet: Internet) -> Proxy:
    return await internet.proxy()


@pytest.fixture
def through_proxy(internet: Internet, make_transport: MakeTransport) -> MakeTransport:
    """Make transports that go through the proxy."""
    options = {"resolver": internet.network.names, "ca_file": internet.ca_file, "proxy": PROXY_URL}
    return partial(make_transport, **options)


@pytest.fixture
def transport(proxy: Proxy, through_proxy: MakeTransport) -> Transport:
    del proxy
    return through_proxy(DestinationPolicy(["127.0.0.1:*"]))


async def post(transport: Transport, url: str = f"https://{HOOKS}/hook?a=%2F") -> HttpAnswer:
    async with asyncio.timeout(DEADLINE):
        return await transport.post(transport.policy.check(url), [], b"body", timeout=PATIENT)


async def test_the_proxy_is_asked_for_the_address_that_was_checked(
    internet: Internet, transport: Transport, proxy: Proxy
) -> None:
    await internet.serve(echo)
    answer = await post(transport)
    assert (answer.status, answer.body) == (200, b"POST /hook?a=%2F body")
    assert answer.headers.one("X-Host") == HOOKS
    assert answer.timing.address == f"{HOOKS_ADDRESS}:443"
    assert proxy.asked == [f"CONNECT {HOOKS_ADDRESS}:443"]
    assert internet.network.dialled[0] == PROXY_PLACE
    assert internet.network.names.asked == [HOOKS, "proxy.corp.internal"]


async def test_a_document_comes_through_the_proxy(
    internet: Internet, transport: Transport, proxy: Proxy
) -> None:
    await internet.serve(echo)
    for _ in range(2):
        answer = await transport.get_document(
            f"https://{HOOKS}/jwks.json", "a/b", timeout=PATIENT, error=JwksError
        )
        assert (answer.status, answer.body) == (200, b"GET /jwks.json ")
    assert proxy.asked == [f"CONNECT {HOOKS_ADDRESS}:443"]


async def test_the_server_gets_the_name_and_must_prove_it(
    internet: Internet, transport: Transport
) -> None:
    # The proxy was asked for the address, which no certificate names.
    await internet.serve(echo, certificate=internet.authority.issue_cert(HOOKS_ADDRESS))
    with pytest.raises(TransportError, match="Hostname mismatch"):
        await post(transport)


async def test_a_certificate_of_an_unknown_authority_is_refused(
    internet: Internet, transport: Transport
) -> None:
    await internet.serve(echo, certificate=trustme.CA().issue_cert(HOOKS))
    with pytest.raises(TransportError, match="unable to get local issuer"):
        await post(transport)


async def test_two_names_behind_one_address_do_not_share_a_connection(
    internet: Internet, transport: Transport, proxy: Proxy
) -> None:
    port = await internet.serve(
        echo, certificate=internet.authority.issue_cert(HOOKS, "other.example.com")
    )
    internet.network.leads("other.example.com", HOOKS_ADDRESS, 443, to=port)
    for name in (HOOKS, "other.example.com", HOOKS):
        assert (await post(transport, f"https://{name}/")).headers.one("X-Host") == name
    assert len(proxy.asked) == 2


async def test_an_ipv6_address_is_asked_for_in_brackets(
    internet: Internet, transport: Transport, proxy: Proxy
) -> None:
    await internet.serve(echo, address="2606:4700::1111", port=8443)
    answer = await post(transport, f"https://{HOOKS}:8443/")
    assert answer.headers.one("X-Host") == f"{HOOKS}:8443"
    assert answer.timing.address == "[2606:4700::1111]:8443"
    assert proxy.asked == ["CONNECT [2606:4700::1111]:8443"]


async def test_an_address_that_the_proxy_cannot_reach_leaves_the_others(
    internet: Internet, transport: Transport, proxy: Proxy
) -> None:
    await internet.serve(echo)
    internet.network.names.says(HOOKS, ["8.8.4.4", HOOKS_ADDRESS])
    assert (await post(transport)).status == 200
    assert proxy.asked == ["CONNECT 8.8.4.4:443", f"CONNECT {HOOKS_ADDRESS}:443"]


async def test_an_address_that_swallows_everything_leaves_the_others(
    internet: Internet, transport: Transport, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pushkit.net.dialling._ADDRESS_REACHED_SECONDS", 0)
    await internet.serve(echo)
    proxy.silent.add("8.8.4.4")
    internet.network.names.says(HOOKS, ["8.8.4.4", HOOKS_ADDRESS])
    assert (await post(transport)).status == 200
    assert proxy.asked[-1] == f"CONNECT {HOOKS_ADDRESS}:443"


INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"


async def test_interim_answers_of_the_proxy_are_passed_over(
    internet: Internet, transport: Transport, proxy: Proxy
) -> None:
    await internet.serve(echo)
    proxy.interim = INTERIM
    assert (await post(transport)).status == 200


@pytest.mark.parametrize(
    ("interim", "said"),
    [
        pytest.param(INTERIM * 300 + b"HTTP/1.1 100 Continue\r\n", "is not HTTP", id="many"),
        pytest.param(b"HTTP/1.1 101 Switching\r\n\r\n", "answered 101", id="another protocol"),
    ],
)
async def test_what_is_no_interim_answer_of_the_proxy_ends_the_attempt(
    internet: Internet, transport: Transport, proxy: Proxy, interim: bytes, said: str
) -> None:
    await internet.serve(echo)
    proxy.interim = interim
    with pytest.raises(EgressProxyError, match=said):
        await post(transport)


@pytest.mark.parametrize("status", [302, 400, 404, 405, 407, 429, 501])
async def test_what_the_proxy_answers_for_itself_is_its_own_failure(
    internet: Internet, through_proxy: MakeTransport, status: int
) -> None:
    asks = b"PROXY-Authenticate: Basic realm=proxy\r\n" if status == 407 else b""
    async with refusing_proxy(internet, status, asks):
        with pytest.raises(EgressProxyError, match=f"the proxy answered {status}"):
            await post(through_proxy())


# Smokescreen, for one, answers 407 for an address that its rules forbid.
@pytest.mark.parametrize("status", [403, 407, 500, 502, 503, 504])
async def test_an_address_that_the_proxy_refuses_is_a_failure_of_the_destination(
    internet: Internet, through_proxy: MakeTransport, status: int
) -> None:
    async with refusing_proxy(internet, status):
        with pytest.raises(TransportError, match=f"the proxy answered {status}") as caught:
            await post(through_proxy())
    assert caught.type is TransportError


@asynccontextmanager
async def refusing_proxy(
    internet: Internet, status: int, fields: bytes = b""
) -> AsyncIterator[None]:
    """Answer every CONNECT with one status, while the block runs."""

    refuses = says(b"HTTP/1.1 %d Refused\r\n%bContent-Length: 0\r\n\r\n" % (status, fields))
    internet.network.names.says(HOOKS, [HOOKS_ADDRESS])
    async with serving(refuses) as proxy:
        internet.network.leads("proxy.corp.internal", *PROXY_PLACE, to=proxy.port)
        yield


async def test_the_proxy_gets_its_credentials_and_the_destination_does_not(
    internet: Internet, proxy: Proxy, through_proxy: MakeTransport
) -> None:
    seen: list[str] = []

    async def note(request: web.Request) -> web.Response:
        seen.extend(request.headers)
        return web.Response()

    await internet.serve(note)
    proxy.credentials = "agent:p@ss word"
    url = PROXY_URL.replace("//", "//agent:p%40ss%20word@")
    assert (await post(through_proxy(proxy=url))).status == 200
    assert seen
    assert not any("Proxy" in name or name == "Authorization" for name in seen)
    with pytest.raises(TransportError, match="the proxy answered 407"):
        await post(through_proxy())


async def test_no_hostile_url_reaches_the_proxy(
    internet: Internet, proxy: Proxy, through_proxy: MakeTransport
) -> None:
    names = internet.network.names
    attackers_dns(names)
    lines = [line.looked_up() for line in hostile_urls(8443)]
    secure = [url.replace("http://", "https://", 1) for url in lines]
    transport = through_proxy()
    for url in [*lines, *secure]:
        for _ in range(2):
            if "rebind" not in url:  # its second answer is public
                with pytest.raises((DestinationRefusedError, TransportError)):
                    await post(transport, url)
    assert "mixed.attacker.example.com" in names.asked
    assert (proxy.asked, internet.network.dialled) == ([], [])


async def test_a_name_that_changes_is_not_looked_up_again_by_anybody(
    internet: Internet, transport: Transport, proxy: Proxy
) -> None:
    async def closes(_: web.Request) -> web.Response:
        return web.Response(headers={"Connection": "close"})

    await internet.serve(closes)
    internet.network.names.says(HOOKS, [HOOKS_ADDRESS], ["127.0.0.1"])
    assert (await post(transport)).status == 200
    with pytest.raises(TransportError, match="not public"):
        await post(transport)
    assert proxy.asked == [f"CONNECT {HOOKS_ADDRESS}:443"]


async def test_a_host_named_for_development_is_dialled_without_the_proxy(
    internet: Internet, transport: Transport, proxy: Proxy
) -> None:
    port = await internet.serve(
        echo, name="dev.example.com", certificate=internet.authority.issue_cert("127.0.0.1")
    )
    assert (await post(transport, f"https://127.0.0.1:{port}/")).status == 200
    assert proxy.asked == []
    assert internet.network.dialled == [("127.0.0.1", port)]


async def test_the_rules_of_the_operator_hold_behind_the_proxy(
    internet: Internet, proxy: Proxy, through_proxy: MakeTransport
) -> None:
    await internet.serve(echo)
    policy = DestinationPolicy(rules=DestinationRules(networks=["8.8.8.0/24"]))
    with pytest.raises(TransportError, match="outside of the networks"):
        await post(through_proxy(policy))
    assert proxy.asked == []


@pytest.mark.parametrize(
    "url",
    [
        "https://proxy.example.com:3128",
        "socks5://proxy.example.com:1080",
        "http://proxy.example.com",
        "proxy.example.com:3128",
        "http://:3128",
        "http://proxy.example.com:99999",
        "http://proxy.example.com:3128/canary",
        "http://user:canary@proxy.example.com:3128?canary",
        "http://pr\u00f6xy.example.com:3128",
    ],
)
def test_a_malformed_proxy_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigError, match="proxy: ") as caught:
        EgressProxy.parse(url)
    assert "canary" not in str(caught.value)


def test_no_repr_shows_the_password() -> None:
    proxy = EgressProxy.parse("http://user:canary@[::1]:3128/")
    assert (proxy.host, proxy.port) == ("::1", 3128)
    assert "canary" not in repr(proxy)


def test_verification_is_on_in_the_default_context() -> None:
    context = Transport(DestinationPolicy())._tls
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
