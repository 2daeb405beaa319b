"""`docs/vectors/extensions.json`, played against the API."""

from __future__ import annotations

import json
from pathlib import Path

from pushkit import PushSender, Task, TaskState, TaskStatus
from pushkit.integrations.push_config_api import Caller, PushConfigApi
from tests.clock import Clock
from tests.unit.pushkit.delivery.conftest import Webhook, deliver_due
from tests.unit.pushkit.integrations.push_config_api.test_delivery_state import (
    notify,
    sender,
    subscribe,
)

__all__ = ["sender"]  # a fixture

VECTORS = Path(__file__).parents[5] / "docs" / "vectors" / "extensions.json"


async def task_of(_: Caller, task_id: str) -> Task:
    return Task(id=task_id, context_id="c-1", status=TaskStatus(state=TaskState.WORKING))


async def test_every_vector_is_answered_as_it_says(
    sender: PushSender,
    webhook: Webhook,
    clock: Clock,
) -> None:
    api = PushConfigApi(sender, task_exists=None, snapshot=task_of)
    await subscribe(sender, webhook)
    webhook.replies_with(200, 422, 200, 503)
    for minute in range(4):
        clock.advance(60 if minute else 0)
        await notify(sender, "working")
        await deliver_due(sender)

    for vector in json.loads(VECTORS.read_bytes())["vectors"]:
        request = {"jsonrpc": "2.0", "id": 1, "method": vector["method"]}
        body = json.dumps(request | {"params": vector["params"]}).encode()
        answer = await api.json_rpc(body, owner="alice")
        assert answer is not None
        error = answer.get("error")
        code = error["code"] if isinstance(error, dict) else None
        assert (answer.get("result"), code) == (vector.get("result"), vector.get("error")), vector
