"""What an operator names on this machine is allowed; any other refusal says what to write."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from pushkit import KeyRing, PushSender
from pushkit.clock import utc_now
from pushkit.errors import ConfigError, DestinationRefusedError
from receiver import Receiver, TrustedSender
from tests.system.cli.conftest import ISSUER, RECEIVER_TOML, UPDATE, Run, Webhook
from tests.unit.pushkit.cards.vectors import load

ELSEWHERE = "http://agent.internal:8001"


@pytest.fixture(autouse=True)
def files(jwks: Path) -> None:
    """A key file, its public keys, an update, and a card."""
    jwks.with_name("update.json").write_bytes(UPDATE)
    jwks.with_name("card.json").write_text(json.dumps(load("cards_v10")["c21_spec_85_sample"]))


def trusting(origin: str) -> str:
    """Return the configuration of a receiver whose sender has its keys there."""
    return RECEIVER_TOML.replace('jwks_file = "', f'jwks_url = "{origin}/')


SEND = ("send", "update.json", "--issuer", ISSUER, "--to")
INSPECT = ("card", "inspect")
VERIFY = ("card", "verify", "--key", "jwks.json")


def test_what_a_command_names_on_this_machine_needs_no_option(
    pushkit_command: Run, receiver_command: Run, webhook: Webhook, own_folder: Path
) -> None:
    assert pushkit_command(*SEND, webhook.url).status == 0
    assert pushkit_command("trigger", "completed", webhook.url).status == 0
    signed = pushkit_command("card", "sign", "card.json")
    webhook.document = signed.out.encode()
    assert pushkit_command(*VERIFY, webhook.origin).status == 0
    webhook.document = own_folder.joinpath("jwks.json").read_bytes()
    own_folder.joinpath("receiver.toml").write_text(trusting(webhook.origin))
    ran = receiver_command("check")
    assert "agent: 1 key\n" in ran.out
    assert ran.status == 0


@pytest.mark.parametrize("command", [SEND, INSPECT, VERIFY], ids=["send", "inspect", "verify"])
def test_a_command_says_which_option_allows_another_host(
    pushkit_command: Run, command: tuple[str, ...]
) -> None:
    ran = pushkit_command(*command, ELSEWHERE)
    assert ran.status == 1
    assert ran.error.endswith("for development: add --allow 'agent.internal:8001'")


def test_the_log_says_what_allows_a_jwk_set_of_another_host(
    pushkit_command: Run, own_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own_folder.joinpath("s.json").write_text(pushkit_command("card", "sign", "card.json").out)
    ran = pushkit_command("card", "verify", "s.json", "--jwks", f"{ELSEWHERE}/jwks.json")
    assert ran.status == 1
    assert "or --allow 'agent.internal:8001'" in caplog.text


def test_the_receivers_file_is_told_its_own_setting(
    receiver_command: Run, own_folder: Path
) -> None:
    file = own_folder / "receiver.toml"
    file.write_text(trusting(ELSEWHERE))
    error = receiver_command("check").error
    found = re.search(r"for development: (allow = \[.*\])$", error)
    assert found, error
    file.write_text(f"{found[1]}\n{file.read_text()}")
    assert "jwks_url: URL" not in receiver_command("check").err


def test_an_embedded_receiver_is_told_its_own_argument() -> None:
    sender = TrustedSender(name="agent", issuer=ISSUER, jwks_url=f"{ELSEWHERE}/jwks.json")
    with pytest.raises(ConfigError, match=r'for development: allow=\["agent\.internal:8001"\]$'):
        Receiver(url="https://client.example.com", senders=[sender], database="inbox.db")


@pytest.mark.parametrize("host", ["127.0.0.1:9000", "[::1]:9000", "localhost:9000"])
async def test_a_sender_tells_its_operator_what_allows_a_webhook_on_this_machine(
    host: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"url": f"http://{host}/hook"}
    ring = KeyRing.create(utc_now())
    async with PushSender(issuer=ISSUER, keys=ring, database="outbox.db") as push:
        with pytest.raises(DestinationRefusedError) as refused:
            await push.subscribe("task-1", config, version="1.0")
    assert "allow" not in str(refused.value)  # for the client
    [note] = refused.value.__notes__
    [line] = [each.getMessage() for each in caplog.records if "push config" in each.getMessage()]
    for says in (note, line):
        found = re.search(r"PushSender\(allow=(\[.*?\"\])\), or --allow '(.*)'", says)
        assert found
        assert ast.literal_eval(found[1]) == [found[2]] == [host]
        async with PushSender(
            issuer=ISSUER, keys=ring, database="outbox.db", allow=[found[2]]
        ) as push:
            assert await push.subscribe("task-1", config, version="1.0")


async def test_no_advice_opens_what_a_stranger_registered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ring = KeyRing.create(utc_now())
    async with PushSender(issuer=ISSUER, keys=ring, database="outbox.db") as push:
        for url in ("http://10.0.0.1/", "https://169.254.169.254/", "http://127.0.0.1.example.com"):
            with pytest.raises(DestinationRefusedError) as refused:
                await push.subscribe("task-1", {"url": url}, version="1.0")
            assert not hasattr(refused.value, "__notes__")
    assert "allow" not in caplog.text
