"""The metrics of a sender, parsed as Prometheus parses them."""

from __future__ import annotations

import socket
import subprocess
import sys
from datetime import timedelta

import aiohttp
import httpx
import pytest
from aiohttp import web
from pytest_aiohttp.plugin import AiohttpClient, AiohttpServer

from pushkit import BreakerPolicy, PushSender
from pushkit.integrations.aiohttp import health_route, metrics_route
from pushkit.integrations.asgi import HealthApp, MetricsApp
from pushkit.telemetry.endpoints import readiness, serving_operators
from tests.clock import Clock
from tests.metrics_page import MetricsRead
from tests.unit.pushkit.delivery.conftest import Senders, Webhook, enqueue, status


async def read(sender: PushSender) -> MetricsRead:
    return MetricsRead.of((await sender.metrics.page()).body)


async def test_attempts_are_counted_by_outcome_and_latency_starts_at_notify(
    sender: PushSender, webhook: Webhook, clock: Clock
) -> None:
    assert (await read(sender)).value("pushkit_attempt_seconds_count") == 0
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0", owner="alice")
    webhook.replies_with(503)
    await sender.notify(status())
    await sender.worker.run_once()
    clock.advance(7)
    await sender.worker.run_once()
    webhook.replies_with(400)
    await sender.notify(status())
    await sender.worker.run_once()

    found = await read(sender)
    origin = webhook.base
    for code in ("status_503", "ok", "rejected"):
        assert found.value("pushkit_attempts_total", origin=origin, code=code) == 1
    assert found.value("pushkit_enqueued_total") == 2
    assert found.value("pushkit_dead_letters_total", code="rejected") == 1
    assert found.value("pushkit_delivery_latency_seconds_count") == 1
    assert found.value("pushkit_delivery_latency_seconds_sum") == 7
    assert found.value("pushkit_subscription_changes_total", change="registered") == 1
    assert found.value("pushkit_slots", state="in_use") == 0
    assert found.value("pushkit_slots", state="free") == 256


