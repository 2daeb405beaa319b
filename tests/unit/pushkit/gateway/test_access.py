"""Who may set, read and delete push configs behind a gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from yarl import URL

from pushkit.errors import ConfigError
from pushkit.gateway.options import GatewayOptions
from pushkit.gateway.service import Service
from pushkit.gateway.upstream import Upstream
from pushkit.keys.ring import KeyRing
from pushkit.secrets.sealing import SecretKeys
from tests.eventually import eventually
from tests.served import answering, served
from tests.unit.pushkit.gateway.agent import ScriptedAgent
from tests.unit.pushkit.gateway.conftest import (
    HOOK,
    SHARED,
    V1_0,
    Front,
    Start,
    bearer,
    config_of,
    gateway,
    message,
)

LOCAL = ("127.0.0.0/8",)
HEADER = GatewayOptions(identity_header="X-User", trusted_proxies=LOCAL)


class Login:
    """Issues bearer tokens, by a key of a JWK Set that it serves."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.url = ""
        self.others: list[dict[str, Any]] = []  # further keys, before its own

    @property
    def options(self) -> GatewayOptions:
        """The options of a gateway that believes its tokens."""
        return GatewayOptions(
            identity_jwks=self.url, identity_issuer="login", identity_audience="agents"
        )

    @asynccontextmanager
    async def served(self) -> AsyncIterator[Login]:
        public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self._key.public_key()))
        own = {**public, "kid": "k1", "alg": "ES256", "use": "sig"}

        async def answer(_: web.Request) -> web.Response:
            return web.json_response({"keys": [*self.others, own]})

        async with served(answering(answer)) as origin:
            self.url = f"{origin}/jwks.json"
            yield self

    def token(self, owner: object, *, kid: str = "k1", **claims: Any) -> str:
        expires = datetime.now(UTC) + timedelta(minutes=5)
        said = {"sub": owner, "exp": expires, "iss": "login", "aud": "agents", **claims}
        said = {name: value for name, value in said.items() if value is not None}
        return jwt.encode(said, self._key, algorithm="ES256", headers={"kid": kid})


@pytest.fixture
async def login() -> AsyncIterator[Login]:
    async with Login().served() as login:
        yield login


async def test_who_may_see_a_task_may_push_it(
    start: Start, agent: ScriptedAgent, login: Login
) -> None:
    alice, bob = login.token("alice"), login.token("bob")
    agent.users = {alice: "alice", bob: "bob"}
    async with start(login.options) as front:
        task = await front.send(bearer(alice))
        # Alice's token is what the agent is asked with, also by the watcher.
        config = config_of(task["id"])
        stored = await front.rpc("CreateTaskPushNotificationConfig", config, bearer(alice))
        assert stored["result"]["id"] == "c1"
        assert "a-secret-token" not in str(stored)
        for method, params in (
            ("CreateTaskPushNotificationConfig", config),
            ("GetTaskPushNotificationConfig", {"taskId": task["id"], "id": "c1"}),
            ("ListTaskPushNotificationConfigs", {"taskId": task["id"]}),
            ("DeleteTaskPushNotificationConfig", {"taskId": task["id"], "id": "c1"}),
            ("tasks/pushNotificationConfig/get", {"id": task["id"]}),
        ):
            refused = await front.rpc(method, params, bearer(bob))
            assert refused["error"]["code"] == -32001, method
        assert len(await front.sender.subscribers(task["id"])) == 1


async def test_two_who_may_see_a_task_do_not_see_each_others_configs(start: Start) -> None:
    async with start(HEADER) as front:
        task_id = (await front.send(("X-User", "alice")))["id"]
        listed = await front.rpc(
            "ListTaskPushNotificationConfigs", {"taskId": task_id}, ("X-User", "bob")
        )
        assert listed["result"] == {"configs": []}
        [subscription] = await front.sender.subscribers(task_id)
        assert subscription.key.owner == "alice"


