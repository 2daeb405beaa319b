"""Alerts of a receiver: into the log, to a command, to a webhook with a signature of its own."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from pytest_aiohttp.plugin import AiohttpServer
from tenacity import stop_after_attempt

from pushkit import AlertOptions
from pushkit.alerts import AlertCode
from pushkit.bounded_json import read_json
from pushkit.errors import ConfigError
from pushkit.scheduling.retry import RetryPolicy, wait_schedule
from pushkit.signing.standard_webhooks import (
    check_webhook_signature,
    generate_webhook_secret,
    read_unverified_webhook,
    read_verifier,
)
from pushkit.webhook import Headers
from receiver import Notification, TrustedSender
from receiver.settings import load_settings
from tests.eventually import DEADLINE, eventually
from tests.served import answering

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import WorldFactory

ONCE = RetryPolicy(wait=wait_schedule((1,)), stop=stop_after_attempt(1))


async def broken(_: Notification) -> None:
    raise ValueError("mine")


async def test_a_dead_letter_goes_to_a_webhook_with_a_signature(
    make_world: WorldFactory, aiohttp_server: AiohttpServer
) -> None:
    secret = generate_webhook_secret()
    posted: list[tuple[Headers, bytes]] = []

    async def answer(request: web.Request) -> web.Response:
        posted.append((Headers(list(request.headers.items())), await request.read()))
        return web.Response(status=503 if len(posted) == 1 else 204)

    server = await aiohttp_server(answering(answer))
    alerts = AlertOptions(webhook=str(server.make_url("/ops")), webhook_secret=secret)
    world = make_world(options={"alerts": alerts, "retry": ONCE})
    world.receiver.callbacks.add(broken)
    async with world.receiver:
        await world.receive(world.draft())

        await eventually(lambda: len(posted) == 2)
    (_, first), (headers, body) = posted
    assert first == body
    unverified = read_unverified_webhook(headers)
    check_webhook_signature(unverified, body, [read_verifier(secret)])
    said = read_json(body)
    assert isinstance(said, dict)
    assert (said["code"], said["about"]) == (AlertCode.DEAD_LETTER, "agent")


async def test_a_callback_that_hangs_is_an_alert(
    make_world: WorldFactory, caplog: pytest.LogCaptureFixture
) -> None:
    alerts = AlertOptions(log=True, look_every=timedelta(milliseconds=20))
    world = make_world(options={"alerts": alerts, "callback_timeout": timedelta(milliseconds=50)})
    release = threading.Event()

    def hang(_: Notification) -> None:
        release.wait(DEADLINE)

    world.receiver.callbacks.add(hang)
    with caplog.at_level(logging.ERROR, "pushkit.alerts"):
        async with world.receiver:
            await world.receive(world.draft())

            await eventually(lambda: "alert health_fault: callbacks: a call of" in caplog.text)
            release.set()
    assert "does not run" not in caplog.text


async def test_each_sender_without_keys_is_an_alert_of_its_own(
    make_world: WorldFactory, caplog: pytest.LogCaptureFixture
) -> None:
    more = [
        TrustedSender(
            name=name,
            issuer=f"https://{name}.example.com",
            jwks_url="http://127.0.0.1:9/jwks.json",  # nobody listens there
        )
        for name in ("billing", "travel")
    ]
    alerts = AlertOptions(log=True, look_every=timedelta(milliseconds=20))
    world = make_world(options={"alerts": alerts, "more_senders": more, "allow": ["127.0.0.1:9"]})
    with caplog.at_level(logging.ERROR, "pushkit.alerts"):
        async with world.receiver:
            await eventually(
                lambda: all(f"keys of sender {each.name}" in caplog.text for each in more)
            )


async def test_a_fault_of_the_receivers_database_goes_into_the_log_and_not_to_its_webhook(
    make_world: WorldFactory, aiohttp_server: AiohttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    posted: list[object] = []

    async def answer(request: web.Request) -> web.Response:
        posted.append((await request.json())["about"])
        return web.Response()

    server = await aiohttp_server(answering(answer))
    alerts = AlertOptions(
        webhook=str(server.make_url("/ops")),
        webhook_secret=generate_webhook_secret(),
        look_every=timedelta(milliseconds=20),
    )
    world = make_world(options={"alerts": alerts})
    with caplog.at_level(logging.ERROR, "pushkit.alerts"):
        async with world.receiver:
            with contextlib.closing(sqlite3.connect(world.database)) as connection:
                connection.execute("DROP TABLE pushkit_inbox")

            await eventually(lambda: "alert health_fault: storage:" in caplog.text)
    assert "storage" not in posted


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("", "expected log, command or webhook"),
        ('webhook = "https://ops.example.com/"', "expected webhook and webhook_secret_file"),
        ('command = ["./nowhere"]', "no such program"),
    ],
)
def test_a_table_of_alerts_that_sends_nothing_is_refused(
    tmp_path: Path, table: str, says: str
) -> None:
    (tmp_path / "jwks.json").write_text('{"keys": []}')
    path = tmp_path / "receiver.toml"
    path.write_text(
        'url = "https://client.example.com"\n[[senders]]\nname = "agent"\n'
        'issuer = "https://agent.example.com"\njwks_url = "https://agent.example.com/jwks"\n'
        f"[alerts]\n{table}\n"
    )
    with pytest.raises(ConfigError, match=says):
        load_settings(path).build()
