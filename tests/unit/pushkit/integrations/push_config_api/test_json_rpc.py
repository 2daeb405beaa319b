"""The JSON-RPC methods of every version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pushkit import PushSender, SenderOptions, WireVersion
from pushkit.errors import ConfigError
from pushkit.integrations.push_config_api import PushConfigApi
from tests.unit.pushkit.integrations.conftest import MAX_CONFIGS, key_ring
from tests.unit.pushkit.integrations.push_config_api.conftest import Server, without_push

URL = "https://client.example.com/hook"
SECRETS = {"token": "tok-1", "authentication": {"schemes": ["Bearer"], "credentials": "cred-1"}}

CREATE: dict[str, tuple[str, dict[str, Any]]] = {
    "0.1": ("tasks/pushNotification/set", {"id": "task-1", "pushNotificationConfig": {"url": URL}}),
    "0.3": (
        "tasks/pushNotificationConfig/set",
        {"taskId": "task-1", "pushNotificationConfig": {"url": URL}},
    ),
    "1.0": ("CreateTaskPushNotificationConfig", {"taskId": "task-1", "url": URL}),
}
every_version = pytest.mark.parametrize("version", CREATE)


async def stored(sender: PushSender, owner: str = "alice") -> list[Any]:
    return await sender.subscriptions("task-1", owner=owner)


# --- what is set is read -------------------------------------------------------------------------


async def test_0_1_sets_and_gets_the_one_config_of_a_task(
    server: Server, sender: PushSender
) -> None:
    params = {"id": "task-1", "pushNotificationConfig": {"url": URL} | SECRETS}
    read = {
        "id": "task-1",
        "pushNotificationConfig": {"url": URL, "authentication": {"schemes": ["Bearer"]}},
    }
    nothing = await server.call("tasks/pushNotification/get", {"id": "task-1"})
    assert nothing["result"] is None

    assert (await server.call("tasks/pushNotification/set", params))["result"] == read
    assert (await server.call("tasks/pushNotification/get", {"id": "task-1"}))["result"] == read

    [subscription] = await stored(sender)
    assert subscription.version is WireVersion.V0_1
    [to_send_with] = await sender.configs_to_send_with("task-1")
    assert to_send_with.token == "tok-1"
    assert to_send_with.authentication is not None
    assert to_send_with.authentication.credentials == "cred-1"


async def test_0_3_sets_gets_lists_and_deletes(server: Server, sender: PushSender) -> None:
    prefix = "tasks/pushNotificationConfig/"
    params = {"taskId": "task-1", "pushNotificationConfig": {"id": "c", "url": URL} | SECRETS}
    read = {
        "taskId": "task-1",
        "pushNotificationConfig": {
            "id": "c",
            "url": URL,
            "authentication": {"schemes": ["Bearer"]},
        },
    }
    named = {"id": "task-1", "pushNotificationConfigId": "c"}

    assert (await server.call(prefix + "set", params))["result"] == read
    assert (await server.call(prefix + "get", named))["result"] == read
    assert (await server.call(prefix + "get", {"id": "task-1"}))["result"] == read
    assert (await server.call(prefix + "list", {"id": "task-1"}))["result"] == [read]
    assert [each.version for each in await stored(sender)] == [WireVersion.V0_3]
    assert (await server.call(prefix + "delete", named))["result"] is None
    assert (await server.call(prefix + "list", {"id": "task-1"}))["result"] == []


async def test_a_config_is_read_in_the_version_of_the_reader(server: Server) -> None:
    await server.call(*CREATE["1.0"])
    of_0_3 = await server.call("tasks/pushNotificationConfig/get", {"id": "task-1"})
    assert of_0_3["result"]["pushNotificationConfig"] == {"id": "task-1", "url": URL}


@every_version
async def test_owners_are_kept_apart(server: Server, sender: PushSender, version: str) -> None:
    method, params = CREATE[version]
    await server.call(method, params)
    await server.call(method, params, user="bob")
    await server.call(
        "DeleteTaskPushNotificationConfig", {"taskId": "task-1", "id": "task-1"}, user="bob"
    )
    assert len(await stored(sender)) == 1
    assert await stored(sender, "bob") == []
    theirs = await server.call(
        "ListTaskPushNotificationConfigs", {"taskId": "task-1"}, user="mallory"
    )
    assert theirs["result"] == {"configs": []}


async def test_0_3_lists_by_id(server: Server) -> None:
    for name in ("second", "first"):
        params = {"taskId": "task-1", "pushNotificationConfig": {"id": name, "url": URL}}
        await server.call("tasks/pushNotificationConfig/set", params)

    found = (await server.call("tasks/pushNotificationConfig/list", {"id": "task-1"}))["result"]

    assert [each["pushNotificationConfig"]["id"] for each in found] == ["first", "second"]


# --- errors --------------------------------------------------------------------------------------


@every_version
async def test_an_unknown_task_is_not_found(
    server: Server, sender: PushSender, version: str
) -> None:
    method, params = CREATE[version]
    member = "id" if version == "0.1" else "taskId"
    error = (await server.call(method, params | {member: "nobody"}))["error"]
    assert error["code"] == -32001
    assert error["message"] == "Task not found"
    assert await sender.subscriptions("nobody", owner="alice") == []


@without_push
@every_version
async def test_an_agent_without_push_says_so(server: Server, version: str) -> None:
    error = (await server.call(*CREATE[version]))["error"]
    assert error["code"] == -32003
    assert error["message"] == "Push Notification is not supported"


async def test_only_1_0_has_error_info(server: Server) -> None:
    of_0_3 = await server.call("tasks/pushNotificationConfig/get", {"id": "nobody"})
    of_1_0 = await server.call("GetTaskPushNotificationConfig", {"taskId": "nobody", "id": "c"})
    assert "data" not in of_0_3["error"]
    assert of_1_0["error"]["data"] == [
        {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "TASK_NOT_FOUND",
            "domain": "a2a-protocol.org",
            "metadata": {},
        }
    ]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param(b"", -32700, id="empty"),
        pytest.param(b"{", -32700, id="cut off"),
        pytest.param(b"\xff", -32700, id="not UTF-8"),
        pytest.param(b'{"id":1,"id":2}', -32700, id="duplicate member"),
        pytest.param(b"[" * 9999, -32700, id="very deep"),
        pytest.param(b"[]", -32600, id="batch"),
        pytest.param(b"5", -32600, id="number"),
        pytest.param(b'{"id":1,"method":"x"}', -32600, id="no jsonrpc"),
        pytest.param(b'{"jsonrpc":"1.0","id":1,"method":"x"}', -32600, id="other jsonrpc"),
        pytest.param(b'{"jsonrpc":"2.0","id":true,"method":"x"}', -32600, id="bool id"),
        pytest.param(b'{"jsonrpc":"2.0","id":{},"method":"x"}', -32600, id="object id"),
        pytest.param(b'{"jsonrpc":"2.0","id":1}', -32600, id="no method"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":5}', -32600, id="number as method"),
    ],
)
async def test_refuses_what_is_no_request(server: Server, body: bytes, code: int) -> None:
    answer = await server.post(body)
    assert answer.status_code == 200
    assert answer.json()["error"]["code"] == code
    assert answer.json()["id"] is None


@pytest.mark.parametrize("method", ["SendMessage", "message/send", "tasks/get", "", "\u0000"])
@pytest.mark.parametrize("named", ["0.3", "1.0", "2.0"])
async def test_refuses_a_method_of_others(server: Server, method: str, named: str) -> None:
    answer = await server.call(method, {}, **{"A2A-Version": named})
    assert answer["error"]["code"] == -32601


# What else is refused, tests/unit/pushkit/a2a/test_config.py says.
BAD = [
    pytest.param({}, id="no url"),
    pytest.param({"url": "https://127.0.0.1/"}, id="loopback"),
    pytest.param({"url": URL, "authentication": {"credentials": "secret"}}, id="credentials alone"),
]


@every_version
@pytest.mark.parametrize("config", BAD)
async def test_an_invalid_config_is_refused_and_not_stored(
    server: Server, sender: PushSender, config: dict[str, Any], version: str
) -> None:
    method, params = CREATE[version]
    if version == "1.0":
        params = {"taskId": "task-1"} | config
    else:
        params = params | {"pushNotificationConfig": config}
    error = (await server.call(method, params))["error"]
    assert error["code"] == -32602
    assert error["message"].startswith("Invalid parameters: ")
    assert "secret" not in error["message"]
    assert await stored(sender) == []


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("CreateTaskPushNotificationConfig", {"url": URL}),
        ("CreateTaskPushNotificationConfig", {"taskId": "task-1", "task_id": "t", "url": URL}),
        ("CreateTaskPushNotificationConfig", {"taskId": "task\n1", "url": URL}),
        ("CreateTaskPushNotificationConfig", {"taskId": "task-1", "url": URL, "id": "\u0000"}),
        ("CreateTaskPushNotificationConfig", {"taskId": "task-1", "url": URL, "tenant": 5}),
        ("CreateTaskPushNotificationConfig", {"taskId": "task-1", "url": URL, "tenant": "\u0000"}),
        ("CreateTaskPushNotificationConfig", {"taskId": "task-1", "pushNotificationConfig": {}}),
        ("CreateTaskPushNotificationConfig", [1]),
        ("CreateTaskPushNotificationConfig", "x"),
        ("CreateTaskPushNotificationConfig", None),
        ("GetTaskPushNotificationConfig", {"taskId": "task-1"}),
        ("GetTaskPushNotificationConfig", {"id": "c"}),
        ("GetTaskPushNotificationConfig", {"taskId": "task-1", "id": "\u0000"}),
        ("DeleteTaskPushNotificationConfig", {"taskId": "task-1"}),
        ("DeleteTaskPushNotificationConfig", {"taskId": "task-1", "id": "\u0000"}),
        ("ListTaskPushNotificationConfigs", {"taskId": "x" * 600}),
        ("ListTaskPushNotificationConfigs", {"taskId": "task-1", "pageSize": -1}),
        ("ListTaskPushNotificationConfigs", {"taskId": "task-1", "pageSize": "many"}),
        ("ListTaskPushNotificationConfigs", {"taskId": "task-1", "pageSize": True}),
        ("ListTaskPushNotificationConfigs", {"taskId": "task-1", "pageToken": "%%%"}),
        ("tasks/pushNotification/set", {"id": "task-1", "url": URL}),
        ("tasks/pushNotification/set", {"pushNotificationConfig": {"url": URL}}),
        ("tasks/pushNotification/get", {}),
        ("tasks/pushNotificationConfig/set", {"url": URL}),
        ("tasks/pushNotificationConfig/set", {"taskId": "t", "pushNotificationConfig": 5}),
        (
            "tasks/pushNotificationConfig/set",
            {"taskId": "t", "url": URL, "pushNotificationConfig": {"url": URL}},
        ),
        ("tasks/pushNotificationConfig/delete", {"id": "task-1"}),
        ("tasks/pushNotificationConfig/list", {"id": ["task-1"]}),
    ],
)
@pytest.mark.slow
async def test_refuses_wrong_params(
    server: Server, sender: PushSender, method: str, params: object
) -> None:
    assert (await server.call(method, params))["error"]["code"] == -32602
    assert await stored(sender) == []


@every_version
async def test_10_000_configs_end_at_the_limit(
    server: Server, sender: PushSender, version: str
) -> None:
    codes = []
    for number in range(MAX_CONFIGS + 3):
        method, params = CREATE["1.0"]
        codes.append("error" in await server.call(method, params | {"id": f"c{number}"}))
    assert codes == [False] * MAX_CONFIGS + [True] * 3
    error = (await server.call(*CREATE[version]))["error"]
    assert error["code"] == -32602
    assert f"expected at most {MAX_CONFIGS}" in error["message"]
    assert len(await stored(sender)) == MAX_CONFIGS
    # One that is there can still be changed, and another owner is not held up.
    method, params = CREATE["1.0"]
    assert "result" in await server.call(method, params | {"id": "c0", "token": "new"})
    assert "result" in await server.call(*CREATE[version], user="bob")


async def test_naming_tenants_gives_a_caller_no_more_room(tmp_path: Path) -> None:
    options = SenderOptions(max_subscriptions_per_owner=2)
    sender = PushSender(
        issuer="https://agent.example.com",
        keys=key_ring(),
        database=tmp_path / "outbox.db",
        options=options,
    )
    api = PushConfigApi(sender, task_exists=lambda _, task_id: task_id == "task-1")
    codes = []
    for tenant in ("", "acme", "globex"):
        method, params = CREATE["1.0"]
        call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params | {"tenant": tenant}}
        answer = await api.json_rpc(json.dumps(call).encode(), owner="alice")
        assert answer is not None
        error: Any = answer.get("error", {"code": 0})
        codes.append(error["code"])
    await sender.close()
    assert codes == [0, 0, -32602]


async def test_a_notification_has_no_answer(server: Server, sender: PushSender) -> None:
    method, params = CREATE["1.0"]
    body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode()
    answer = await server.post(body)
    assert (answer.status_code, answer.content) == (204, b"")
    assert len(await stored(sender)) == 1


@pytest.mark.parametrize(
    ("version", "header", "code"),
    [
        ("1.0", "1.0", None),
        ("1.0", "1.0.1", None),
        ("0.3", "0.3", None),
        ("0.3", "", None),
        ("1.0", "2.0", -32009),
        ("1.0", "0.3", -32009),
        ("0.3", "1.0", -32009),
        ("0.1", "agentvault-0.2", -32009),
    ],
)
async def test_the_version_header_must_fit_the_method(
    server: Server, version: str, header: str, code: int | None
) -> None:
    answer = await server.call(*CREATE[version], A2A_Version=header)
    assert answer.get("error", {}).get("code") == code


# --- the front door ------------------------------------------------------------------------------


async def test_an_unknown_caller_is_refused(server: Server, sender: PushSender) -> None:
    answer = await server.post(b"{}", user=None)
    assert answer.status_code == 401
    assert answer.json()["error"]["status"] == "UNAUTHENTICATED"
    assert await stored(sender) == []


@pytest.mark.parametrize("media_type", ["text/plain", "", "; charset=utf-8"])
async def test_what_any_web_page_can_post_is_refused(
    server: Server, sender: PushSender, media_type: str
) -> None:
    request = {"jsonrpc": "2.0", "id": 1, "method": CREATE["1.0"][0], "params": CREATE["1.0"][1]}
    answer = await server.post(json.dumps(request).encode(), Content_Type=media_type)
    assert answer.status_code == 415
    assert answer.json()["error"]["code"] == 415  # HTTP's own: it is no JSON-RPC
    assert await stored(sender) == []


async def test_only_post_calls_a_method(server: Server) -> None:
    answer = await server.request("GET", "/")
    assert answer.status_code == 405
    assert answer.headers["Allow"] == "POST"


async def test_a_failing_outbox_is_an_internal_error(
    server: Server, sender: PushSender, caplog: pytest.LogCaptureFixture
) -> None:
    await sender.close()
    error = (await server.call(*CREATE["1.0"]))["error"]
    assert (error["code"], error["message"]) == (-32603, "Internal error")
    for _ in range(20):
        assert "error" in await server.call(*CREATE["1.0"])
    assert caplog.text.count("could not be served") == 1


async def test_an_agent_hands_over_what_the_api_serves(
    api: PushConfigApi, sender: PushSender
) -> None:
    method, params = CREATE["0.3"]
    assert api.serves(method)
    assert not api.serves("message/send")
    body = json.dumps({"jsonrpc": "2.0", "id": "a", "method": method, "params": params}).encode()
    answer = await api.json_rpc(body, owner="alice")
    assert answer is not None
    assert answer["id"] == "a"
    assert len(await stored(sender)) == 1
    refused = await api.json_rpc(b"x" * 2**20, owner="alice")
    assert refused is not None
    assert refused["error"]["code"] == -32600  # type: ignore[call-overload, index]


MEMBERS = (
    "id taskId task_id url token authentication schemes scheme credentials tenant pageSize"
    " pageToken pushNotificationConfig pushNotificationConfigId x"
)
anything: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from([URL, "task-1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(MEMBERS.split()), inner, max_size=6)
    ),
    max_leaves=10,
)
METHODS = (
    "tasks/pushNotification/set tasks/pushNotification/get tasks/pushNotificationConfig/set"
    " tasks/pushNotificationConfig/list CreateTaskPushNotificationConfig"
    " GetTaskPushNotificationConfig ListTaskPushNotificationConfigs"
)
methods = st.sampled_from(METHODS.split())


@settings(
    deadline=None,
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(methods, anything)
async def test_whatever_is_sent_has_a_specified_answer(
    api: PushConfigApi, method: str, params: object
) -> None:
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = await api.json_rpc(json.dumps(request).encode(), owner="alice")
    assert answer is not None
    if "error" in answer:
        error = answer["error"]
        assert isinstance(error, dict)
        assert error["code"] in {-32700, -32602, -32001}


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ({"task_exists": True}, "task_exists: found bool, expected a callable or None"),
        ({"max_body_bytes": "64k"}, "max_body_bytes: found str, expected int"),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused_before_the_first_call(
    argument: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{says}$"):
        PushConfigApi(None, **{"task_exists": None, **argument})