async def test_one_webhook_cannot_use_up_the_codes_of_others(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open(breaker=BreakerPolicy(failures=1000))
    await read(sender)
    for number, code in enumerate([*range(500, 560), 400]):
        task, owner = f"task-{number}", f"owner-{number}"
        await sender.subscribe(task, {"url": webhook.url()}, version="1.0", owner=owner)
        webhook.replies_with(code)
        await sender.notify(status(task_id=task))
        await sender.worker.run_once()
    found = await read(sender)
    assert found.value("pushkit_dead_letters_total", code="rejected") == 1
    assert found.value("pushkit_attempts_total", origin=webhook.base, code="other") == 10


async def test_the_backlog_is_read_from_the_database(
    senders: Senders, webhook: Webhook, clock: Clock
) -> None:
    sender = await senders.open(breaker=BreakerPolicy(failures=1))
    for task in ("task-1", "task-2", "task-3"):
        await enqueue(sender, webhook.url(f"/{task}"), task, owner=task)
    await sender.pause("task-2", owner="task-2")
    clock.advance(60)
    found = await read(sender)
    assert found.value("pushkit_deliveries", state="pending") == 3
    assert found.value("pushkit_oldest_due_seconds") == 60
    assert found.value("pushkit_subscriptions", state="active") == 2
    assert found.value("pushkit_subscriptions", state="paused") == 1
    assert found.value("pushkit_database_up") == 1


async def test_a_delivery_behind_an_open_breaker_is_not_due(
    senders: Senders, webhook: Webhook, clock: Clock
) -> None:
    sender = await senders.open(breaker=BreakerPolicy(failures=1))
    assert sender.metrics
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0")
    webhook.replies_with(500)
    await sender.notify(status())
    await sender.worker.run_once()
    clock.advance(20)  # the retry is due, but the breaker is still open
    found = await read(sender)
    assert found.value("pushkit_oldest_due_seconds") == 0
    assert found.value("pushkit_breakers", state="open") == 1
    assert found.value("pushkit_breakers", state="half_open") == 0
    origin = webhook.base
    assert found.value("pushkit_breaker_changes_total", origin=origin, state="open") == 1


async def test_metrics_show_the_age_of_keys_and_the_next_rotation(
    senders: Senders, clock: Clock
) -> None:
    from tests.unit.pushkit.delivery.conftest import key_ring

    sender = await senders.open(keys=key_ring().rotate(clock.now))
    found = await read(sender)
    lead = key_ring().activation_lead.total_seconds()
    assert found.value("pushkit_signing_key_rotation_seconds", algorithm="ES256") == lead
    assert found.value("pushkit_signing_key_rotation_seconds", algorithm="RS256") is None
    assert found.labels("pushkit_signing_key_age_seconds", "state") == {"active", "pending"}
    [kid] = [key.kid for key in key_ring().keys if key.algorithm.value == "ES256"]
    age = found.value("pushkit_signing_key_age_seconds", algorithm="ES256", kid=kid, state="active")
    assert age == timedelta(days=1).total_seconds()


async def test_no_label_names_a_task_or_an_owner(sender: PushSender, webhook: Webhook) -> None:
    page = sender.metrics
    await sender.subscribe("task-canary", {"url": webhook.url("/canary")}, version="1.0", owner="c")
    webhook.replies_with(400, path="/canary")
    await sender.notify(status(task_id="task-canary"))
    await sender.worker.run_once()
    body = (await page.page()).body
    assert b"pushkit_attempts_total" in body
    assert b"canary" not in body


async def test_metrics_without_a_database_show_the_rest_of_the_page(sender: PushSender) -> None:
    assert sender.metrics
    await enqueue(sender, "https://client.example.com/")
    await sender._database.close()
    found = await read(sender)
    assert found.value("pushkit_database_up") == 0
    assert found.value("pushkit_enqueued_total") == 1
    assert found.labels("pushkit_signing_key_age_seconds", "state") == {"active"}
    assert found.value("pushkit_deliveries", state="pending") is None


async def test_an_agent_serves_metrics_on_its_own_route(
    sender: PushSender, aiohttp_server: AiohttpServer
) -> None:
    app = web.Application()
    app.add_routes([metrics_route(sender)])
    server = await aiohttp_server(app)
    async with aiohttp.ClientSession() as session, session.get(server.make_url("/metrics")) as got:
        assert got.status == 200
        assert got.headers["Content-Type"].startswith("text/plain; version=")
        assert MetricsRead.of(await got.read()).value("pushkit_database_up") == 1
    transport = httpx.ASGITransport(MetricsApp(sender))
    async with httpx.AsyncClient(transport=transport, base_url="http://agent") as client:
        assert MetricsRead.of((await client.get("/")).content).value("pushkit_database_up") == 1
        assert (await client.post("/")).status_code == 405


@pytest.mark.parametrize("framework", ["aiohttp", "asgi"])
async def test_an_agent_serves_the_health_of_its_sender(
    aiohttp_client: AiohttpClient, senders: Senders, framework: str
) -> None:
    sender = senders.new()
    app = web.Application()
    app.add_routes([health_route(sender)])
    client = await aiohttp_client(app)
    transport = httpx.ASGITransport(HealthApp(sender))

    async def health() -> tuple[int, str]:
        if framework == "aiohttp":
            async with client.get("/readyz") as answer:
                return answer.status, await answer.text()
        async with httpx.AsyncClient(transport=transport, base_url="http://agent") as asgi:
            got = await asgi.get("/readyz")
            return got.status_code, got.text

    status_, text = await health()
    assert (status_, text.partition("\n")[0]) == (503, "not ready")
    await sender.open()  # to store only
    assert await health() == (200, "ready\n")
    await sender.start()
    assert await health() == (200, "ready\n")
    await sender.close()
    status_, text = await health()
    assert status_ == 503
    assert "worker: it does not run\n" in text


def test_readyz_escapes_a_file_name_that_is_not_utf_8() -> None:
    page = readiness({"storage": "storage: /var/\udcff.db: it is gone"})
    assert (page.status, page.body) == (503, b"not ready\nstorage: /var/\\udcff.db: it is gone\n")


async def test_an_error_of_readyz_is_logged_once(
    sender: PushSender, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unready() -> dict[str, str]:
        raise RuntimeError("a key source of an application's own")

    monkeypatch.setattr(sender, "unready", unready)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        async with serving_operators(sender, [listening]), aiohttp.ClientSession() as client:
            for _ in range(3):
                async with client.get(f"http://127.0.0.1:{port}/readyz") as answer:
                    assert (answer.status, await answer.text()) == (
                        500,
                        "internal error: see the log\n",
                    )
    assert caplog.messages.count("/readyz failed") == 1
    assert "a key source of an application's own" in caplog.text


@pytest.mark.slow
def test_without_metrics_their_library_is_not_loaded() -> None:
    loads = (
        "import sys, pushkit.delivery.sender, receiver.receiver, pushkit.cli.worker;"
        "print('prometheus_client' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True, check=True)  # noqa: S603  # our own interpreter
    assert ran.stdout.strip() == "False"
