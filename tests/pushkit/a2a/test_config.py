"""Push-notification configs as clients register them."""

from __future__ import annotations

from typing import Any

import pytest

from pushkit.a2a import (
    Authentication,
    PushConfig,
    WireVersion,
    format_push_config,
    parse_push_config,
)
from pushkit.bounded_json import JsonValue
from pushkit.errors import InvalidPushConfigError

V0_3, V1_0 = WireVersion.V0_3, WireVersion.V1_0
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


def test_reads_and_writes_a_config_of_0_3() -> None:
    config = parse_push_config(CONFIG_0_3, V0_3)

    assert config.url == URL
    assert config.token == "tok-1"
    assert config.authentication is not None
    assert config.authentication.scheme == "Bearer"
    assert config.authentication.credentials == "cred 1"
    assert format_push_config(config, V0_3) == CONFIG_0_3


@pytest.mark.parametrize(
    ("task_id", "member"),
    [
        pytest.param("taskId", "pushNotificationConfig", id="camelCase"),
        pytest.param("task_id", "push_notification_config", id="snake_case"),
    ],
)
def test_reads_a_config_of_0_3_in_its_wrapper(task_id: str, member: str) -> None:
    config = parse_push_config({task_id: "t", member: CONFIG_0_3}, V0_3)

    assert config.task_id == "t"
    assert format_push_config(config, V0_3) == {"taskId": "t", "pushNotificationConfig": CONFIG_0_3}


def test_reads_and_writes_a_config_of_1_0() -> None:
    config = parse_push_config(CONFIG_1_0, V1_0)

    assert (config.id, config.task_id, config.tenant) == ("c", "t", "acme")
    assert config.authentication == Authentication(schemes=("Bearer",), credentials="cred 1")
    assert format_push_config(config, V1_0) == CONFIG_1_0


def test_empty_strings_are_absent() -> None:
    empty: JsonValue = {"scheme": "", "credentials": ""}
    config = parse_push_config(
        {"url": URL, "id": "", "token": "", "task_id": "", "tenant": "", "authentication": empty},
        V1_0,
    )
    assert config == PushConfig(url=URL, origin=V1_0)
    assert format_push_config(config, V1_0) == {"url": URL}


def test_another_version_drops_what_it_cannot_say() -> None:
    of_0_3, of_1_0 = parse_push_config(CONFIG_0_3, V0_3), parse_push_config(CONFIG_1_0, V1_0)

    assert format_push_config(of_0_3, V1_0) == {
        "id": "c",
        "url": URL,
        "token": "tok-1",
        "authentication": {"scheme": "Bearer", "credentials": "cred 1"},
    }
    assert format_push_config(of_1_0, V0_3) == {
        "taskId": "t",
        "pushNotificationConfig": {
            "id": "c",
            "url": URL,
            "token": "tok-1",
            "authentication": {"schemes": ["Bearer"], "credentials": "cred 1"},
        },
    }


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
            {"pushNotificationConfig": SECRET}, V0_3, "pushNotificationConfig: ", id="wrapper"
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


def test_a_config_without_url_is_refused() -> None:
    with pytest.raises(InvalidPushConfigError, match="url: expected, but missing"):
        parse_push_config({}, V1_0)


def test_a_config_made_by_hand_is_checked_as_well() -> None:
    with pytest.raises(InvalidPushConfigError, match="token"):
        PushConfig(url=URL, token="a\r\nb")
    with pytest.raises(InvalidPushConfigError, match="credentials"):
        Authentication(schemes=("Bearer",), credentials="")


def test_the_repr_shows_no_secret() -> None:
    authentication = Authentication(schemes=("Bearer",), credentials=SECRET, extra={"x": SECRET})
    config = PushConfig(url=URL, token=SECRET, authentication=authentication, extra={"x": SECRET})
    assert SECRET not in repr(config)
