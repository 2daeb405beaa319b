"""The page's example runs as it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_aiohttp.plugin import AiohttpClient

from pushkit import PushSender

PAGE = Path(__file__).parents[4] / "docs" / "push-config-api.md"


async def test_the_aiohttp_example(aiohttp_client: AiohttpClient, sender: PushSender) -> None:
    example = PAGE.read_text("utf-8").split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(compile(example, str(PAGE), "exec"), names)  # noqa: S102  # the page's own code
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
