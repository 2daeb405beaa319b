"""A folder and two hosts, as the pages have them."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trustme
from aiohttp import web
from click.testing import CliRunner

from pushkit import KeyRing, save_key_ring
from pushkit.cards import sign_card
from pushkit.cli.main import cli
from pushkit.clock import utc_now
from pushkit.keys.jwks import parse_jwks
from pushkit.net import tls
from receiver import Receiver, TaskPolicy, TrustedSender
from tests.contract.docs.blocks import ROOT
from tests.contract.docs.world import lead

CARD = json.loads((ROOT / "tests/vectors/cards/cards_v10.json").read_bytes())["c10_params_numbers"]


@dataclass
class World:
    """The hosts that the pages name, on loopback, and a folder with the files that they name.

    Attributes:
        folder: The folder; it is the current one.
        ports: Where each name leads to.
    """

    folder: Path
    ports: dict[str, int] = field(default_factory=dict)
    _authority: trustme.CA = field(default_factory=trustme.CA)
    _runners: list[web.AppRunner] = field(default_factory=list)

    async def serve(self, name: str, app: web.Application) -> None:
        """Serve an application at a name, in place of what was there."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._authority.issue_cert(name).configure_cert(context)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        self.ports[name] = runner.addresses[0][1]

    def write_files(self) -> None:
        """Write what the pages presume to be there already."""
        ring = KeyRing.create(utc_now())
        save_key_ring("keys.json", ring)
        for arguments in (["--out", "jwks.json"], ["--out", "agent.pem", "--format", "pem"]):
            assert CliRunner().invoke(cli, ["keys", "export", *arguments]).exit_code == 0
        self._authority.cert_pem.write_to_path("private-roots.pem")
        self._authority.cert_pem.write_to_path("partner-root.pem")
        of_client = self._authority.issue_cert("agent.example.com")
        of_client.cert_chain_pems[0].write_to_path("client.pem")
        of_client.private_key_pem.write_to_path("client.key")
        Path("client.key").chmod(0o600)
        Path("card.json").write_text(json.dumps(CARD))
        Path("agent-card.json").write_bytes(sign_card(CARD, ring, now=utc_now()).content)

    async def close(self) -> None:
        for runner in self._runners:
            await runner.cleanup()


def documents(**paths: str) -> web.Application:
    """Return what serves files of the current folder."""

    def serving(path: Path) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_request: web.Request) -> web.Response:
            return web.json_response(body=path.read_bytes())

        return answer

    app = web.Application()
    for name, file in paths.items():
        app.router.add_get(f"/.well-known/{name.replace('_', '-')}.json", serving(Path(file)))
    return app


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """Return agent.example.com, with keys and a card, and client.example.com, with a receiver."""
    monkeypatch.chdir(tmp_path)
    world = World(folder=tmp_path)
    lead(world.ports, monkeypatch.setattr)
    world.write_files()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "private-roots.pem"))
    tls._plain.cache_clear()  # the system's roots, as they were read before
    agent = documents(jwks="jwks.json", agent_card="agent-card.json")
    await world.serve("agent.example.com", agent)
    keys = parse_jwks(Path("jwks.json").read_bytes()).keys
    there = Receiver(
        url="https://client.example.com",
        senders=[
            TrustedSender(
                name="agent",
                issuer="https://agent.example.com",
                keys=keys,
                tasks=TaskPolicy.ANY,
                tokens=["abc"],
            )
        ],
        database=tmp_path / "client.db",
    )
    await world.serve("client.example.com", there.app())
    yield world
    await world.close()
    tls._plain.cache_clear()
