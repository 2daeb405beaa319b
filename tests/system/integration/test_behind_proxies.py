"""A receiver behind the proxies of `docs/deploy`, on other ports and with other certificates."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest
import trustme

from pushkit.webhook import WebhookRequest
from receiver.testing import Answer, ReceiverUnderTest, SigningAgent, check_receiver
from tests.eventually import DEADLINE, eventually
from tests.forked import forked
from tests.ports import free_port
from tests.system.cli.conftest import environment

DEPLOY = Path(__file__).parents[3] / "docs" / "deploy"
NAME = "client.example.com"
WEBHOOK = f"https://{NAME}/a2a/push"
CHECKS = ("genuine", "retry", "concurrent_copies", "conflict", "signature", "raw_body", "audience")
CONFIG = """\
url = "https://client.example.com"
listen = "127.0.0.1:{port}"
trusted_proxies = ["127.0.0.1/32"]
[[senders]]
name = "agent"
issuer = "{agent.issuer}"
jwks_file = "jwks.json"
tokens = ["{agent.token}"]
tasks = "any"
[[callbacks]]
call = "handlers:called"
"""
HANDLERS = """\
async def called(notification):
    print("CALLED", notification.delivery_id, flush=True)
"""
MAIN = """\
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/errors info;
events {{ worker_connections 512; }}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    include {folder}/receiver.conf;
}}
"""


class Proxied(ReceiverUnderTest):
    """A receiver that agents reach through the proxy, by its name."""

    def __init__(self, log: Path, port: int, trust: ssl.SSLContext) -> None:
        self.log = log
        self._port = port
        self._trust = trust

    async def post(self, request: WebhookRequest) -> Answer | None:
        path = request.target.removeprefix(f"https://{NAME}")
        return await self.ask("POST", path, request.body, list(request.headers))

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Sequence[tuple[str, str]] = (),
    ) -> Answer | None:
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.request(
                    method,
                    f"https://127.0.0.1:{self._port}{path}",
                    data=io.BytesIO(body),
                    headers=[*headers, ("Host", NAME)],
                    ssl=self._trust,
                    server_hostname=NAME,
                ) as response,
            ):
                return Answer(status=response.status, body=await response.read())
        except (TimeoutError, aiohttp.ClientError, OSError):
            return None

    async def callbacks(self) -> Sequence[str]:
        lines = self.log.read_text("utf-8").splitlines()
        return [line.split()[1] for line in lines if line.startswith("CALLED")]

    async def restart(self) -> None:
        raise NotImplementedError  # no check here crashes it


def installed(program: str) -> str:
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin")
    if found is None:
        pytest.skip(f"no {program}: it is in Debian (apt-get install {program})")
    return found


def nginx(folder: Path, port: int, behind: int) -> list[str]:
    binary = installed("nginx")
    site = (DEPLOY / "nginx.conf").read_text("utf-8")
    for ours, theirs in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("server 127.0.0.1:9000", f"server 127.0.0.1:{behind}"),
        ("/etc/ssl/client.example.com.pem", f"{folder}/chain.pem"),
        ("/etc/ssl/client.example.com.key", f"{folder}/chain.pem"),
    ):
        assert ours in site
        site = site.replace(ours, theirs)
    (folder / "receiver.conf").write_text(site, "utf-8")
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder), "utf-8")
    return [binary, "-p", str(folder), "-c", f"{folder}/nginx.conf"]


def caddy(folder: Path, port: int, behind: int) -> list[str]:
    binary = installed("caddy")
    site = (DEPLOY / "Caddyfile").read_text("utf-8")
    tls = f"{NAME}:{port} {{\n\tbind 127.0.0.1\n\ttls {folder}/chain.pem {folder}/chain.pem"
    for ours, theirs in ((f"{NAME} {{", tls), ("127.0.0.1:9000\n\t}", f"127.0.0.1:{behind}\n\t}}")):
        assert ours in site
        site = site.replace(ours, theirs)
    apart = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n"  # from another Caddy
    (folder / "Caddyfile").write_text(apart + site, "utf-8")
    return [binary, "run", "--adapter", "caddyfile", "--config", f"{folder}/Caddyfile"]


@contextlib.contextmanager
def running(command: Sequence[str], folder: Path, log: Path) -> Iterator[None]:
    home = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with (
        log.open("w") as output,
        subprocess.Popen(  # noqa: S603  # ours, and a proxy
            command, cwd=folder, env=environment(**home), stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            yield
        finally:
            process.terminate()
            process.wait(DEADLINE)


async def listening(port: int) -> None:
    async def connected() -> bool:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return True
        return False

    await eventually(connected)


@pytest.fixture
def agent() -> SigningAgent:
    return SigningAgent(
        webhook_url=WEBHOOK, issuer="https://agent.example.com", token="tok-behind-a-proxy"
    )


@pytest.fixture(params=[nginx, caddy], ids=lambda each: each.__name__)
async def proxied(
    request: pytest.FixtureRequest, tmp_path: Path, agent: SigningAgent
) -> AsyncIterator[Proxied]:
    port, behind = free_port(), free_port()
    command: Callable[[Path, int, int], list[str]] = request.param
    proxy = command(tmp_path, port, behind)
    authority = trustme.CA()
    chain = authority.issue_cert(NAME).private_key_and_cert_chain_pem
    chain.write_to_path(tmp_path / "chain.pem")
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    (tmp_path / "jwks.json").write_text(json.dumps(agent.jwks()), "utf-8")
    (tmp_path / "handlers.py").write_text(HANDLERS)
    (tmp_path / "receiver.toml").write_text(CONFIG.format(port=behind, agent=agent))
    serve = [*forked("receiver.cli"), "serve"]
    subject = Proxied(tmp_path / "receiver.log", port, trust)
    with (
        running(serve, tmp_path, subject.log),
        running(proxy, tmp_path, tmp_path / "proxy.log"),
    ):
        await listening(behind)
        await listening(port)
        yield subject


async def test_the_promises_hold_through_a_proxy(proxied: Proxied, agent: SigningAgent) -> None:
    deadline = timedelta(seconds=DEADLINE)
    assert await check_receiver(proxied, agent, only=CHECKS, deadline=deadline) == []


async def test_only_the_webhook_is_seen_through_a_proxy(proxied: Proxied) -> None:
    for path in ("/healthz", "/readyz", "/metrics", "/a2a/push/", "/"):
        answer = await proxied.ask("GET", path)
        assert answer is not None
        assert answer.status == 404, path


async def test_a_client_cannot_say_who_it_is(proxied: Proxied, agent: SigningAgent) -> None:
    request = agent.draft("task-1").request()
    claimed = [*request.headers, ("X-Forwarded-For", "192.0.2.7"), ("Forwarded", "for=192.0.2.7")]
    refused = await proxied.ask("POST", "/a2a/push", request.body + b" ", claimed)
    assert refused is not None
    assert refused.status == 401

    await eventually(lambda: "peer=127.0.0.1" in proxied.log.read_text("utf-8"))
    assert "192.0.2.7" not in proxied.log.read_text("utf-8")


async def test_a_body_that_is_too_large_is_refused_for_good(proxied: Proxied) -> None:
    answer = await proxied.ask("POST", "/a2a/push", b"x" * (2 << 20))
    assert answer is not None
    assert answer.status == 413