@pytest.mark.parametrize(
    "token",
    [
        pytest.param({"owner": "a", "exp": 1}, id="expired"),
        pytest.param({"owner": "a", "exp": None}, id="without an end"),
        pytest.param({"owner": "a", "iss": "mallory"}, id="of another issuer"),
        pytest.param({"owner": "a", "aud": "others"}, id="for another audience"),
        pytest.param({"owner": "a", "kid": "unknown"}, id="by an unknown key"),
        pytest.param({"owner": None}, id="without the claim"),
        pytest.param({"owner": ""}, id="empty"),
        pytest.param({"owner": ["a"]}, id="no text"),
        pytest.param({"owner": "a\nb"}, id="a control character"),
    ],
)
async def test_a_token_that_proves_nothing_is_refused(
    start: Start, agent: ScriptedAgent, login: Login, token: dict[str, Any]
) -> None:
    given = bearer(login.token(token.pop("owner"), **token))
    async with start(login.options) as front:
        for headers in ([given], [], [bearer("a.b.c")], [("Authorization", "Basic x")]):
            async with front.post("SendMessage", message(), *headers) as refused:
                assert refused.status == 401
        assert agent.asked("SendStreamingMessage") == []


async def test_a_token_that_another_algorithm_signed_is_refused(start: Start, login: Login) -> None:
    forged = jwt.encode(
        {"sub": "alice", "exp": 9999999999}, "x" * 64, algorithm="HS256", headers={"kid": "k1"}
    )
    async with start(GatewayOptions(identity_jwks=login.url)) as front:
        refused = await front.rpc("SendMessage", message(), bearer(forged))
        assert refused["error"]["message"].startswith("Not authenticated")


async def test_a_token_by_the_second_key_of_a_kid_is_proven(start: Start, login: Login) -> None:
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(other))
    login.others = [{**public, "kid": "k1", "alg": "RS256", "use": "sig"}]
    async with start(GatewayOptions(identity_jwks=login.url)) as front:
        task = await front.send(bearer(login.token("alice", aud=None)))
        [subscription] = await front.sender.subscribers(task["id"])
        assert subscription.key.owner == "alice"


async def test_an_identity_header_counts_only_from_a_trusted_proxy(
    start: Start, agent: ScriptedAgent
) -> None:
    forged = ("X-User", "alice")
    async with start(HEADER, trusted_proxies=("10.0.0.0/8",)) as front:
        refused = await front.rpc("SendMessage", message(), forged)
        assert refused["error"]["message"].startswith("Not authenticated")
        # And the agent does not hear the forged word.
        await front.rpc("GetTask", {"id": "x"}, forged, ("X-Forwarded-For", "1.2.3.4"))
        name, headers, _ = agent.received[-1]
        assert name == "GetTask"
        assert "X-User" not in headers
        assert headers.getall("X-Forwarded-For") == ["127.0.0.1"]


async def test_who_says_twice_who_it_is_is_nobody(start: Start) -> None:
    async with start(HEADER) as front:
        twice = [("X-User", "alice"), ("X-User", "bob")]
        async with front.post("SendMessage", message(), *twice) as refused:
            assert refused.status == 401


async def test_what_the_agent_refuses_the_gateway_refuses_alike(
    start: Start, agent: ScriptedAgent
) -> None:
    agent.users = {"t": "alice"}
    async with start(HEADER) as front:
        call = ("CreateTaskPushNotificationConfig", config_of("task-1"), ("X-User", "alice"))
        refused = await front.rpc(*call)
        assert refused["error"]["message"].startswith("Not authenticated")
        missing = await front.rpc(*call, bearer("t"))
        assert missing["error"]["code"] == -32001


