from __future__ import annotations

from pathlib import Path

import pytest
import standardwebhooks

from pushkit.signing.scheme import Scheme
from pushkit.signing.standard_webhooks import generate_webhook_secret
from tests.ports import free_port
from tests.system.cli.conftest import ISSUER, TOKEN, UPDATE, Run, Webhook

pytestmark = pytest.mark.usefixtures("jwks")


@pytest.fixture
def update(tmp_path: Path) -> str:
    path = tmp_path / "update.json"
    path.write_bytes(UPDATE)
    return str(path)


def to(url: str) -> list[str]:
    return ["--to", url, "--issuer", ISSUER]


def test_an_accepted_update_ends_with_0(
    pushkit_command: Run, webhook: Webhook, update: str
) -> None:
    ran = pushkit_command("send", update, *to(webhook.url), "--token", TOKEN)
    assert ran.status == 0
    assert ran.err == ""
    assert "< 202 (delivered)" in ran.out
    [request] = webhook.requests
    assert request.body == UPDATE
    assert request.header("X-A2A-Token") == TOKEN
    assert request.header("Content-Type") == "application/a2a+json"


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(
            b'{"kind":"task","id":"task-1","contextId":"c","status":{"state":"working"}}\n',
            id="0.3",
        ),
        pytest.param(b'{"taskId":"task-1","status":{"state":"working"}}', id="0.1"),
        pytest.param(b'{"taskId":"task-1","state":"WORKING"}', id="AgentVault"),
    ],
)
def test_an_update_comes_from_standard_input(
    pushkit_command: Run, webhook: Webhook, task: bytes
) -> None:
    assert pushkit_command("send", "-", *to(webhook.url), stdin=task).status == 0
    [request] = webhook.requests
    assert request.body == task
    assert request.header("Content-Type") == "application/json"


@pytest.mark.parametrize(
    ("status", "says"),
    [
        pytest.param(401, "status_401", id="refused"),
        pytest.param(409, "conflict", id="conflict"),
        pytest.param(410, "gone", id="gone"),
        pytest.param(302, "redirect", id="redirect"),
        pytest.param(503, "status_503", id="unavailable"),
    ],
)
def test_a_refused_update_ends_with_1(
    pushkit_command: Run, webhook: Webhook, update: str, status: int, says: str
) -> None:
    webhook.status = status
    ran = pushkit_command("send", update, *to(webhook.url))
    assert ran.status == 1
    assert f"< {status} ({says})" in ran.out
    assert len(webhook.requests) == 1


def test_an_unreachable_webhook_is_one_line(pushkit_command: Run, update: str) -> None:
    port = free_port()
    ran = pushkit_command("send", update, *to(f"http://127.0.0.1:{port}/?key=secret"))
    assert ran.status == 1
    assert f"127.0.0.1:{port}" in ran.error
    assert "secret" not in ran.out + ran.err


def test_the_same_id_is_the_same_delivery(
    pushkit_command: Run, webhook: Webhook, update: str
) -> None:
    for _ in range(2):
        pushkit_command("send", update, *to(webhook.url), "--id", "dlv_1")
    assert [request.header("webhook-id") for request in webhook.requests] == ["dlv_1", "dlv_1"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        pytest.param(b"{", "not JSON", id="no JSON"),
        pytest.param(b'{"a":1}', "no notification", id="no notification"),
        pytest.param(b"", "not JSON", id="nothing"),
        pytest.param(b"\xff", "not", id="no UTF-8"),
    ],
)
def test_what_is_no_update_is_not_sent(
    pushkit_command: Run, webhook: Webhook, body: bytes, says: str
) -> None:
    ran = pushkit_command("send", "-", *to(webhook.url), stdin=body)
    assert ran.status == 1
    assert says in ran.error
    assert webhook.requests == []


def test_every_scheme_can_be_tried_out(
    pushkit_command: Run, webhook: Webhook, update: str, tmp_path: Path
) -> None:
    secret = generate_webhook_secret()
    secrets = tmp_path / "secrets.txt"
    secrets.write_text(f"{secret}\n\n{generate_webhook_secret()}\n")
    schemes = [f"--scheme={scheme.value}" for scheme in Scheme]
    ran = pushkit_command(
        "send", update, *to(webhook.url), *schemes, "--webhook-secrets-file", str(secrets)
    )
    assert (ran.status, ran.err) == (0, "")
    [request] = webhook.requests
    standardwebhooks.Webhook(secret).verify(request.body, dict(request.headers))
    assert request.header("Authorization")
    assert 'tag="a2a-push"' in (request.header("Signature-Input") or "")
    assert secret not in ran.out
    for name in ("Authorization", "Signature", "webhook-signature"):
        assert f"> {name}: ***" in ran.out
        assert (request.header(name) or "").removeprefix("Bearer ") not in ran.out
