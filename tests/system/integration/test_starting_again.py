"""Objects at module level that are opened and closed again and again, each time in another loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from a2a.server.tasks import InMemoryTaskStore
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from pushkit import KeyRing, PushSender, SenderOptions, StatusUpdate, TaskState, TaskStatus
from pushkit.alerts import AlertOptions
from pushkit.bounded_json import JsonValue
from pushkit.cards import CardPublisher
from pushkit.clock import utc_now
from pushkit.errors import SigningError
from pushkit.integrations.a2a_sdk import PushkitNotificationSender
from pushkit.integrations.asgi import CardApp, JwksApp, MetricsApp
from pushkit.integrations.push_config_api import PushConfigApi, PushConfigAsgi
from pushkit.keys.jwk import Algorithm, generate_key, public_jwk
from receiver import Notification, Receiver, TaskPolicy, TrustedSender
from receiver.testing import SigningAgent
from tests.eventually import eventually, eventually_sync
from tests.system.cli.conftest import Webhook, webhook

__all__ = ["webhook"]

ISSUER = "https://agent.example.com"
UPDATE = StatusUpdate(task_id="task-1", context_id="c", status=TaskStatus(state=TaskState.WORKING))
CARD: dict[str, JsonValue] = {"name": "agent", "version": "1", "url": ISSUER}
RING = KeyRing.create(datetime(2026, 1, 1, tzinfo=UTC))


def has(found: Sequence[object], number: int) -> bool:
    return len(found) == number


def sender_over(database: str, **options: Any) -> PushSender:
    return PushSender(
        issuer=ISSUER,
        keys=RING,
        database=database,
        allow=["127.0.0.1:*"],
        options=SenderOptions(**options),
    )


@pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")
def test_an_application_with_everything_at_module_level_runs_again(
    location: str, webhook: Webhook
) -> None:
    from starlette.testclient import TestClient

    push = sender_over(location, alerts=AlertOptions(log=True))
    notifications = PushkitNotificationSender(push, task_store=InMemoryTaskStore())
    api = PushConfigApi(push, task_exists=lambda _caller, _task: True)

    async def notify(_: Request) -> JSONResponse:
        return JSONResponse(list((await push.notify(UPDATE)).ids))

    @contextlib.asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        async with push, notifications:
            yield

    app = Starlette(
        routes=[
            Route("/notify", notify, methods=["POST"]),
            Route("/jwks", JwksApp(push)),
            Route("/card", CardApp(CardPublisher(CARD, RING))),
            Route("/metrics", MetricsApp(push)),
            Mount("/a2a", PushConfigAsgi(api, owner=lambda _: "alice")),
        ],
        lifespan=lifespan,
    )
    config = {"id": "1", "url": webhook.url}
    for run in (1, 2, 3):
        with TestClient(app) as client:
            registered = client.post("/a2a/tasks/task-1/pushNotificationConfigs", json=config)
            assert registered.status_code == 200, registered.text
            for path in ("/jwks", "/card", "/metrics"):
                assert client.get(path).status_code == 200
            assert len(client.post("/notify").json()) == 1
            eventually_sync(partial(has, webhook.requests, run))
    assert len({request.header("webhook-id") for request in webhook.requests}) == 3


@pytest.mark.parametrize("opens", [True, False], ids=["opened", "opened by its first call"])
def test_a_sender_is_closed_and_opened_in_one_loop_after_another(
    location: str, webhook: Webhook, *, opens: bool
) -> None:
    push = sender_over(location)

    async def run(number: int) -> None:
        for each in (2 * number + 1, 2 * number + 2):
            if opens or each > 1:
                await push.start()
            await push.subscribe("task-1", {"url": webhook.url}, version="1.0")
            await push.notify(UPDATE)
            await eventually(partial(has, webhook.requests, each))
            await push.close()

    for number in (0, 1):
        asyncio.run(run(number))


def test_a_receiver_and_its_agent_are_used_in_one_loop_after_another(
    location: str, webhook: Webhook
) -> None:
    agent = SigningAgent(webhook_url="https://client.example.com/a2a/push", issuer=ISSUER)
    webhook.document = json.dumps(agent.jwks()).encode()
    trusted = TrustedSender(
        name="agent",
        issuer=ISSUER,
        jwks_url=f"{webhook.origin}/jwks",
        tokens=[agent.token],
        tasks=TaskPolicy.ANY,
    )
    receiver = Receiver(
        url="https://client.example.com",
        senders=[trusted],
        database=location,
        allow=["127.0.0.1:*"],
        alerts=AlertOptions(log=True),
    )
    called: list[int] = []

    @receiver.on_update
    async def note(notification: Notification) -> None:
        called.append(notification.id)

    async def run(number: int) -> None:
        for each in (2 * number + 1, 2 * number + 2):
            async with receiver:
                draft = agent.draft("task-1")
                assert (await receiver.receive(draft.request(), path="/a2a/push")).status == 202
                await eventually(partial(has, called, each))

    for number in (0, 1):
        asyncio.run(run(number))


def test_a_card_is_signed_in_one_loop_after_another() -> None:
    class Failing:
        public_jwk: Mapping[str, JsonValue] = public_jwk(generate_key(Algorithm.ES256))

        async def sign(self, _: bytes) -> bytes:
            await asyncio.sleep(0)
            raise SigningError("the service is away")

    publisher = CardPublisher(CARD, Failing())

    async def run(now: datetime) -> list[object]:
        calls = (publisher.signed(now) for _ in range(3))
        return await asyncio.gather(*calls, return_exceptions=True)

    for seconds in (0, 60):
        failures = asyncio.run(run(utc_now() + timedelta(seconds=seconds)))
        assert [type(each) for each in failures] == [SigningError] * 3