async def test_shared_configs_are_those_of_all(front: Front) -> None:
    task = await front.send()
    listed = await front.rpc("ListTaskPushNotificationConfigs", {"taskId": task["id"]})
    assert [each["id"] for each in listed["result"]["configs"]] == ["c1"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "nothing that says who a caller is"),
        ({"shared_configs": True, "identity_header": "X-User"}, "expected one of"),
        ({"identity_header": "X-User"}, "--trusted-proxy"),
        ({"identity_header": "X-User", "trusted_proxies": ["here"]}, "expected an address"),
    ],
)
async def test_a_gateway_that_knows_nobody_does_not_start(
    options: dict[str, Any], expected: str, ring: KeyRing
) -> None:
    with pytest.raises(ConfigError, match=expected):
        Service(
            "http://127.0.0.1:1",
            sender=None,  # type: ignore[arg-type]  # refused before it is needed
            ring=lambda: ring,
            public_url="https://agent.example.com",
            options=GatewayOptions(**options),
        )


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://user:secret@agent:1"])
def test_an_agent_without_a_url_is_refused_by_the_name_of_the_option(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^upstream: expected the base URL of an agent"):
        Upstream(url, SHARED)


@pytest.mark.parametrize("url", ["ws://agent:1", "grpc://agent:1", "grpcs://agent:1"])
def test_what_the_gateway_does_not_speak_is_refused_by_name(url: str) -> None:
    with pytest.raises(ConfigError, match="not WebSocket and not gRPC"):
        Upstream(url, SHARED)


@pytest.mark.parametrize("asks", [True, False])
async def test_an_agent_that_ignores_credentials_is_named(
    start: Start, agent: ScriptedAgent, caplog: Any, *, asks: bool
) -> None:
    agent.users = {"t": "alice"} if asks else {}
    async with start():
        said = "shows tasks to callers without credentials" in caplog.text
        assert said is not asks


async def test_a_refused_webhook_is_refused_before_the_agent_hears_of_it(front: Front) -> None:
    params = message()
    params["configuration"]["taskPushNotificationConfig"]["url"] = "http://169.254.169.254/"
    refused = await front.rpc("SendMessage", params)
    assert refused["error"]["code"] == -32602
    assert front.agent.asked("SendStreamingMessage") == []


async def test_the_operators_credentials_are_asked_with_by_the_watcher_alone(
    start: Start, agent: ScriptedAgent
) -> None:
    agent.users = {"op": "alice", "t": "alice"}
    agent.streams = agent.subscribes = False
    async with start(upstream_authorization="Bearer op") as front:
        await front.send(bearer("t"))
        await eventually(lambda: len(agent.asked("GetTask")) > 1)  # the first one was without
        [sent] = [headers for name, headers, _ in agent.received if name == "SendMessage"]
        [*_, asked] = [headers for name, headers, _ in agent.received if name == "GetTask"]
        assert sent["Authorization"] == "Bearer t"
        assert asked["Authorization"] == "Bearer op"


async def test_the_callers_credentials_are_sealed_or_not_stored(
    agent: ScriptedAgent, tmp_path: Any, ring: KeyRing, caplog: Any
) -> None:
    agent.users = {"a-callers-token": "alice"}
    async with gateway(agent, tmp_path / "plain.db", ring) as front:
        await front.send(bearer("a-callers-token"))
        await eventually(lambda: len(front.service.watcher) == 1)
        assert "set PUSHKIT_SECRET_KEYS" in caplog.text
    assert all(b"a-callers" not in each.read_bytes() for each in tmp_path.glob("plain.db*"))


async def begun_by_a_caller(
    agent: ScriptedAgent, database: Path, ring: KeyRing, keys: SecretKeys
) -> str:
    """Let a caller with a token begin a task at a gateway, which ends; return its id."""
    agent.users = {"a-callers-token": "alice"}
    async with gateway(agent, database, ring, secrets=keys) as front:
        task_id: str = (await front.send(bearer("a-callers-token")))["id"]
        await front.told(task_id, 1)
    return task_id


async def test_sealed_credentials_serve_the_next_gateway(
    agent: ScriptedAgent, tmp_path: Any, ring: KeyRing
) -> None:
    database, keys = tmp_path / "sealed.db", SecretKeys.generate()
    task_id = await begun_by_a_caller(agent, database, ring, keys)
    assert all(b"a-callers" not in each.read_bytes() for each in tmp_path.glob("sealed.db*"))
    agent.status(task_id, "TASK_STATE_COMPLETED")
    async with gateway(agent, database, ring, secrets=keys) as second:
        assert len(await second.told(task_id, 2)) == 2


async def test_a_gateway_without_the_secret_key_leaves_a_task_to_another(
    agent: ScriptedAgent, tmp_path: Any, ring: KeyRing, caplog: Any
) -> None:
    database, keys = tmp_path / "sealed.db", SecretKeys.generate()
    task_id = await begun_by_a_caller(agent, database, ring, keys)
    agent.status(task_id, "TASK_STATE_COMPLETED")
    before = len(agent.asked("GetTask"))
    async with gateway(agent, database, ring, secrets=SecretKeys.generate()) as second:
        await eventually(lambda: "a task cannot be watched here" in caplog.text)
        assert len(second.service.watcher) == 0
        assert len(agent.asked("GetTask")) == before + 1  # to see what a stranger is told
    async with gateway(agent, database, ring, secrets=keys) as third:
        assert len(await third.told(task_id, 2)) == 2


@pytest.mark.parametrize("seals", [True, False])
@pytest.mark.parametrize("call", ["SendMessage", "CreateTaskPushNotificationConfig"])
async def test_a_later_callers_credentials_stand_in_for_some_that_expired(
    agent: ScriptedAgent, tmp_path: Any, ring: KeyRing, call: str, *, seals: bool
) -> None:
    agent.users = {"old": "alice"}
    agent.streams = agent.subscribes = False
    database, keys = tmp_path / "outbox.db", SecretKeys.generate() if seals else None

    async with gateway(agent, database, ring, secrets=keys) as first:
        task_id = (await first.send(bearer("old")))["id"]
        await first.told(task_id, 1)
        agent.users = {"new": "alice"}
        again = message(task_id=task_id) if call == "SendMessage" else config_of(task_id)
        await first.rpc(call, again, bearer("new"))
        agent.status(task_id, "TASK_STATE_WORKING")
        await eventually(lambda: first.is_told(task_id, "TASK_STATE_WORKING"))
    if seals:  # else a restart asks without
        agent.status(task_id, "TASK_STATE_COMPLETED")
        async with gateway(agent, database, ring, secrets=keys) as second:
            await eventually(lambda: second.is_told(task_id, "TASK_STATE_COMPLETED"))


async def test_a_caller_who_set_no_config_lends_no_credentials(
    agent: ScriptedAgent, location: str, ring: KeyRing
) -> None:
    agent.users = {"old": "alice"}
    agent.streams = agent.subscribes = False
    async with gateway(agent, location, ring) as front:
        task_id = (await front.send(bearer("old")))["id"]
        agent.users = {"new": "alice"}
        for _ in range(2):
            agent.received.clear()
            await front.send(bearer("new"), task_id=task_id, config=False)
            await eventually(lambda: agent.asked("GetTask"))
    asked = [headers for name, headers, _ in agent.received if name == "GetTask"]
    assert {headers["Authorization"] for headers in asked} == {"Bearer old"}


async def test_a_task_that_waits_to_be_watched_is_asked_for_as_its_caller(
    start: Start, agent: ScriptedAgent
) -> None:
    agent.users = {"alice": "alice"}
    agent.streams = agent.subscribes = False
    async with start(max_watches=1) as front:
        first, second = [await front.send(bearer("alice")) for _ in range(2)]
        for task in (first, second):
            agent.status(task["id"], "TASK_STATE_COMPLETED")
        await eventually(lambda: front.is_told(second["id"], "TASK_STATE_COMPLETED"))


async def test_a_later_callers_credentials_stand_in_for_whole_tasks(
    agent: ScriptedAgent, tmp_path: Any, ring: KeyRing
) -> None:
    """The stream of the first caller goes on, though its token has expired."""
    agent.users = {"old": "alice"}
    async with gateway(agent, tmp_path / "outbox.db", ring) as front:
        task_id = (await front.send(bearer("old")))["id"]
        await front.told(task_id, 1)
        agent.users = {"new": "alice"}
        await front.set_0_3(task_id, bearer("new"))
        agent.chunk(task_id, "one")
        _, _, of_0_3 = sorted(await front.told(task_id, 3), key=lambda each: "kind" in each)
        assert of_0_3["artifacts"][0]["parts"][0]["text"] == "one"


async def test_an_agent_is_asked_in_a_version_that_it_speaks(front: Front) -> None:
    task = await front.send()
    before = len(front.agent.received)
    for method, params in (
        ("ListTaskPushNotificationConfigs", {"taskId": task["id"]}),
        ("GetPushDeliveryState", {"taskId": task["id"], "id": "c1"}),
    ):
        assert "result" in await front.rpc(method, params), method
    # Its card says 0.3 alone.
    assert [name for name, _, _ in front.agent.received[before:]] == ["tasks/get", "tasks/get"]


async def test_the_extensions_of_http_json_are_the_gateways(front: Front) -> None:
    task = await front.send()
    path = f"/tasks/{task['id']}/pushNotificationConfigs/c1/deliveryState"
    status, state = await front.rest("GET", path)
    assert status == 200, state


async def test_a_client_may_ask_for_the_task_as_it_stands(front: Front) -> None:
    task_id = (await front.send(config=False))["id"]
    front.agent.status(task_id, "TASK_STATE_WORKING")
    config = {**config_of(task_id), "urn:pushkit:push-snapshot:v1": True}
    stored = await front.rpc("CreateTaskPushNotificationConfig", config)
    assert "error" not in stored, stored
    [first] = await front.told(task_id, 1)
    assert first["task"]["status"]["state"] == "TASK_STATE_WORKING"


# --- HTTP+JSON, tenants, paths ------------------------------------------------------------------


@pytest.mark.parametrize("tenant", ["", "/acme", "/acme inc.", "/m\xfcller", "/a+b;c", "/tasks"])
async def test_http_json_is_understood_with_and_without_a_tenant(front: Front, tenant: str) -> None:
    status, answer = await front.rest("POST", f"{tenant}/message:send", message())
    assert status == 200
    task_id = answer["task"]["id"]
    assert front.agent.tenants[task_id] == tenant.strip("/")
    status, stored = await front.rest("GET", f"{tenant}/tasks/{task_id}/pushNotificationConfigs")
    assert status == 200
    assert [each["id"] for each in stored["configs"]] == ["c1"]
    assert len(await front.sender.subscribers(task_id, tenant=tenant.strip("/"))) == 1
    front.agent.break_streams(task_id)
    await eventually(lambda: front.agent.watchers(task_id) == 1)  # at the tenant's path, too
    front.agent.status(task_id, "TASK_STATE_COMPLETED")
    await eventually(lambda: not len(front.service.watcher))


@pytest.mark.parametrize("where", ["query", "body", "path"])
async def test_a_tenants_task_is_asked_for_at_the_tenant(front: Front, where: str) -> None:
    """A task that is seen in one tenant is no reason to follow its namesake in another one."""
    _, answer = await front.rest("POST", "/message:send", message(config=False))
    task_id = answer["task"]["id"]
    path, config = f"/tasks/{task_id}/pushNotificationConfigs", {"url": HOOK, "id": "c1"}
    match where:
        case "query":
            path += "?tenant=victim"
        case "body":
            config["tenant"] = "victim"
        case _:
            path = f"/victim{path}"
    status, _ = await front.rest("POST", path, config)
    assert status == 404
    assert await front.sender.subscribers(task_id, tenant="victim") == []


async def test_a_message_that_names_two_tenants_is_refused(front: Front) -> None:
    status, _ = await front.rest("POST", "/acme/message:send", message(tenant="victim"))
    assert status == 400
    assert not front.agent.tasks


@pytest.mark.parametrize("path", ["/files/x", "/restless", "/a/b/c"])
async def test_what_answers_beside_the_agents_interfaces_proves_nothing(
    front: Front, path: str
) -> None:
    """A file that a client sent to the agent might say that its client may see a task."""
    task = await front.send()
    url = f"{front.origin}{path}/tasks/{task['id']}/pushNotificationConfigs"
    async with front.client.get(url) as answer:
        assert answer.status == 404
    config = config_of(task["id"])
    async with front.post("CreateTaskPushNotificationConfig", config, path=path) as answer:
        refused = await answer.json()
    assert refused["id"] == 7
    assert refused["error"]["code"] == -32601
    assert len(await front.sender.subscribers(task["id"])) == 1


@pytest.mark.parametrize(
    "path",
    [
        "/message:send/",
        "/Message:SEND",
        "/message:send;x=1",
        "/%0A/message:send",
        "/tasks/t/pushNotificationConfigs/",
        "/tasks/t/pushnotificationconfigs",
        "/tasks/t/pushNotificationConfigs;x=1/c",
        "/tasks//t/pushNotificationConfigs",
        "/tasks/t/x/../pushNotificationConfigs",
        "/tasks/a%2Ft/pushNotificationConfigs",
        "/tasks/..%2Ft/pushNotificationConfigs",
        "/%0A/tasks/t/pushNotificationConfigs",
    ],
)
async def test_a_config_does_not_pass_by_a_path_that_only_the_agent_understands(
    front: Front, path: str
) -> None:
    """Routers may fold letters and slashes, drop what follows a semicolon, or resolve dots."""
    url = URL(f"{front.origin}/rest{path}", encoded=True)
    body = message() if "message" in path.lower() else {"url": HOOK}
    async with front.client.post(url, json=body, headers=V1_0) as answer:
        assert answer.status in (200, 400, 404)
    assert not [each for _, _, each in front.agent.received if HOOK.encode() in each]


@pytest.mark.parametrize("tenant", [".", "..", "../files", r"..\files"])
@pytest.mark.parametrize("where", ["query", "body", "path", "message"])
async def test_a_tenant_leads_to_no_other_path_of_the_agents(
    front: Front, where: str, tenant: str
) -> None:
    """Some servers resolve dots: what answers there about a task is not the interface."""
    before, path, body = len(front.agent.paths), "/tasks/t/pushNotificationConfigs", {"url": HOOK}
    match where:
        case "query":
            path += f"?tenant={quote(tenant)}"
        case "body":
            body["tenant"] = tenant
        case "path":
            path = f"/{quote(tenant, safe='').replace('.', '%2E')}{path}"
        case _:
            path, body = "/message:send", message(tenant=tenant)
    url = URL(f"{front.origin}/rest{path}", encoded=True)
    async with front.client.post(url, json=body, headers=V1_0) as answer:
        assert answer.status in (400, 404)
    assert not front.agent.paths[before:]


@pytest.mark.parametrize("task_id", ["..", r"..\files"])
async def test_a_task_leads_to_no_other_path_of_the_agents(front: Front, task_id: str) -> None:
    before = len(front.agent.paths)
    path = f"/rest/tasks/{quote(task_id).replace('.', '%2E')}/pushNotificationConfigs"
    url = URL(f"{front.origin}{path}", encoded=True)
    async with front.client.get(url, headers=V1_0) as answer:
        assert answer.status == 404
    assert not front.agent.paths[before:]


async def test_a_config_does_not_pass_by_a_call_that_only_the_agent_understands(
    front: Front,
) -> None:
    """Some agents ask for no `jsonrpc`."""
    for method, params in (
        ("SendMessage", message()),
        ("CreateTaskPushNotificationConfig", config_of("t")),
    ):
        body = {"id": 1, "method": method, "params": params}
        assert await front.answers(200, "POST", "/", json=body)
    assert not [each for _, _, each in front.agent.received if HOOK.encode() in each]


@pytest.mark.parametrize(
    ("path", "name", "folded"),
    [
        ("/", "method", "Method"),
        ("/", "params", "param\u017f"),
        ("/", "configuration", "Configuration"),
        ("/", "taskPushNotificationConfig", "taskpushnotificationconfig"),
        ("/rest/message:send", "configuration", "Configuration"),
        ("/rest/message:send", "taskPushNotificationConfig", "TaskPushNotificationConfig"),
    ],
)
async def test_a_config_does_not_pass_by_a_name_that_only_the_agent_understands(
    front: Front, path: str, name: str, folded: str
) -> None:
    """Parsers of Go and .NET do not tell capitals."""
    body = message()
    if path == "/":
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": body}
    data = json.dumps(body).replace(json.dumps(name), json.dumps(folded))
    headers = {"Content-Type": "application/json", **V1_0}
    assert await front.answers(400, "POST", path, data=data, headers=headers)
    assert not [each for _, _, each in front.agent.received if HOOK.encode() in each]


async def test_a_path_like_those_of_a2a_passes(front: Front) -> None:
    for path in ("/message:send/", "/tasks/t/pushNotificationConfigsOf", "/x"):
        async with front.client.post(f"{front.origin}{path}", json={"Method": "a"}) as answer:
            assert answer.status == 200
        assert front.agent.received[-1][0] == path


@pytest.mark.parametrize("named", ["X-User", "X_User"])
async def test_an_identity_header_has_no_second_spelling(
    start: Start, agent: ScriptedAgent, named: str
) -> None:
    async with start(HEADER, identity_header=named, trusted_proxies=("10.0.0.0/8",)) as front:
        forged = {"X_User": "alice", "X-User": "alice", "X_Forwarded_For": "1.2.3.4"}
        await front.rpc("GetTask", {"id": "x"}, *forged.items())
        _, headers, _ = agent.received[-1]
        assert "X_User" not in headers
        assert "X-User" not in headers
        assert "X_Forwarded_For" not in headers


async def test_credentials_of_tasks_that_another_gateway_watches_are_forgotten(
    start: Start, agent: ScriptedAgent
) -> None:
    async with start(max_watches=1) as one, start() as other:
        await one.send(bearer("a"))
        for number in range(5):
            task = await one.send(bearer(f"t{number}"))
            await eventually(partial(other.service.watcher.get, "", task["id"]))
            agent.status(task["id"], "TASK_STATE_COMPLETED")
            await eventually(lambda: not len(other.service.watcher))
        assert len(one.service.watcher._unstored) <= 2
