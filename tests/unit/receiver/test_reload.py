"""New trust settings while the service runs: on SIGHUP, on file change, all or nothing."""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pushkit.clock import utc_now
from pushkit.errors import ConfigError
from pushkit.keys.jwk import Algorithm, generate_key, public_jwk
from pushkit.signing.standard_webhooks import generate_webhook_secret, read_verifier
from receiver import Answer, Receiver, TrustedSender
from receiver.serve_command import SettingsWatcher, watching
from receiver.settings import load_settings
from tests.eventually import eventually

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory

CONFIG = """\
url = "https://client.example.com"

[[senders]]
name = "agent"
issuer = "https://agent.example.com"
jwks_file = "jwks.json"
tokens_file = "tokens.txt"
tasks = "any"
"""
NEVER, SOON = timedelta(hours=1), timedelta(milliseconds=5)


@dataclass
class Service:
    """A receiver that runs from files."""

    config: Path
    receiver: Receiver
    world: World
    sent: int = 0

    def watcher(self) -> SettingsWatcher:
        return SettingsWatcher(self.receiver, load_settings(self.config))

    def write(self, name: str, content: str) -> None:
        """Replace a file, as deployment tools do."""
        written = self.config.with_name("written")
        written.write_text(content)
        written.replace(self.config.with_name(name))

    async def send(self, token: str, path: str = "/a2a/push") -> Answer:
        """Send a genuine notification with a token."""
        self.sent += 1
        draft = replace(
            self.world.draft(self.sent, token=token),
            issued_at=utc_now(),
            url=path,
            audience=f"https://client.example.com{path}",
        )
        return await self.receiver.receive(draft.request())

    async def trusts(self, token: str) -> bool:
        return (await self.send(token)).status == 202


@pytest.fixture
async def service(tmp_path: Path, world: World) -> AsyncIterator[Service]:
    config = tmp_path / "receiver.toml"
    config.write_text(CONFIG)
    (tmp_path / "tokens.txt").write_text("old\n")
    key = public_jwk(world.draft().key)
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [key]}))
    receiver = load_settings(config).build()
    async with receiver:
        yield Service(config=config, receiver=receiver, world=world)


async def test_a_hangup_reloads(service: Service) -> None:
    async with watching(service.receiver, load_settings(service.config), poll=NEVER) as watcher:
        service.write("receiver.toml", CONFIG.replace("tokens_file", "tokens = ['new'] #"))
        watcher.hang_up()
        await eventually(lambda: service.trusts("new"))

    assert (await service.send("old")).status == 401


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("receiver.toml", CONFIG.replace("tokens_file", "tokens = ['new'] #"), id="it"),
        pytest.param("tokens.txt", "old\nnew\n", id="a-token-file"),
    ],
)
async def test_a_file_that_changes_reloads(service: Service, name: str, content: str) -> None:
    async with watching(service.receiver, load_settings(service.config), poll=SOON):
        assert not await service.trusts("new")
        service.write(name, content)
        await eventually(lambda: service.trusts("new"))


async def test_a_file_of_webhook_secrets_that_changes_reloads(service: Service) -> None:
    secrets = [generate_webhook_secret() for _ in range(2)]
    service.write("secrets.txt", secrets[0])
    keys = 'issuer = "https://agent.example.com"\njwks_file = "jwks.json"\n'
    by_secret = 'schemes = ["standard-webhooks"]\nwebhook_secrets_file = "secrets.txt"\n'
    service.write("receiver.toml", CONFIG.replace(keys, by_secret))
    watcher = service.watcher()
    await watcher.reload()
    service.write("secrets.txt", "\n".join(secrets))

    await watcher.run_once()

    expected = tuple(map(read_verifier, secrets))
    assert service.receiver.senders["agent"].verifiers == expected


async def test_a_key_file_that_changes_reloads(service: Service) -> None:
    watcher = service.watcher()
    other = public_jwk(generate_key(Algorithm.ES256))
    service.write("jwks.json", json.dumps({"keys": [other]}))

    await watcher.run_once()

    assert (await service.send("old")).code == "invalid_signature"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        pytest.param("receiver.toml", "not TOML", "not TOML", id="not-toml"),
        pytest.param(
            "receiver.toml", CONFIG + "tolerance = 5\n", ":9: senders[0].tolerance", id="misspelt"
        ),
        pytest.param("jwks.json", "{", "jwks_file", id="broken-keys"),
        pytest.param("receiver.toml", 'url = "https://x.example.com"\n', "senders", id="nobody"),
    ],
)
async def test_an_invalid_file_changes_nothing(
    service: Service, caplog: pytest.LogCaptureFixture, name: str, content: str, says: str
) -> None:
    watcher = service.watcher()
    before = service.receiver.trust
    service.write(name, content)

    await watcher.run_once()

    assert service.receiver.trust is before
    assert "the senders trusted before stay in use" in caplog.text
    assert says in caplog.text
    assert await service.trusts("old")


