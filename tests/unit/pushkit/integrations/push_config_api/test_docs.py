"""The page's examples run as they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import httpx
from a2a.types import a2a_pb2, a2a_pb2_grpc
from pytest_aiohttp.plugin import AiohttpClient

from pushkit import PushSender
from pushkit.integrations.push_config_api import PushConfigApi

PAGE = Path(__file__).parents[5] / "docs" / "push-config-api.md"


def names_of(definition: str) -> dict[str, Any]:
    """Run the example that has a definition; return its names."""
    examples = [part.split("```")[0] for part in PAGE.read_text("utf-8").split("```python\n")[1:]]
    [example] = [example for example in examples if definition in example]
    names: dict[str, Any] = {}
    exec(compile(example, str(PAGE), "exec"), names)  # noqa: S102  # the page's own code
    return names


async def test_the_grpc_example(api: PushConfigApi, sender: PushSender) -> None:
    server = names_of("def make_server")["make_server"](api, {"secret": "alice"})
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await a2a_pb2_grpc.A2AServiceStub(channel).CreateTaskPushNotificationConfig(
            a2a_pb2.TaskPushNotificationConfig(
                task_id="task-1", url="https://client.example.com/hook"
            ),
            metadata=[("authorization", "Bearer secret")],
        )
    await server.stop(None)
    assert len(await sender.subscriptions("task-1", owner="alice")) == 1


async def test_the_aiohttp_example(aiohttp_client: AiohttpClient, sender: PushSender) -> None:
    names = names_of("def make_app")
    app = names["make_app"](sender, {"task-1": "alice"}, {"secret": "alice"})
    client = await aiohttp_client(app)
    config = {"taskId": "task-1", "url": "https://client.example.com/hook"}
    request = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "CreateTaskPushNotificationConfig",
        "params": config,
    }
    for token, status in (("secret", 200), ("guess", 401)):
        answer = await client.post(
            "/a2a", json=request, headers={"Authorization": f"Bearer {token}"}
        )
        assert answer.status == status
    assert len(await sender.subscriptions("task-1", owner="alice")) == 1
    assert (await client.get("/.well-known/jwks.json")).status == 200


async def test_the_asgi_example(api: PushConfigApi, sender: PushSender) -> None:
    app = names_of("def make_asgi")["make_asgi"](api, sender, {"secret": "alice"})
    config = {"url": "https://client.example.com/hook"}
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://agent") as client:
        for token, status in (("secret", 200), ("guess", 401)):
            answer = await client.post(
                "/a2a/tasks/task-1/pushNotificationConfigs",
                json=config,
                headers={"Authorization": f"Bearer {token}"},
            )
            assert answer.status_code == status
        assert (await client.get("/.well-known/jwks.json")).status_code == 200
    assert len(await sender.subscriptions("task-1", owner="alice")) == 1
