"""The signature schemes over sockets: the reference libraries to us, and our sender to us.

`standardwebhooks`, `svix` and `http-message-signatures` sign; aiohttp carries.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import http_message_signatures as oracle
import pytest
import standardwebhooks
import svix.webhooks
from pytest_aiohttp.plugin import AiohttpServer

from pushkit import Algorithm, Scheme, TaskState
from pushkit.keys.jwk import generate_key
from pushkit.keys.jwks import JWKS_PATH
from receiver import Receiver, TaskPolicy, TrustedSender
from tests.eventually import DEADLINE
from tests.verification.interop.conftest import attempted
from tests.verification.interop.verifiers import COVERED, SECRET
from tests.verification.interop.webhooks import UPDATES, sending, signed_by

TOKEN = "the-token"
BODY = json.dumps(
    {
        "statusUpdate": {
            "taskId": "task-1",
            "contextId": "context-1",
            "status": {"state": "TASK_STATE_COMPLETED"},
            "metadata": {"text": "Grüße"},
        }
    },
    ensure_ascii=False,
).encode()
JWT, WEBHOOKS, HTTP = Scheme.JWT, Scheme.STANDARD_WEBHOOKS, Scheme.HTTP_MESSAGE_SIGNATURES

# --- from their signers to our receiver ---------------------------------------------------------


KEY = generate_key(Algorithm.EDDSA)


class _TheirKey(oracle.HTTPSignatureKeyResolver):
    def resolve_public_key(self, key_id: str) -> Any:
        raise NotImplementedError

    def resolve_private_key(self, key_id: str) -> Any:
        assert key_id == KEY.kid
        return KEY.private_key


def sign_by_library(library: type) -> Callable[[str, dict[str, str]], None]:
    def sign(_: str, headers: dict[str, str]) -> None:
        moment = datetime.fromtimestamp(int(headers["webhook-timestamp"]), UTC)
        headers["webhook-signature"] = library(SECRET).sign(
            headers["webhook-id"], moment, BODY.decode()
        )

    return sign


def sign_by_http_message_signatures(url: str, headers: dict[str, str]) -> None:
    oracle.HTTPMessageSigner(
        signature_algorithm=oracle.algorithms.ED25519, key_resolver=_TheirKey()
    ).sign(
        SimpleNamespace(method="POST", url=url, headers=headers),
        key_id=KEY.kid,
        created=datetime.now(UTC),
        expires=datetime.now(UTC) + timedelta(seconds=60),
        tag="a2a-push",
        covered_component_ids=COVERED,
        body=BODY,
    )


SIGNERS = [
    pytest.param(WEBHOOKS, sign_by_library(standardwebhooks.Webhook), id="standardwebhooks"),
    pytest.param(WEBHOOKS, sign_by_library(svix.webhooks.Webhook), id="svix"),
    pytest.param(HTTP, sign_by_http_message_signatures, id="http-message-signatures"),
]
Sign = Callable[[str, dict[str, str]], None]


@pytest.fixture
def trusted(tmp_path: Path, unused_tcp_port: int) -> Callable[[Scheme], Receiver]:
    def make(scheme: Scheme) -> Receiver:
        public = KEY.to_verification_key()
        sender = TrustedSender(
            name="theirs",
            schemes=frozenset({scheme}),
            keys=[public] if scheme is HTTP else None,
            webhook_secrets=[SECRET] if scheme is WEBHOOKS else [],
            tokens=[TOKEN],
            tasks=TaskPolicy.ANY,
        )
        return Receiver(
            url=f"http://127.0.0.1:{unused_tcp_port}",
            senders=[sender],
            database=tmp_path / "inbox.db",
        )

    return make


@pytest.mark.parametrize(("scheme", "sign"), SIGNERS)
async def test_we_verify_what_they_send(
    trusted: Callable[[Scheme], Receiver],
    aiohttp_server: AiohttpServer,
    unused_tcp_port: int,
    scheme: Scheme,
    sign: Sign,
) -> None:
    receiver = trusted(scheme)
    await aiohttp_server(receiver.app(), port=unused_tcp_port)
    url = f"{receiver.url}/a2a/push"
    headers = {
        "Content-Type": "application/a2a+json",
        "X-A2A-Token": TOKEN,
        "X-A2A-Notification-Token": TOKEN,
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(datetime.now(UTC).timestamp())),
    }
    sign(url, headers)
    async with aiohttp.ClientSession() as session:
        statuses = []
        for body in (BODY, BODY, BODY.replace(b"COMPLETED", b"CANCELED")):
            async with session.post(url, data=body, headers=headers) as answer:
                statuses.append(answer.status)
    assert statuses == [202, 200, 401]
    found = await receiver.wait("task-1", timeout=DEADLINE)
    assert (found.sender, found.state) == ("theirs", TaskState.COMPLETED)


# --- from our sender to our receiver ------------------------------------------------------------


@pytest.mark.parametrize(
    "schemes",
    [
        pytest.param((WEBHOOKS,), id="standard-webhooks"),
        pytest.param((HTTP,), id="http-message-signatures"),
        pytest.param((JWT, WEBHOOKS, HTTP), id="all"),
    ],
)
async def test_both_ends_agree(
    aiohttp_server: AiohttpServer,
    unused_tcp_port: int,
    tmp_path: Path,
    schemes: tuple[Scheme, ...],
) -> None:
    async with sending(tmp_path, options=signed_by(*schemes)) as (push, issuer):
        sender = TrustedSender(
            name="agent",
            issuer=issuer,
            jwks_url=f"{issuer}{JWKS_PATH}" if set(schemes) != {WEBHOOKS} else None,
            schemes=frozenset(schemes),
            webhook_secrets=[SECRET] if WEBHOOKS in schemes else [],
        )
        receiver = Receiver(
            url=f"http://127.0.0.1:{unused_tcp_port}",
            senders=[sender],
            database=tmp_path / "inbox.db",
            allow=["127.0.0.1:*"],
        )
        await aiohttp_server(receiver.app(), port=unused_tcp_port)
        expected = await receiver.expect(version="1.0")
        await push.subscribe("task-1", expected.as_json(), version="1.0", owner="alice")
        await push.notify(UPDATES[-1])
        notification = await receiver.wait("task-1", timeout=DEADLINE)
        await attempted(push, "task-1")
        [delivery] = await push.deliveries("task-1")
        assert (delivery.last_status, delivery.id) == (202, notification.delivery_id)
