"""The HTTP+JSON routes of A2A 1.0."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from pushkit import PushSender
from pushkit.integrations.push_config_api import PushConfigApi, PushConfigAsgi
from tests.asgi_server import answers_to_a_websocket
from tests.unit.pushkit.integrations.push_config_api.conftest import Server, without_push

URL = "https://client.example.com/hook"
CONFIGS = "/tasks/task-1/pushNotificationConfigs"


def body(document: object) -> bytes:
    return json.dumps(document).encode()


async def test_creates_gets_lists_and_deletes(server: Server, sender: PushSender) -> None:
    config = {"id": "c", "url": URL, "token": "k"}
    read = {"id": "c", "url": URL, "taskId": "task-1"}

    created = await server.post(body(config), CONFIGS)
    assert created.status_code == 200
    assert created.headers["Content-Type"] == "application/a2a+json"
    assert created.json() == read
    assert (await server.request("GET", f"{CONFIGS}/c")).json() == read
    assert (await server.request("GET", CONFIGS)).json() == {"configs": [read]}
    [to_send_with] = await sender.configs_to_send_with("task-1")
    assert to_send_with.token == "k"
    for _ in range(2):
        deleted = await server.request("DELETE", f"{CONFIGS}/c")
        assert (deleted.status_code, deleted.json()) == (200, {})
    assert (await server.request("GET", CONFIGS)).json() == {"configs": []}


async def test_an_id_may_have_a_slash_in_it(server: Server, sender: PushSender) -> None:
    path = "/tasks/of%2Falice/pushNotificationConfigs"
    assert (await server.post(body({"id": "a/b", "url": URL}), path)).status_code == 200
    assert len(await sender.subscriptions("of/alice", owner="alice")) == 1
    assert (await server.request("GET", f"{path}/a%2Fb")).json()["id"] == "a/b"
    assert (await server.request("GET", path, user="bob")).status_code == 404


@pytest.mark.parametrize("mount", ["/public/a2a", "/a2a", "/%612a"])
async def test_a_mount_is_no_tenant_where_a_server_leaves_its_root_path_out(
    mount: str, api: PushConfigApi, sender: PushSender
) -> None:
    app = Starlette(routes=[Mount("/a2a", PushConfigAsgi(api, owner=lambda _: "alice"))])
    transport = httpx.ASGITransport(app, root_path="/public")  # Hypercorn leaves it out

    async with httpx.AsyncClient(transport=transport) as client:
        url = f"https://agent.example.com{mount}{CONFIGS}"
        answer = await client.post(url, json={"url": URL})

    assert answer.status_code == 200
    assert len(await sender.subscriptions("task-1", owner="alice")) == 1


@pytest.mark.parametrize(
    ("path", "status", "tenant"),
    [
        pytest.param(f"/a2a{CONFIGS}", 200, "", id="as it is"),
        pytest.param(f"/%612%61{CONFIGS}", 200, "", id="a mount in another spelling"),
        pytest.param(f"/a2a%2Facme{CONFIGS}", 404, None, id="half a mount, half a tenant"),
        pytest.param(f"/a2a%2Facme/acme{CONFIGS}", 404, None, id="and another tenant"),
        pytest.param("/a2a%2F", 404, None, id="half a mount, half nothing"),
    ],
)
async def test_a_path_is_read_as_a_middleware_in_front_reads_it(
    server: Server, sender: PushSender, path: str, status: int, tenant: str | None
) -> None:
    found = replace(server, url=server.url.removesuffix("/a2a"))
    assert (await found.post(body({"url": URL}), path)).status_code == status
    for each in ("", "acme", "a2a"):
        subscribed = await sender.subscriptions("task-1", owner="alice", tenant=each)
        assert len(subscribed) == (each == tenant)


async def test_a_middleware_that_rewrites_the_path_is_believed(
    api: PushConfigApi, sender: PushSender
) -> None:
    inner = PushConfigAsgi(api, owner=lambda _: "alice")

    async def rewriting(scope: Any, receive: Any, send: Any) -> None:
        await inner(scope | {"path": f"/acme{CONFIGS}"}, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(rewriting)) as client:
        url = f"https://agent.example.com/other{CONFIGS}"
        assert (await client.post(url, json={"url": URL})).status_code == 200

    assert len(await sender.subscriptions("task-1", owner="alice", tenant="acme")) == 1


async def test_a_websocket_is_always_closed(api: PushConfigApi) -> None:
    app = PushConfigAsgi(api, owner=lambda _: None)
    assert await answers_to_a_websocket(app) == [{"type": "websocket.close", "code": 1000}]


async def test_pages_are_asked_for_in_the_query(server: Server) -> None:
    for config_id in "abc":
        await server.post(body({"id": config_id, "url": URL}), CONFIGS)
    first = (await server.request("GET", f"{CONFIGS}?pageSize=2")).json()
    assert [config["id"] for config in first["configs"]] == ["a", "b"]
    token = first["nextPageToken"]
    second = (await server.request("GET", f"{CONFIGS}?page_size=2&pageToken={token}")).json()
    assert [config["id"] for config in second["configs"]] == ["c"]
    assert "nextPageToken" not in second


PARAMS, TASK = (400, "INVALID_PARAMS"), (404, "TASK_NOT_FOUND")
METHOD = (404, "METHOD_NOT_FOUND")


@pytest.mark.parametrize(
    ("method", "path", "content", "expected"),
    [
        pytest.param("POST", CONFIGS, b"{", (400, "INVALID_REQUEST"), id="not JSON"),
        pytest.param("POST", CONFIGS, b"[]", PARAMS, id="no object"),
        pytest.param("POST", CONFIGS, body({}), PARAMS, id="no url"),
        pytest.param("POST", CONFIGS, body({"url": "https://[::1]/"}), PARAMS, id="loopback"),
        pytest.param(
            "POST",
            CONFIGS,
            body({"url": URL, "taskId": "task-2"}),
            PARAMS,
            id="another task in the body",
        ),
        pytest.param(
            "POST",
            f"/acme{CONFIGS}",
            body({"url": URL, "tenant": "other"}),
            PARAMS,
            id="another tenant in the body",
        ),
        pytest.param(
            "POST",
            f"{CONFIGS}?tenant=acme",
            body({"url": URL, "tenant": "other"}),
            PARAMS,
            id="another tenant in the body than in the query",
        ),
        pytest.param(
            "POST",
            f"{CONFIGS}?tenant=&tenant=acme",
            body({"url": URL}),
            PARAMS,
            id="two tenants in the query",
        ),
        pytest.param(
            "GET",
            f"/acme{CONFIGS}?tenant=other",
            b"",
            PARAMS,
            id="another tenant in the query than in the path",
        ),
        pytest.param("POST", CONFIGS, body({"url": URL, "tenant": "x"}), TASK, id="tenant"),
        pytest.param("GET", f"{CONFIGS}/c", b"", TASK, id="no such config"),
        pytest.param("GET", "/tasks/nobody/pushNotificationConfigs", b"", TASK, id="task"),
        pytest.param("GET", f"{CONFIGS}?pageSize=x", b"", PARAMS, id="page size"),
        pytest.param("GET", f"{CONFIGS}?pageToken=%25", b"", PARAMS, id="token"),
        pytest.param("GET", "/tasks/task-1", b"", METHOD, id="path of others"),
        pytest.param("GET", f"{CONFIGS}/c/d", b"", METHOD, id="longer path"),
        pytest.param(
            "POST",
            f"/acme%2Fx{CONFIGS}",
            body({"url": URL}),
            METHOD,
            id="a tenant with a slash, which is another one if the path is decoded first",
        ),
        pytest.param("PUT", f"{CONFIGS}/c", b"{}", (405, "METHOD_NOT_FOUND"), id="other method"),
        pytest.param("GET", "/tasks/task%00/pushNotificationConfigs", b"", PARAMS, id="NUL"),
        pytest.param("POST", CONFIGS, b"x" * 2**20, (413, "INVALID_REQUEST"), id="a megabyte"),
    ],
)
@pytest.mark.slow
async def test_refuses_with_a_status_and_error_info(
    server: Server,
    sender: PushSender,
    method: str,
    path: str,
    *,
    content: bytes,
    expected: tuple[int, str],
) -> None:
    answer = await server.request(method, path, content=content)
    error: dict[str, Any] = answer.json()["error"]
    assert (answer.status_code, error["details"][0]["reason"]) == expected
    assert error["code"] == answer.status_code
    assert error["details"][0]["domain"] == "a2a-protocol.org"
    assert await sender.subscriptions("task-1", owner="alice") == []


@without_push
async def test_an_agent_without_push_says_so(server: Server) -> None:
    answer = await server.request("GET", CONFIGS)
    assert answer.status_code == 400
    assert answer.json()["error"]["status"] == "FAILED_PRECONDITION"
    assert answer.json()["error"]["details"][0]["reason"] == "PUSH_NOTIFICATION_NOT_SUPPORTED"


async def test_another_version_is_refused(server: Server) -> None:
    answer = await server.request("GET", CONFIGS, A2A_Version="0.3")
    assert answer.status_code == 400
    assert answer.json()["error"]["details"][0]["reason"] == "VERSION_NOT_SUPPORTED"
