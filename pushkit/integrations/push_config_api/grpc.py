"""The gRPC binding: the methods as servicers of the official services, A2A 1.0 §10 and 0.3.

    class Agent(PushConfigServicer):               # adds the agent's own methods
        async def SendMessage(self, request, context): ...

    add_A2AServiceServicer_to_server(Agent(api, owner=owner), server)

The services are those of a2a-sdk's generated code; install the extra `grpc`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import grpc
from a2a.compat.v0_3 import a2a_v0_3_pb2, a2a_v0_3_pb2_grpc
from a2a.types import a2a_pb2, a2a_pb2_grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.empty_pb2 import Empty
from google.protobuf.json_format import MessageToDict, ParseDict
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from pushkit.integrations.push_config_api.configs import named_by
from pushkit.integrations.push_config_api.errors import ERROR_DOMAIN, ApiError, ErrorKind

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from pushkit.bounded_json import JsonObject
    from pushkit.integrations.push_config_api.http import PushConfigApi

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
OwnerOf: TypeAlias = Callable[[Context], str | Awaitable[str | None] | None]

_M = TypeVar("_M", bound="Message")

_TASK = re.compile(r"tasks/([^/]+)")
_CONFIG = re.compile(r"tasks/([^/]+)/pushNotificationConfigs/(.+)")  # whose id may have slashes


class _Calls:
    """Passes calls to the API, and aborts those that it refuses."""

    def __init__(self, api: PushConfigApi, owner: OwnerOf) -> None:
        self._api = api
        self._owner = owner

    async def answer(
        self, method: str, request: Message, context: Context, params: JsonObject | None = None
    ) -> Any:
        """Return the result of a JSON-RPC method; its params are the request's by default."""
        if request.ByteSize() > self._api.max_body_bytes:
            await self._abort(context, self._api.too_long())
        owner = await named_by(self._owner, context)
        if owner is None:
            await self._abort(context, ApiError(ErrorKind.CALLER, "the caller is not known"))
        metadata = {name: str(value) for name, value in context.invocation_metadata() or ()}
        version = metadata.get("a2a-version")
        found: JsonObject = MessageToDict(request) if params is None else params
        try:
            return await self._api.call(method, found, owner=owner, version=version)
        except ApiError as error:
            await self._abort(context, error, owner)

    async def named(self, name: str, context: Context) -> JsonObject:
        """Return the params that a resource name of a config stands for."""
        task_id, config_id = await self.read(_CONFIG, name, context)
        return {"id": task_id, "pushNotificationConfigId": config_id}

    async def read(self, pattern: re.Pattern[str], name: str, context: Context) -> tuple[str, ...]:
        """Return the parts of a resource name."""
        found = pattern.fullmatch(name)
        if found is None:
            expected = (
                "tasks/{task}" if pattern is _TASK else "tasks/{task}/pushNotificationConfigs/{id}"
            )
            await self._abort(context, ApiError(ErrorKind.PARAMS, f"expected {expected}"))
        return found.groups()

    async def _abort(self, context: Context, error: ApiError, owner: str = "") -> NoReturn:
        """End a call with the `google.rpc.Status` of an error (1.0 §10.6)."""
        self._api.report(error, owner)
        code = grpc.StatusCode[error.kind.value.grpc_status]
        detail = AnyMessage()
        detail.Pack(ErrorInfo(reason=error.kind.value.reason, domain=ERROR_DOMAIN))
        status = Status(code=code.value[0], message=str(error), details=[detail])
        await context.abort(
            code, str(error), (("grpc-status-details-bin", status.SerializeToString()),)
        )
        raise AssertionError("abort() raises")


