"""The HTTP+JSON routes of A2A 1.0 (§11.3).

`/tasks/{id}/pushNotificationConfigs` and `/tasks/{id}/pushNotificationConfigs/{id}`, each also
below the name of a tenant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pushkit.a2a import WireVersion, format_push_config, parse_push_config
from pushkit.bounded_json import JsonObject, JsonValue, read_json
from pushkit.errors import InvalidPushConfigError, MalformedJsonError
from pushkit.integrations.push_config_api.configs import Caller, Configs
from pushkit.integrations.push_config_api.errors import ApiError, ErrorKind
from pushkit.integrations.push_config_api.members import (
    check_version,
    number,
    optional_text,
    written,
)

V1_0 = WireVersion.V1_0


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What a path names."""

    tenant: str
    task_id: str
    config_id: str | None

    @property
    def methods(self) -> tuple[str, ...]:
        """The HTTP methods that it has."""
        return ("GET", "POST") if self.config_id is None else ("GET", "DELETE")


def route_of(segments: Sequence[str]) -> Route | None:
    """Return what the decoded segments of a path name; None: nothing of this API."""
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
    version_header: str | None = None,
) -> JsonObject:
    """Answer a request of a method that its route has.

    Raises:
        ApiError: It is refused.
    """
    check_version(version_header, V1_0)
    caller = Caller(owner=owner, tenant=_tenant(route, query))
    if method == "POST":
        return await _create(configs, caller, route, body)
    if route.config_id is None:
        page = await configs.page(
            caller,
            route.task_id,
            size=number(query, "pageSize"),
            token=optional_text(query, "pageToken") or "",
        )
        return written(page)
    if method == "DELETE":
        await configs.remove(caller, route.task_id, route.config_id)
        return {}
    config = await configs.get(caller, route.task_id, route.config_id)
    if config is None:
        raise ApiError(ErrorKind.TASK, "the task has no such push config of yours")
    return format_push_config(config, V1_0)


def _tenant(route: Route, query: Mapping[str, JsonValue]) -> str:
    # Two readings of whose call it is are an attack on what stands before this API.
    tenant = optional_text(query, "tenant") or ""
    if tenant and route.tenant and tenant != route.tenant:
        raise ApiError(ErrorKind.PARAMS, "tenant: expected the tenant of the path")
    return route.tenant or tenant


async def _create(configs: Configs, caller: Caller, route: Route, body: bytes) -> JsonObject:
    try:
        document = read_json(body)
    except MalformedJsonError as exc:
        raise ApiError(ErrorKind.PARSE, str(exc)) from exc
    if not isinstance(document, dict):
        raise ApiError(ErrorKind.PARAMS, "expected a TaskPushNotificationConfig, an object")
    try:
        config = parse_push_config(document, V1_0)
    except InvalidPushConfigError as exc:
        raise ApiError(ErrorKind.PARAMS, str(exc)) from exc
    if config.task_id not in (None, route.task_id):
        raise ApiError(ErrorKind.PARAMS, "taskId: expected the task of the path")
    if config.tenant is not None and caller.tenant and config.tenant != caller.tenant:
        raise ApiError(ErrorKind.PARAMS, "tenant: expected the tenant of the path or the query")
    named = Caller(owner=caller.owner, tenant=caller.tenant or config.tenant or "")
    stored = await configs.put(named, route.task_id, config, V1_0)
    return format_push_config(stored, V1_0)
