"""`receiver check --url` beside `receiver serve`, as an operator calls it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.eventually import eventually_sync
from tests.forked import forked
from tests.ports import free_port
from tests.system.cli.conftest import RECEIVER_TOML, TOKEN, Run, running
from tests.system.cli.test_serve import is_listening

pytestmark = pytest.mark.usefixtures("jwks")

URL = "http://localhost:9000"
CONFIG = RECEIVER_TOML.replace("https://client.example.com", URL) + f'tokens = ["{TOKEN}"]\n'


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Serve as `http://localhost:9000` on a port, and return it."""
    port = free_port()
    (tmp_path / "receiver.toml").write_text(CONFIG)
    at = f"127.0.0.1:{port}"
    with running(tmp_path, *forked("receiver.cli"), "serve", RECEIVER_LISTEN=at):
        eventually_sync(lambda: is_listening(port))
        yield port


def test_a_misconfigured_audience_is_found_and_its_remedy_found_good(
    port: int, tmp_path: Path, receiver_command: Run
) -> None:
    url = f"http://127.0.0.1:{port}"
    ran = receiver_command("check", "--url", url, "--keys", "keys.json")
    assert ran.status == 1
    assert ran.error == "at fault: audience"
    assert "✓ signature" in ran.out
    assert "✗ audience" in ran.out
    assert f"{url}/a2a/push" in ran.out
    assert ran.out.endswith("see docs/reference/codes.md#refusal-wrong_audience\n")

    (tmp_path / "receiver.toml").write_text(CONFIG.replace(URL, url))
    without_key = receiver_command("check", "--url")
    assert (without_key.status, without_key.err) == (0, "")
    assert "· signature  not checked: give the agent's key file by --keys" in without_key.out


def test_a_sender_that_must_sign_otherwise_is_not_tried_by_jwt(
    tmp_path: Path, receiver_command: Run
) -> None:
    schemes = 'schemes = ["jwt", "http-message-signatures"]\n'
    (tmp_path / "receiver.toml").write_text(CONFIG + schemes)
    ran = receiver_command("check", "--url", "--keys", "keys.json")
    assert ran.status == 1
    assert "must sign by http-message-signatures, jwt: leave --keys out" in ran.error