async def test_a_mistake_is_reported_once_and_its_repair_is_seen(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = service.watcher()
    service.write("receiver.toml", "not TOML")
    await watcher.run_once()
    await watcher.run_once()
    service.write("receiver.toml", CONFIG.replace("tokens_file", "tokens = ['new'] #"))
    await watcher.run_once()

    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert await service.trusts("new")


@pytest.mark.parametrize("name", ["receiver.toml", "tokens.txt", "jwks.json"])
async def test_a_file_that_could_not_be_opened_is_tried_again(
    service: Service,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    watcher = service.watcher()
    service.write("tokens.txt", "new\n")
    readers = {"read_bytes": Path.read_bytes, "read_text": Path.read_text, "open": Path.open}

    def refusing(read: Any) -> Any:
        def refuse(path: Path, *arguments: Any, **more: Any) -> Any:
            if path.name == name:
                raise OSError(errno.EMFILE, "Too many open files")
            return read(path, *arguments, **more)

        return refuse

    with monkeypatch.context() as patched:
        for method, read in readers.items():
            patched.setattr(Path, method, refusing(read))
        for _ in range(2):
            await watcher.run_once()
    assert len([each for each in caplog.records if each.levelno == logging.ERROR]) == 1

    await watcher.run_once()

    assert await service.trusts("new")


async def test_a_reload_logs_settings_that_need_a_restart_until_they_are_restored(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = service.watcher()
    service.write("receiver.toml", 'listen = "127.0.0.1:9999"\n' + CONFIG)
    await watcher.run_once()
    assert "only a restart applies it: listen" in caplog.text
    caplog.clear()

    service.write("receiver.toml", CONFIG)
    await watcher.run_once()

    assert "only a restart" not in caplog.text
    [done] = [each for each in caplog.records if each.message.startswith("reloaded; trusting ")]
    assert done.levelno == logging.WARNING  # what a log has that nobody made more of


@pytest.mark.parametrize("is_there", [True, False])
async def test_files_that_are_named_only_now_are_followed(service: Service, is_there: bool) -> None:
    watcher = service.watcher()
    if is_there:
        service.write("more.txt", "old\n")
    service.write("receiver.toml", CONFIG.replace("tokens.txt", "more.txt"))
    await watcher.run_once()
    service.write("more.txt", "new\n")

    await watcher.run_once()

    assert await service.trusts("new")


async def test_the_files_are_those_of_the_start_wherever_the_process_is_by_now(
    service: Service, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(service.config.parent)
    watcher = SettingsWatcher(service.receiver, load_settings(Path(service.config.name)))
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    service.write("tokens.txt", "new\n")

    await watcher.run_once()

    assert await service.trusts("new")


async def test_a_path_may_be_new(service: Service) -> None:
    watcher = service.watcher()
    service.write("receiver.toml", CONFIG + 'path = "/elsewhere"\n')

    await watcher.run_once()

    assert (await service.send("old", "/elsewhere")).status == 202
    assert (await service.send("old")).code == "not_found"


# --- reload_senders -------------------------------------------------------------------------------

JWKS_URL = "https://agent.example.com/.well-known/jwks.json"


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        pytest.param({"tokens": ("new",)}, True, id="fetched keys outlive any other change"),
        pytest.param({"jwks_url": f"{JWKS_URL}?v=2"}, False, id="another url has other keys"),
    ],
)
async def test_keys_are_fetched_again_from_another_url_alone(
    make_world: WorldFactory, changes: dict[str, Any], kept: bool
) -> None:
    world = make_world(keys=None, jwks_url=JWKS_URL)
    receiver = await world.start()
    before = receiver.trust._entries[0].source
    sender = TrustedSender(name="agent", issuer="https://agent.example.com", jwks_url=JWKS_URL)

    await receiver.reload_senders([dataclasses.replace(sender, **changes)])

    assert (receiver.trust._entries[0].source is before) is kept


async def test_one_wrong_sender_keeps_them_all(world: World) -> None:
    receiver = await world.start()
    before = receiver.trust
    wrong = dataclasses.replace(
        world.sender, name="other", keys=None, jwks_url="http://agent.example"
    )

    for senders in ([], [world.sender, wrong], [world.sender, world.sender]):
        with pytest.raises(ConfigError):
            await receiver.reload_senders(senders)

    assert receiver.trust is before
    assert (await world.receive(world.draft())).status == 202
