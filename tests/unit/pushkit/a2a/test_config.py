"""Push-notification configs that clients register."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pushkit.a2a import (
    Authentication,
    PushConfig,
    WireVersion,
    format_push_config,
    parse_inline_config,
    parse_push_config,
)
from pushkit.bounded_json import JsonValue
from pushkit.errors import InvalidPushConfigError

V0_1, V0_3, V1_0 = WireVersion.V0_1, WireVersion.V0_3, WireVersion.V1_0
AGENTVAULT = WireVersion.AGENTVAULT_0_2
URL = "https://client.example/hook"
SECRET = "hunter2"

CONFIG_0_3: dict[str, JsonValue] = {
    "id": "c",
    "url": URL,
    "token": "tok-1",
    "authentication": {"schemes": ["Bearer", "Basic"], "credentials": "cred 1", "x": 1},
    "metadata": {"jwksUrl": "https://agent.example/jwks.json"},
}
CONFIG_1_0: dict[str, JsonValue] = {
    "id": "c",
    "url": URL,
    "token": "tok-1",
    "authentication": {"scheme": "Bearer", "credentials": "cred 1"},
    "taskId": "t",
    "tenant": "acme",
    "x": [1],
}
TWO_SCHEMES = Authentication(schemes=("Bearer", "Basic"), credentials="cred 1", extra={"x": 1})
CONFIG_0_1 = {name: CONFIG_0_3[name] for name in ("url", "token", "authentication")}
OF_0_1 = PushConfig(url=URL, token="tok-1", authentication=TWO_SCHEMES, origin=V0_1)
OF_0_3 = replace(OF_0_1, id="c", extra={"metadata": CONFIG_0_3["metadata"]}, origin=V0_3)
OF_1_0 = PushConfig(
    url=URL,
    id="c",
    token="tok-1",
    task_id="t",
    tenant="acme",
    authentication=Authentication(schemes=("Bearer",), credentials="cred 1"),
    extra={"x": [1]},
    origin=V1_0,
)


@pytest.mark.parametrize(
    ("document", "config"),
    [
        pytest.param(CONFIG_0_1, OF_0_1, id="0.1"),
        pytest.param(
            {"id": "t", "pushNotificationConfig": CONFIG_0_1},
            replace(OF_0_1, task_id="t"),
            id="0.1 in its wrapper",
        ),
        pytest.param(CONFIG_0_3, OF_0_3, id="0.3"),
        pytest.param(
            {"taskId": "t", "pushNotificationConfig": CONFIG_0_3},
            replace(OF_0_3, task_id="t"),
            id="0.3 in its wrapper",
        ),
        pytest.param(CONFIG_1_0, OF_1_0, id="1.0"),
        pytest.param(
            {"webhookUrl": URL, "x": 1},
            PushConfig(url=URL, extra={"x": 1}, origin=AGENTVAULT),
            id="AgentVault, whose only member is the URL",
        ),
    ],
)
def test_reads_and_writes_a_config(document: dict[str, JsonValue], config: PushConfig) -> None:
    assert config.origin is not None
    assert parse_push_config(document, config.origin) == config
    assert format_push_config(config, config.origin) == document


def test_reads_a_wrapper_in_snake_case() -> None:
    wrapped: dict[str, JsonValue] = {"task_id": "t", "push_notification_config": CONFIG_0_3}
    assert parse_push_config(wrapped, V0_3) == replace(OF_0_3, task_id="t")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "OAuth2", "mutualTLS"])
def test_some_schemes_need_no_credentials(scheme: str) -> None:
    config = parse_push_config({"url": URL, "authentication": {"scheme": scheme}}, V1_0)
    assert config.authentication == Authentication(schemes=(scheme,))


MEMBERS = (
    "url id token taskId task_id authentication scheme schemes credentials tenant message x"
    " configuration pushNotificationConfig taskPushNotificationConfig pushNotification webhookUrl"
)
names = st.sampled_from(MEMBERS.split())
anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just(URL),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=6),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.dictionaries(names, anything), st.sampled_from(WireVersion))
def test_every_config_is_read_or_refused(document: dict[str, Any], version: WireVersion) -> None:
    for read in (parse_push_config, parse_inline_config):
        try:
            config = read(document, version)
        except InvalidPushConfigError:
            continue
        if config is not None:
            again = parse_push_config(format_push_config(config, version), version)
            assert (again.url, again.token) == (config.url, config.token)


# --- with a message ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "version"),
    [
        pytest.param({"id": "t", "pushNotification": {"url": URL, "token": "k"}}, V0_1, id="0.1"),
        pytest.param(
            {
                "message": {"taskId": "t"},
                "configuration": {"pushNotificationConfig": {"url": URL, "token": "k"}},
            },
            V0_3,
            id="0.3",
        ),
        pytest.param(
            {
                "message": {"task_id": "t"},
                "configuration": {"taskPushNotificationConfig": {"url": URL, "token": "k"}},
            },
            V1_0,
            id="1.0",
        ),
        pytest.param({"id": "t", "webhookUrl": URL}, AGENTVAULT, id="AgentVault"),
    ],
)
def test_reads_the_config_that_comes_with_a_message(
    params: dict[str, Any], version: WireVersion
) -> None:
    config = parse_inline_config(params, version)

    assert config is not None
    assert (config.url, config.task_id, config.origin) == (URL, "t", version)
    assert config.token == (None if version is AGENTVAULT else "k")


@pytest.mark.parametrize("version", WireVersion)
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"message": {}},
        {"configuration": None},
        {"configuration": {"blocking": True}},
        {"webhookUrl": None, "pushNotification": None},
    ],
)
def test_a_message_need_not_carry_a_config(params: dict[str, Any], version: WireVersion) -> None:
    assert parse_inline_config(params, version) is None


def test_a_config_takes_the_tenant_of_its_request() -> None:
    configuration: JsonValue = {"taskPushNotificationConfig": {"url": URL}}
    params: dict[str, JsonValue] = {"tenant": "acme", "configuration": configuration}
    config = parse_inline_config(params, V1_0)
    assert config is not None
    assert (config.tenant, config.task_id) == ("acme", None)


@pytest.mark.parametrize("task_id", ["t", None])
def test_a_config_names_no_task_that_its_message_is_not_of(task_id: str | None) -> None:
    configuration: JsonValue = {"taskPushNotificationConfig": {"url": URL, "taskId": "another"}}
    message: JsonValue = {"taskId": task_id}
    config = parse_inline_config({"message": message, "configuration": configuration}, V1_0)
    assert config is not None
    assert config.task_id == task_id


@pytest.mark.parametrize(
    ("params", "version", "complaint"),
    [
        pytest.param(
            {
                "tenant": "acme",
                "configuration": {"taskPushNotificationConfig": {"url": URL, "tenant": "other"}},
            },
            V1_0,
            "tenant: expected the request's tenant",
            id="another tenant",
        ),
        pytest.param(
            {"configuration": {"taskPushNotificationConfig": {"url": URL, "tenant": "other"}}},
            V1_0,
            "tenant: expected the request's tenant",
            id="a tenant that the request does not name",
        ),
        pytest.param({"configuration": 5}, V1_0, "configuration: expected an object", id="type"),
        pytest.param({"pushNotification": URL}, V0_1, "expected an object", id="url alone"),
        pytest.param({"webhookUrl": {"url": URL}}, AGENTVAULT, "webhookUrl: ", id="object"),
        pytest.param(
            {"configuration": {"pushNotificationConfig": {"url": URL}}},
            V1_0,
            "pushNotificationConfig: a member of 0.3, but the client speaks 1.0",
            id="0.3 in 1.0",
        ),
        pytest.param(
            {"configuration": {"taskPushNotificationConfig": {"url": URL}}},
            V0_3,
            "a member of 1.0, but the client speaks 0.3",
            id="1.0 in 0.3",
        ),
        pytest.param({"webhookUrl": URL}, V0_3, "of agentvault-0.2", id="AgentVault in 0.3"),
        pytest.param({"pushNotification": {}}, AGENTVAULT, "of 0.1", id="0.1 in AgentVault"),
        pytest.param(
            {
                "configuration": {
                    "taskPushNotificationConfig": {"url": URL},
                    "task_push_notification_config": {"url": URL},
                }
            },
            V1_0,
            "both spellings",
            id="twice",
        ),
        pytest.param(
            {"id": 5, "pushNotification": {"url": URL}},
            V0_1,
            "id: expected a valid string",
            id="id",
        ),
    ],
)
def test_refuses_a_config_that_stands_elsewhere(
    params: dict[str, Any], version: WireVersion, complaint: str
) -> None:
    with pytest.raises(InvalidPushConfigError, match=complaint):
        parse_inline_config(params, version)


def test_empty_strings_are_absent() -> None:
    empty: JsonValue = {"scheme": "", "credentials": ""}
    config = parse_push_config(
        {"url": URL, "id": "", "token": "", "task_id": "", "tenant": "", "authentication": empty},
        V1_0,
    )
    assert config == PushConfig(url=URL, origin=V1_0)
    assert format_push_config(config, V1_0) == {"url": URL}


def test_another_version_drops_what_it_cannot_say() -> None:
    assert TWO_SCHEMES.scheme == "Bearer"
    assert format_push_config(OF_0_3, V1_0) == {
        "id": "c",
        "url": URL,
        "token": "tok-1",
        "authentication": {"scheme": "Bearer", "credentials": "cred 1"},
    }
    assert format_push_config(OF_1_0, AGENTVAULT) == {"webhookUrl": URL}
    assert format_push_config(OF_1_0, V0_3) == {
        "taskId": "t",
        "pushNotificationConfig": {
            "id": "c",
            "url": URL,
            "token": "tok-1",
            "authentication": {"schemes": ["Bearer"], "credentials": "cred 1"},
        },
    }
    assert format_push_config(replace(OF_0_1, task_id="t"), V0_3)["taskId"] == "t"


def test_authentication_without_a_scheme_is_of_0_3_alone() -> None:
    document: dict[str, JsonValue] = {"url": URL, "authentication": {"schemes": []}}
    config = parse_push_config(document, V0_3)

    assert config.authentication is not None
    assert config.authentication.scheme is None
    assert format_push_config(config, V0_3) == document
    assert format_push_config(config, V1_0) == {"url": URL}


@pytest.mark.parametrize(
    ("change", "version", "complaint"),
    [
        pytest.param({"url": None}, V0_3, "url: expected a valid string", id="no url"),
        pytest.param({"url": ""}, V1_0, "url: expected a string that is not empty", id="empty url"),
        pytest.param({"url": [SECRET]}, V1_0, "url: expected a valid string", id="list url"),
        pytest.param({"token": 5}, V1_0, "token: expected a valid string", id="number as token"),
        pytest.param({"token": f"{SECRET}\r\nX: y"}, V1_0, "token: ", id="line break in token"),
        pytest.param({"token": f"{SECRET} "}, V0_3, "token: ", id="space in token"),
        pytest.param({"token": f"{SECRET}é"}, V0_3, "token: ", id="token not ASCII"),
        pytest.param({"token": f"{SECRET}\n"}, V0_3, "token: ", id="line break at the end"),
        pytest.param(
            {"authentication": SECRET}, V1_0, "authentication: expected an obj", id="auth"
        ),
        pytest.param(
            {"authentication": {"scheme": "Bearer", "credentials": f"{SECRET}\nX: y"}},
            V1_0,
            "authentication.credentials: ",
            id="line break in credentials",
        ),
        pytest.param(
            {"authentication": {"schemes": [f"{SECRET} x"]}}, V0_3, "scheme: ", id="scheme of words"
        ),
        pytest.param(
            {"authentication": {"schemes": "Bearer"}},
            V0_3,
            "authentication.schemes: ",
            id="schemes",
        ),
        pytest.param(
            {"authentication": {"credentials": SECRET}},
            V1_0,
            "authentication.scheme: expected",
            id="credentials without a scheme",
        ),
        pytest.param(
            {"pushNotificationConfig": SECRET},
            V0_3,
            "url: 0.3 has no such member here; expected it in pushNotificationConfig",
            id="wrapper",
        ),
        pytest.param(
            {"authentication": {"credentials": SECRET}},
            V0_3,
            "authentication.schemes: expected",
            id="credentials without schemes",
        ),
        pytest.param(
            {"authentication": {"scheme": "Basic"}},
            V1_0,
            "authentication.credentials: required",
            id="Basic without credentials",
        ),
        pytest.param(
            {"authentication": {"schemes": ["Foo", "Digest"]}},
            V0_3,
            "authentication.credentials: required",
            id="unknown schemes without credentials",
        ),
        pytest.param(
            {"authentication": {"schemes": ["Bearer"] * 17}}, V0_1, "at most 16", id="17 schemes"
        ),
        pytest.param({"token": SECRET * 200_000}, V1_0, "at most 4096", id="1 MB token"),
        # Two versions mixed.
        pytest.param(
            {"authentication": {"schemes": ["Bearer"]}},
            V1_0,
            "schemes: a member of 0.1 and 0.3; 1.0 has scheme",
            id="0.3 in 1.0",
        ),
        pytest.param(
            {"authentication": {"scheme": "Bearer"}}, V0_3, "0.3 has schemes", id="1.0 in 0.3"
        ),
        pytest.param(
            {"authentication": {"scheme": "Bearer"}}, V0_1, "0.1 has schemes", id="1.0 in 0.1"
        ),
        pytest.param(
            {"authentication": {"scheme": "Bearer", "schemes": ["Bearer"]}},
            V1_0,
            "1.0 has scheme",
            id="both in 1.0",
        ),
        pytest.param(
            {"pushNotificationConfig": {"url": URL}},
            V1_0,
            "pushNotificationConfig: 1.0 has no such member here; 0.1 and 0.3 have it",
            id="wrapped in 1.0",
        ),
        pytest.param(
            {"webhookUrl": URL},
            V1_0,
            "webhookUrl: 1.0 has no such member here; agentvault-0.2 has it",
            id="AgentVault in 1.0",
        ),
        pytest.param({"webhookUrl": URL}, V0_1, "0.1 has no such member", id="AgentVault in 0.1"),
        pytest.param(
            {"webhookUrl": URL}, AGENTVAULT, "agentvault-0.2 has no such member", id="url in both"
        ),
        pytest.param({"taskId": "a", "task_id": "b"}, V1_0, "both spellings", id="both spellings"),
    ],
)
def test_refuses_a_wrong_member_without_its_value(
    change: dict[str, Any], version: WireVersion, complaint: str
) -> None:
    with pytest.raises(InvalidPushConfigError) as refusal:
        parse_push_config({"url": URL} | change, version)
    assert complaint in str(refusal.value)
    assert SECRET not in str(refusal.value)
    assert SECRET not in str(refusal.value.__cause__)


@pytest.mark.parametrize(("version", "name"), [(V1_0, "url"), (AGENTVAULT, "webhookUrl")])
def test_a_config_without_url_is_refused(version: WireVersion, name: str) -> None:
    with pytest.raises(InvalidPushConfigError, match=f"{name}: expected, but missing"):
        parse_push_config({}, version)


def test_a_config_made_by_hand_is_checked_as_well() -> None:
    with pytest.raises(InvalidPushConfigError, match="token"):
        PushConfig(url=URL, token="a\r\nb")
    with pytest.raises(InvalidPushConfigError, match="credentials"):
        Authentication(schemes=("Bearer",), credentials="")


@pytest.mark.parametrize("name", ["id", "task_id", "tenant", "authentication"])
def test_a_config_made_by_hand_with_a_member_of_a_wrong_type_is_refused(name: str) -> None:
    given: dict[str, Any] = {name: {"scheme": SECRET}}
    with pytest.raises(InvalidPushConfigError, match=f"^{name}: found dict, expected") as refusal:
        PushConfig(url=URL, **given)
    assert SECRET not in str(refusal.value)


def test_the_repr_shows_no_secret() -> None:
    authentication = Authentication(schemes=("Bearer",), credentials=SECRET, extra={"x": SECRET})
    config = PushConfig(url=URL, token=SECRET, authentication=authentication, extra={"x": SECRET})
    assert SECRET not in repr(config)


@pytest.mark.parametrize("read", [parse_push_config, parse_inline_config])
@pytest.mark.parametrize("found", [[], [1], [["url", URL]], "https://client.example.com/", None, 7])
def test_a_document_that_is_not_an_object_is_refused(
    read: Callable[..., object], found: Any
) -> None:
    with pytest.raises(InvalidPushConfigError, match="expected an object"):
        read(found, WireVersion.V1_0)