class PushConfigServicer(a2a_pb2_grpc.A2AServiceServicer):
    """The push-config methods of `lf.a2a.v1.A2AService`; the base class of the agent's servicer.

    Args:
        api: The API.
        owner: Returns the client of a call, by the agent's own authentication; None to answer with
            UNAUTHENTICATED. May be a coroutine function.
    """

    def __init__(self, api: PushConfigApi, *, owner: OwnerOf) -> None:
        self._calls = _Calls(api, owner)

    async def CreateTaskPushNotificationConfig(  # noqa: N802  # the service's name
        self, request: a2a_pb2.TaskPushNotificationConfig, context: Context
    ) -> a2a_pb2.TaskPushNotificationConfig:
        """Register a config, or change the one of the same id."""
        found = await self._calls.answer("CreateTaskPushNotificationConfig", request, context)
        return _read(found, a2a_pb2.TaskPushNotificationConfig())

    async def GetTaskPushNotificationConfig(  # noqa: N802
        self, request: a2a_pb2.GetTaskPushNotificationConfigRequest, context: Context
    ) -> a2a_pb2.TaskPushNotificationConfig:
        """Return a config."""
        found = await self._calls.answer("GetTaskPushNotificationConfig", request, context)
        return _read(found, a2a_pb2.TaskPushNotificationConfig())

    async def ListTaskPushNotificationConfigs(  # noqa: N802
        self, request: a2a_pb2.ListTaskPushNotificationConfigsRequest, context: Context
    ) -> a2a_pb2.ListTaskPushNotificationConfigsResponse:
        """Return a page of the caller's configs of a task."""
        found = await self._calls.answer("ListTaskPushNotificationConfigs", request, context)
        return _read(found, a2a_pb2.ListTaskPushNotificationConfigsResponse())

    async def DeleteTaskPushNotificationConfig(  # noqa: N802
        self, request: a2a_pb2.DeleteTaskPushNotificationConfigRequest, context: Context
    ) -> Empty:
        """Remove a config; one that is gone is no error."""
        await self._calls.answer("DeleteTaskPushNotificationConfig", request, context)
        return Empty()


class PushConfigServicerV03(a2a_v0_3_pb2_grpc.A2AServiceServicer):
    """The push-config methods of A2A 0.3's `a2a.v1.A2AService`, which use resource names."""

    def __init__(self, api: PushConfigApi, *, owner: OwnerOf) -> None:
        self._calls = _Calls(api, owner)

    async def CreateTaskPushNotificationConfig(  # noqa: N802
        self, request: a2a_v0_3_pb2.CreateTaskPushNotificationConfigRequest, context: Context
    ) -> a2a_v0_3_pb2.TaskPushNotificationConfig:
        """Register a config, or change the one of the same id."""
        [task_id] = await self._calls.read(_TASK, request.parent, context)
        config: JsonObject = MessageToDict(request.config.push_notification_config)
        if request.config_id:
            config["id"] = request.config_id
        params: JsonObject = {"taskId": task_id, "pushNotificationConfig": config}
        method = "tasks/pushNotificationConfig/set"
        return _written(await self._calls.answer(method, request, context, params))

    async def GetTaskPushNotificationConfig(  # noqa: N802
        self, request: a2a_v0_3_pb2.GetTaskPushNotificationConfigRequest, context: Context
    ) -> a2a_v0_3_pb2.TaskPushNotificationConfig:
        """Return a config."""
        params = await self._calls.named(request.name, context)
        method = "tasks/pushNotificationConfig/get"
        return _written(await self._calls.answer(method, request, context, params))

    async def ListTaskPushNotificationConfig(  # noqa: N802
        self, request: a2a_v0_3_pb2.ListTaskPushNotificationConfigRequest, context: Context
    ) -> a2a_v0_3_pb2.ListTaskPushNotificationConfigResponse:
        """Return all of the caller's configs of a task, on one page."""
        [task_id] = await self._calls.read(_TASK, request.parent, context)
        method = "tasks/pushNotificationConfig/list"
        found = await self._calls.answer(method, request, context, {"id": task_id})
        configs = [_written(config) for config in found]
        return a2a_v0_3_pb2.ListTaskPushNotificationConfigResponse(configs=configs)

    async def DeleteTaskPushNotificationConfig(  # noqa: N802
        self, request: a2a_v0_3_pb2.DeleteTaskPushNotificationConfigRequest, context: Context
    ) -> Empty:
        """Remove a config; one that is gone is no error."""
        params = await self._calls.named(request.name, context)
        method = "tasks/pushNotificationConfig/delete"
        await self._calls.answer(method, request, context, params)
        return Empty()


def _read(document: JsonObject, message: _M) -> _M:
    """Fill a message from a document, without extensions, for which it has no place."""
    ParseDict(document, message, ignore_unknown_fields=True)
    return message


def _written(config: JsonObject) -> a2a_v0_3_pb2.TaskPushNotificationConfig:
    own: Any = config["pushNotificationConfig"]
    return a2a_v0_3_pb2.TaskPushNotificationConfig(
        name=f"tasks/{config['taskId']}/pushNotificationConfigs/{own['id']}",
        push_notification_config=_read(own, a2a_v0_3_pb2.PushNotificationConfig()),
    )
