"""The client of a2a-sdk 1.x registers push configs, and says what it got.

python configs_1_x.py configs --url URL --binding JSONRPC --version 1.0 --hook URL
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable
from typing import Any

from a2a.client import ClientConfig, ClientFactory
from a2a.types import a2a_pb2
from a2a.utils.errors import TaskNotFoundError
from google.protobuf.json_format import MessageToDict


async def configs(url: str, binding: str, version: str, hook: str) -> dict[str, Any]:
    interface = a2a_pb2.AgentInterface(url=url, protocol_binding=binding, protocol_version=version)
    card = a2a_pb2.AgentCard(
        name="agent",
        supported_interfaces=[interface],
        capabilities=a2a_pb2.AgentCapabilities(push_notifications=True),
    )
    client = ClientFactory(ClientConfig(supported_protocol_bindings=[binding])).create(card)

    async def create(config_id: str, task_id: str) -> Any:
        config = a2a_pb2.TaskPushNotificationConfig(
            id=config_id,
            task_id=task_id,
            url=hook,
            token="tok-interop-1",
            authentication=a2a_pb2.AuthenticationInfo(
                scheme="Bearer", credentials="cred-interop-1"
            ),
        )
        return MessageToDict(await client.create_task_push_notification_config(config))

    async def read() -> Any:
        named = a2a_pb2.GetTaskPushNotificationConfigRequest(task_id="task-1", id="gone")
        return MessageToDict(await client.get_task_push_notification_config(named))

    async def listed() -> list[Any]:
        named = a2a_pb2.ListTaskPushNotificationConfigsRequest(task_id="task-1")
        found = await client.list_task_push_notification_configs(named)
        return [MessageToDict(each) for each in found.configs]

    async def not_found(call: Awaitable[Any]) -> bool:
        try:
            await call
        except TaskNotFoundError:
            return True
        return False

    created = [await create("kept", "task-1"), await create("gone", "task-1")]
    said = {"created": created, "read": await read(), "before": await listed()}
    await client.delete_task_push_notification_config(
        a2a_pb2.DeleteTaskPushNotificationConfigRequest(task_id="task-1", id="gone")
    )
    missing, foreign = await not_found(read()), await not_found(create("c", "nobodys"))
    return {**said, "after": await listed(), "missing": missing, "foreign": foreign}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["configs"])
    for name in ("url", "binding", "version", "hook"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    answer = asyncio.run(configs(given.url, given.binding, given.version, given.hook))
    print(json.dumps(answer))  # noqa: T201
