"""Whatever the receiving side and the commands reach may have a private authority, and a proxy."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import aiodns
import aiohttp
import pytest
from aiohttp import web

from pushkit import AlertOptions, KeyRing, PushSender, SenderOptions, load_key_ring
from pushkit.cards import sign_card
from pushkit.cli.destinations import load_destinations
from pushkit.errors import ConfigError
from pushkit.net.transport import ConnectionOptions
from pushkit.signing.standard_webhooks import generate_webhook_secret
from receiver import Receiver, TaskPolicy, TrustedSender, fetch_trust
from receiver.forwards import HttpForward
from receiver.listening.command import Listening, listening
from receiver.listening.handler import AcceptedSignatures
from receiver.settings import load_settings
from receiver.testing import SigningAgent
from tests.eventually import eventually
from tests.internet import HOOKS, HOOKS_ADDRESS, Internet, Proxy
from tests.system.cli.conftest import ISSUER, UPDATE, Run
from tests.unit.pushkit.cards.vectors import load

ORIGIN = f"https://{HOOKS}"
JWKS_URL = f"{ORIGIN}/.well-known/jwks.json"
PROXY = "http://proxy.corp.internal:3128"

pytestmark = pytest.mark.usefixtures("jwks")


@pytest.fixture
def posted() -> set[str]:
    """Return the paths that were posted to."""
    return set()


@pytest.fixture
async def proxy(
    internet: Internet,
    monkeypatch: pytest.MonkeyPatch,
    own_folder: Path,
    posted: set[str],
) -> Proxy:
    """A proxy, and behind a private authority (`ca.pem`) an agent and a webhook, both one server.

    Files for the commands are beside `ca.pem`.
    """
    assert internet.ca_file == own_folder / "ca.pem"
    jwks, ring = (own_folder / "jwks.json").read_bytes(), load_key_ring(own_folder / "keys.json")
    card = sign_card(
        {**load("cards_v10")["c21_spec_85_sample"], "description": ""},
        ring,
        now=datetime.now(UTC),
        jku=JWKS_URL,
    ).content
    (own_folder / "cards.toml").write_text(f'[origins."{ORIGIN}"]\njwks_urls = ["{JWKS_URL}"]\n')
    (own_folder / "update.json").write_bytes(UPDATE)
    agent = SigningAgent(
        webhook_url=f"{ORIGIN}/hook", issuer=ISSUER, key=ring.signing_key(datetime.now(UTC))
    )
    request = agent.draft("task-1").request()
    lines = ["POST /hook HTTP/1.1", *(f"{name}: {value}" for name, value in request.headers)]
    head = "\r\n".join([*lines, "", ""]).encode()
    (own_folder / "request.http").write_bytes(head + request.body)

    async def answer(request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.Response(body=jwks if request.path.endswith("jwks.json") else card)
        posted.add(request.path)
        is_update = b'"statusUpdate":{"taskId"' in await request.read()
        is_refused = request.path == "/refused" and not is_update
        return web.Response(status=400 if is_refused else 202)

    await internet.serve(answer)

    async def system_looks_up(_: object, name: str, **__: object) -> SimpleNamespace:
        found = await internet.network.names.resolve(name)
        return SimpleNamespace(nodes=[SimpleNamespace(addr=(each.encode(), 0)) for each in found])

    monkeypatch.setattr(aiodns.DNSResolver, "getaddrinfo", system_looks_up)
    return await internet.proxy()


COMMANDS = [
    ("pushkit", "card", "verify", ORIGIN, "--jwks", JWKS_URL),
    ("pushkit", "card", "inspect", ORIGIN),
    ("pushkit", "card", "sign", ORIGIN, "--keys", "keys.json"),
    ("pushkit", "card", "canonicalize", ORIGIN),
    ("receiver", "pin", ORIGIN, "--trust", "cards.toml"),
    ("pushkit", "trigger", "completed", f"{ORIGIN}/hook"),
    ("pushkit", "send", "update.json", "--to", f"{ORIGIN}/hook", "--issuer", ISSUER),
    ("pushkit", "replay", "request.http", f"{ORIGIN}/hook"),
    ("pushkit", "verify", "request.http", "--jwks", JWKS_URL),
    (
        *("pushkit", "doctor", f"{ORIGIN}/refused", "--keys", "keys.json", "--token", "t" * 32),
        *("--i-operate-this", "--only", "malformed_json", "--only", "oversized_body"),
    ),
    ("receiver", "check"),
]


@pytest.fixture(params=COMMANDS, ids=lambda words: " ".join(words[:3]))
def command(
    request: pytest.FixtureRequest, pushkit_command: Run, receiver_command: Run
) -> Callable[..., Awaitable[int]]:
    program, *words = request.param

    async def call(*options: str) -> int:
        run = pushkit_command if program == "pushkit" else receiver_command
        ran = await asyncio.to_thread(run, *words, *options)
        return ran.status

    return call


def settings(folder: Path, *lines: str) -> None:
    senders = f'[[senders]]\nname = "agent"\nissuer = "{ISSUER}"\njwks_url = "{JWKS_URL}"\n'
    text = "\n".join(['url = "https://me.example"', *lines, senders])
    (folder / "receiver.toml").write_text(text)


async def test_a_command_trusts_the_authority_of_a_file_and_goes_through_a_proxy(
    command: Callable[..., Awaitable[int]],
    request: pytest.FixtureRequest,
    proxy: Proxy,
    own_folder: Path,
) -> None:
    by_file = request.node.callspec.params["command"][1] == "check"

    async def call(*, ca_file: str = "", proxy: str = "") -> int:
        given = {"ca-file": ca_file, "proxy": proxy}
        if by_file:
            lines = [f'{name.replace("-", "_")} = "{each}"' for name, each in given.items() if each]
            settings(own_folder, *lines)
            return await command()
        return await command(*(x for k, v in given.items() if v for x in (f"--{k}", v)))

    assert await call() == 1
    assert await call(ca_file="ca.pem") == 0
    assert proxy.asked == []
    assert await call(ca_file="ca.pem", proxy=PROXY) == 0
    assert set(proxy.asked) == {f"CONNECT {HOOKS_ADDRESS}:443"}


async def test_variables_name_them_too(
    proxy: Proxy, pushkit_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUSHKIT_CA_FILE", "ca.pem")
    monkeypatch.setenv("PUSHKIT_PROXY", PROXY)
    ran = await asyncio.to_thread(pushkit_command, "trigger", "completed", f"{ORIGIN}/hook")
    assert ran.status == 0
    assert len(proxy.asked) == 1


def test_check_shows_no_password_of_the_proxy(receiver_command: Run, own_folder: Path) -> None:
    settings(own_folder, 'proxy = "http://me:canary@proxy.corp.internal:3128"')
    ran = receiver_command("check", "--settings")
    assert "http://***@proxy" in ran.out or "me:***@proxy" in ran.out
    assert "canary" not in ran.out + ran.err


@pytest.mark.parametrize("through", [PROXY, None], ids=["a proxy", "no proxy"])
async def test_keys_forwards_and_alerts_of_a_receiver_do_so_too(
    proxy: Proxy, posted: set[str], own_folder: Path, through: str | None
) -> None:
    token, key = "t" * 32, load_key_ring(own_folder / "keys.json").signing_key(datetime.now(UTC))
    sender = TrustedSender(
        name="agent", issuer=ISSUER, jwks_url=JWKS_URL, tasks=TaskPolicy.ANY, tokens=[token]
    )
    keyless = TrustedSender(name="keyless", issuer="urn:b", jwks_url=f"{ORIGIN}/no-keys")
    ca_file = own_folder / "ca.pem"
    receiver = Receiver(
        url="https://me.example",
        senders=[sender, keyless],
        database="inbox.db",
        alerts=AlertOptions(
            webhook=f"{ORIGIN}/alerts",
            webhook_secret=generate_webhook_secret(),
            look_every=timedelta(milliseconds=20),
        ),
        proxy=through,
        ca_file=ca_file,
    )
    receiver.forward(HttpForward(f"{ORIGIN}/in", proxy=through, ca_file=ca_file))
    agent = SigningAgent(
        webhook_url=f"https://me.example{sender.path}", issuer=ISSUER, token=token, key=key
    )
    async with receiver:
        request = replace(agent.draft("task-1").request(), target=sender.path)
        assert (await receiver.receive(request)).status == 202
        await eventually(lambda: posted == {"/in", "/alerts"})
    snapshot = await fetch_trust("https://me.example", [sender], proxy=through, ca_file=ca_file)
    assert [held.missing for held in snapshot.held] == [None]
    assert set(proxy.asked) == ({f"CONNECT {HOOKS_ADDRESS}:443"} if through else set())


@pytest.mark.parametrize(
    ("allow", "asked"),
    [
        pytest.param("[]", [f"CONNECT {HOOKS_ADDRESS}:443"], id="through the proxy"),
        pytest.param(f'["{HOOKS}:443"]', [], id="around it, to a host of allow"),
    ],
)
async def test_a_forward_of_the_file_goes_through_its_proxy(
    proxy: Proxy, posted: set[str], own_folder: Path, allow: str, asked: list[str]
) -> None:
    settings(own_folder, f'proxy = "{PROXY}"', 'ca_file = "ca.pem"', f"allow = {allow}")
    with (own_folder / "receiver.toml").open("a") as file:
        file.write(f'tasks = "any"\ntokens = ["{"t" * 32}"]\n[[forwards]]\nto = "{ORIGIN}/in"\n')
    receiver = load_settings(own_folder / "receiver.toml").build()
    key = load_key_ring(own_folder / "keys.json").signing_key(datetime.now(UTC))
    path = receiver.senders["agent"].path
    agent = SigningAgent(
        webhook_url=f"https://me.example{path}", issuer=ISSUER, token="t" * 32, key=key
    )
    async with receiver:
        request = replace(agent.draft("task-1").request(), target=path)
        assert (await receiver.receive(request)).status == 202
        await eventually(lambda: posted == {"/in"})
    assert list(dict.fromkeys(proxy.asked)) == asked


@pytest.mark.parametrize("found", ["", "https://proxy:3128", "proxy:3128"])
def test_a_proxy_that_is_none_is_refused_wherever_it_is_given(
    found: str, own_folder: Path, receiver_command: Run, pushkit_command: Run
) -> None:
    expected = "proxy: expected http"
    sender = TrustedSender(name="agent", issuer=ISSUER, jwks_url=JWKS_URL)
    with pytest.raises(ConfigError, match=expected):
        Receiver(url="https://me.example", senders=[sender], database="inbox.db", proxy=found)
    with pytest.raises(ConfigError, match=expected):
        HttpForward(ORIGIN, proxy=found)
    with pytest.raises(ConfigError, match=expected):
        PushSender(
            issuer=ISSUER,
            keys=KeyRing.create(datetime.now(UTC)),
            database="outbox.db",
            options=SenderOptions(proxy=found),
        )
    settings(own_folder, f'proxy = "{found}"')
    ran = receiver_command("check")
    assert "receiver.toml:2: proxy: expected http" in ran.err
    (own_folder / "rules.toml").write_text(f'proxy = "{found}"\n')
    with pytest.raises(ConfigError, match=r"rules.toml:1: proxy: expected http"):
        load_destinations(own_folder / "rules.toml")
    ran = pushkit_command("card", "inspect", ORIGIN, "--proxy", found)
    assert expected in ran.err


@pytest.mark.parametrize("through", [PROXY, None], ids=["a proxy", "no proxy"])
async def test_listen_fetches_keys_and_forwards_in_the_same_way(
    proxy: Proxy, posted: set[str], own_folder: Path, through: str | None
) -> None:
    key = load_key_ring(own_folder / "keys.json").signing_key(datetime.now(UTC))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        agent = SigningAgent(webhook_url=f"{url}/hook", issuer=ISSUER, key=key)
        options = Listening(
            url=url,
            path="/hook",
            source=AcceptedSignatures(jwks=JWKS_URL, issuer=ISSUER),
            token=agent.token,
            trial_key=key.to_verification_key(),
            forward=f"{ORIGIN}/in",
            folder=None,
            as_json=True,
            brief=False,
            connections=ConnectionOptions(proxy=through, ca_file=own_folder / "ca.pem"),
        )
        request = agent.draft("task-1").request()
        async with listening(options, listener, own_folder):
            async with aiohttp.ClientSession() as session:
                headers = list(request.headers)
                await session.post(f"{url}/hook", data=request.body, headers=headers)
            await eventually(lambda: posted == {"/in"})
    assert set(proxy.asked) == ({f"CONNECT {HOOKS_ADDRESS}:443"} if through else set())
