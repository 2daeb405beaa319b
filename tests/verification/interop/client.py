"""What a client asks of an agent, written by hand for each binding and version of A2A."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

import aiohttp
import grpc
from a2a.compat.v0_3 import a2a_v0_3_pb2, a2a_v0_3_pb2_grpc
from a2a.types import a2a_pb2, a2a_pb2_grpc

from pushkit.bounded_json import JsonObject
from tests.verification.interop.processes import PATIENCE, MismatchError

__all__ = ["CONFIG_ID", "Client"]

CONFIG_ID = "config-1"
_TIMEOUT = aiohttp.ClientTimeout(total=PATIENCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client of one agent.

    Attributes:
        url: The agent's, for JSON-RPC; those of HTTP+JSON are below it.
        version: The A2A version to speak.
        grpc: Host and port, for gRPC.
    """

    url: str
    version: str
    grpc: str = ""

    async def send(self, text: str, *, stream: bool = False, **details: Any) -> JsonObject:
        """Send a message by JSON-RPC; return the task, or the last event of the stream.

        Args:
            text: What it says.
            stream: Whether it is sent for a stream, which is read to its end.
            details: See `message`.
        """
        found = await self._call(*self.message(text, stream=stream, **details))
        return found if stream or self.version == "0.3" else found["task"]  # type: ignore[return-value]

    def message(
        self,
        text: str,
        *,
        stream: bool = False,
        task: JsonObject | None = None,
        config: JsonObject | None = None,
        early: bool = False,
    ) -> tuple[str, JsonObject]:
        """Return the method and the parameters of a message.

        Args:
            text: What it says.
            stream: Whether it is sent for a stream.
            task: The task that it is about; None: it begins one.
            config: The push config that comes with it.
            early: Whether the answer is wanted before the task ends.
        """
        message = self._message(text)
        if task is not None:
            names = {"taskId": "id", "contextId": "contextId"}
            message |= {name: task[of] for name, of in names.items() if of in task}
        configuration: JsonObject = {}
        params: JsonObject = {"message": message, "configuration": configuration}
        if self.version == "1.0":
            if config is not None:
                configuration["taskPushNotificationConfig"] = config
            if early:
                configuration["returnImmediately"] = True
            return "SendStreamingMessage" if stream else "SendMessage", params
        configuration |= {"acceptedOutputModes": ["text/plain"], "blocking": not early}
        if config is not None:
            configuration["pushNotificationConfig"] = config
        return "message/stream" if stream else "message/send", params

    async def task(self, task_id: str) -> JsonObject:
        """Return a task, by JSON-RPC."""
        method = "GetTask" if self.version == "1.0" else "tasks/get"
        return await self._call(method, {"id": task_id})

    def _message(self, text: str) -> JsonObject:
        message_id = uuid.uuid4().hex
        if self.version == "1.0":
            return {"messageId": message_id, "role": "ROLE_USER", "parts": [{"text": text}]}
        return {
            "kind": "message",
            "messageId": message_id,
            "role": "user",
            "parts": [{"kind": "text", "text": text}],
        }

    async def register(self, binding: str, task_id: str, hook: str, token: str) -> str:
        """Register a webhook for a task; read the config back, and return the URL in it."""
        if binding == "gRPC":
            async with grpc.aio.insecure_channel(self.grpc) as channel:
                by_grpc = _grpc_1_0 if self.version == "1.0" else _grpc_0_3
                return await by_grpc(channel, task_id, hook, token)
        config: JsonObject = {"id": CONFIG_ID, "url": hook, "token": token}
        if binding == "HTTP+JSON":
            found = await self._by_http(task_id, config)
        elif self.version == "1.0":
            named: JsonObject = {"taskId": task_id, "id": CONFIG_ID}
            await self._call("CreateTaskPushNotificationConfig", {**config, **named})
            found = await self._call("GetTaskPushNotificationConfig", named)
        else:
            method = "tasks/pushNotificationConfig"
            await self._call(f"{method}/set", {"taskId": task_id, "pushNotificationConfig": config})
            found = await self._call(
                f"{method}/get", {"id": task_id, "pushNotificationConfigId": CONFIG_ID}
            )
        return str(found.get("pushNotificationConfig", found)["url"])  # type: ignore[call-overload,index]

    async def _by_http(self, task_id: str, config: JsonObject) -> JsonObject:
        root = self.url.rstrip("/") + ("" if self.version == "1.0" else "/v1")
        url = f"{root}/tasks/{task_id}/pushNotificationConfigs"
        body = config
        if self.version == "0.3":
            name = f"tasks/{task_id}/pushNotificationConfigs/{CONFIG_ID}"
            body = {
                "parent": f"tasks/{task_id}",
                "configId": CONFIG_ID,
                "config": {"name": name, "pushNotificationConfig": config},
            }
        await self._ask("POST", url, body)
        return await self._ask("GET", f"{url}/{CONFIG_ID}")

    async def _call(self, method: str, params: JsonObject) -> JsonObject:
        call: JsonObject = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        found = await self._ask("POST", self.url, call)
        if "error" in found:
            raise MismatchError(f"the agent refused: {json.dumps(found['error'])[:200]}")
        return found.get("result", {})  # type: ignore[return-value]

    async def _ask(self, method: str, url: str, body: JsonObject | None = None) -> JsonObject:
        headers = {"A2A-Version": "1.0"} if self.version == "1.0" else {}
        async with (
            aiohttp.ClientSession(headers=headers, timeout=_TIMEOUT) as session,
            session.request(method, url, json=body) as answer,
        ):
            text = await answer.text()
        if answer.status >= 300:
            raise MismatchError(f"{method} {url} was answered {answer.status}: {text[:200]}")
        last = [line for line in text.splitlines() if line.startswith("data:")][-1:]  # of a stream
        found: JsonObject = json.loads(last[0].removeprefix("data:") if last else text)
        return found


async def _grpc_1_0(channel: grpc.aio.Channel, task_id: str, hook: str, token: str) -> str:
    stub = a2a_pb2_grpc.A2AServiceStub(channel)
    version = [("a2a-version", "1.0")]
    config = a2a_pb2.TaskPushNotificationConfig(
        task_id=task_id, id=CONFIG_ID, url=hook, token=token
    )
    await stub.CreateTaskPushNotificationConfig(config, metadata=version)
    named = a2a_pb2.GetTaskPushNotificationConfigRequest(task_id=task_id, id=CONFIG_ID)
    found = await stub.GetTaskPushNotificationConfig(named, metadata=version)
    return str(found.url)


async def _grpc_0_3(channel: grpc.aio.Channel, task_id: str, hook: str, token: str) -> str:
    stub = a2a_v0_3_pb2_grpc.A2AServiceStub(channel)
    parent = f"tasks/{task_id}"
    name = f"{parent}/pushNotificationConfigs/{CONFIG_ID}"
    config = a2a_v0_3_pb2.PushNotificationConfig(id=CONFIG_ID, url=hook, token=token)
    await stub.CreateTaskPushNotificationConfig(
        a2a_v0_3_pb2.CreateTaskPushNotificationConfigRequest(
            parent=parent,
            config_id=CONFIG_ID,
            config=a2a_v0_3_pb2.TaskPushNotificationConfig(
                name=name, push_notification_config=config
            ),
        )
    )
    found = await stub.GetTaskPushNotificationConfig(
        a2a_v0_3_pb2.GetTaskPushNotificationConfigRequest(name=name)
    )
    return str(found.push_notification_config.url)
