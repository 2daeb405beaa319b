"""The HTTP+JSON routes of A2A 1.0 (§11.3).

They are `/tasks/{id}/pushNotificationConfigs` and `/tasks/{id}/pushNotificationConfigs/{id}`, each
also with a tenant as its first segment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pushkit.a2a import WireVersion
from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.integrations.push_config_api.configs import Configs
from pushkit.integrations.push_config_api.errors import ApiError, ErrorKind
from pushkit.integrations.push_config_api.members import (
    check_version,
    number,
    optional_text,
    read_object,
)

V1_0 = WireVersion.V1_0


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The task and the config that a path names."""

    tenant: str
    task_id: str
    config_id: str | None

    @property
    def methods(self) -> tuple[str, ...]:
        """The allowed HTTP methods."""
        return ("GET", "POST") if self.config_id is None else ("GET", "DELETE")


def route_of(segments: Sequence[str]) -> Route | None:
    """Return the route of a path's decoded segments; None if it is not one of this API."""
    match tuple(segments):
        case ("tasks", task_id, "pushNotificationConfigs"):
            return Route(tenant="", task_id=task_id, config_id=None)
        case ("tasks", task_id, "pushNotificationConfigs", config_id):
            return Route(tenant="", task_id=task_id, config_id=config_id)
        case (tenant, "tasks", task_id, "pushNotificationConfigs"):
            return Route(tenant=tenant, task_id=task_id, config_id=None)
        case (tenant, "tasks", task_id, "pushNotificationConfigs", config_id):
            return Route(tenant=tenant, task_id=task_id, config_id=config_id)
    return None


async def answer_http_json(
    configs: Configs,
    owner: str,
    method: str,
    route: Route,
    *,
    query: Mapping[str, JsonValue],
    body: bytes,
    version: str | None,
) -> JsonObject:
    """Answer a request as its JSON-RPC method. Raises ApiError if it is refused."""
    check_version(version, V1_0)
    # A request with two tenants attacks a proxy that checked only the other one.
    tenant = _the_same("tenant", route.tenant, query, "the tenant of the path")
    params: JsonObject = {"taskId": route.task_id}
    if method == "POST":
        params = read_object(body, "a TaskPushNotificationConfig", ErrorKind.PARAMS)
        tenant = _the_same("tenant", tenant, params, "the tenant of the path or the query")
        task_id = _the_same("taskId", route.task_id, params, "the task of the path")
        params = {name: value for name, value in params.items() if name != "task_id"}
        params["taskId"] = task_id
    elif route.config_id is None:
        params["pageSize"] = number(query, "pageSize")
        params["pageToken"] = optional_text(query, "pageToken")
    else:
        params["id"] = route.config_id
    name = _METHODS[method, route.config_id is not None]
    params["tenant"] = tenant
    found = await configs.call(name, params, owner=owner, version=version)
    return found if isinstance(found, dict) else {}


# By the HTTP method, and whether the path names a config.
_METHODS = {
    ("POST", False): "CreateTaskPushNotificationConfig",
    ("GET", False): "ListTaskPushNotificationConfigs",
    ("GET", True): "GetTaskPushNotificationConfig",
    ("DELETE", True): "DeleteTaskPushNotificationConfig",
}


def _the_same(name: str, known: str, members: Mapping[str, JsonValue], expected: str) -> str:
    """Return the known value, or that of the member; if there are both, they must be equal."""
    value = optional_text(members, name) or ""
    if value and known and value != known:
        raise ApiError(ErrorKind.PARAMS, f"{name}: expected {expected}")
    return known or value
