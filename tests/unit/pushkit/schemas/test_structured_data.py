"""Data parts that declare a schema, and schemas that mean harm."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pushkit.a2a import (
    Artifact,
    ArtifactUpdate,
    DataPart,
    Message,
    MessageUpdate,
    Part,
    Role,
    StatusUpdate,
    Task,
    TaskSnapshot,
    TaskState,
    TaskStatus,
    TextPart,
    decode_update,
)
from pushkit.errors import InvalidSchemaError
from pushkit.schemas import (
    EXTENSION_URI,
    CardSchemas,
    Fit,
    check_structured_data,
    check_structured_input,
)
from pushkit.schemas.bounded_schema import BoundedSchema, UndecidedError
from tests.unit.pushkit.a2a.strategies import values

VECTORS = Path(__file__).parents[3] / "vectors"
EXAMPLE: dict[str, Any] = json.loads((VECTORS / "object-schemas-v1.json").read_text("utf-8"))
CARD: dict[str, Any] = EXAMPLE["card"]
SCHEMAS = CardSchemas.of_card(CARD)


def part(data: Any, schema: str = "fightResponse") -> DataPart:
    return DataPart(data=data, metadata={"mimeType": f"application/json;schema={schema}"})


def check(schema: Any, data: Any) -> Any:
    return BoundedSchema(schema).check(data)


# --- the extension's own examples ----------------------------------------------------------------


def test_the_example_task_fits() -> None:
    update = decode_update(json.dumps(EXAMPLE["task"]).encode())
    [verdict] = check_structured_data(update, SCHEMAS)
    assert (verdict.fit, verdict.schema) == (Fit.VALID, "fightResponse")
    assert verdict.location == "artifacts.0.parts.0"
    assert isinstance(verdict.part.data, dict)
    assert verdict.part.data["winner"] == "Tiger"


def test_the_example_message_fits() -> None:
    document = EXAMPLE["message"] | {"messageId": "1"}  # there a number, which 0.3 has not
    update = decode_update(json.dumps(document).encode())
    assert isinstance(update, MessageUpdate)
    verdict = check_structured_input(update.message, SCHEMAS)
    assert verdict is not None
    assert (verdict.fit, verdict.schema) == (Fit.VALID, "fightComparison")


@pytest.mark.parametrize(
    ("data", "path", "rule"),
    [
        pytest.param({"a": "x"}, "", "required", id="missing"),
        pytest.param({"a": "x", "b": 5}, "/b", "type", id="type"),
        pytest.param({"a": "x", "b": "y", "c": 1}, "", "additionalProperties", id="more"),
        pytest.param("text", "", "type", id="no object"),
        pytest.param(None, "", "type", id="null"),
    ],
)
def test_bad_data_is_invalid_with_its_place(data: Any, path: str, rule: str) -> None:
    [verdict] = check_structured_data(
        ArtifactUpdate(
            task_id="t", artifact=Artifact(artifact_id="a", parts=(part(data, "fightComparison"),))
        ),
        SCHEMAS,
    )
    assert (verdict.fit, verdict.path, verdict.rule) == (Fit.INVALID, path, rule)


def test_a_name_that_the_card_does_not_have_is_unknown() -> None:
    message = Message(message_id="m", role=Role.AGENT, parts=(part({}, "nothing"),))
    [verdict] = check_structured_data(MessageUpdate(message=message), SCHEMAS)
    assert (verdict.fit, verdict.schema) == (Fit.UNKNOWN_SCHEMA, "nothing")


# --- which parts ---------------------------------------------------------------------------------

RESULT = {"winner": "Tiger", "probability": 0.5, "explanation": ""}


def test_every_part_of_an_agent_is_checked_but_not_the_history() -> None:
    message = Message(message_id="m", role=Role.AGENT, parts=(part(RESULT),))
    status = TaskStatus(state=TaskState.WORKING, message=message)
    parts: tuple[Part, ...] = (TextPart(text="x"), part({}), DataPart(data=1))
    artifact = Artifact(artifact_id="a", parts=parts)
    task = Task(id="t", status=status, artifacts=(artifact, artifact), history=(message,))

    of_task = check_structured_data(TaskSnapshot(task=task), SCHEMAS)
    assert [(each.location, each.fit) for each in of_task] == [
        ("status.message.parts.0", "valid"),
        ("artifacts.0.parts.1", "invalid"),
        ("artifacts.1.parts.1", "invalid"),
    ]
    of_status = check_structured_data(StatusUpdate(task_id="t", status=status), SCHEMAS)
    assert [each.location for each in of_status] == ["status.message.parts.0"]
    assert (
        check_structured_data(
            StatusUpdate(task_id="t", status=replace(status, message=None)), SCHEMAS
        )
        == []
    )


def test_only_the_first_data_part_of_a_client_is_checked() -> None:
    parts: tuple[Part, ...] = (TextPart(text="x"), part({}), part(RESULT))
    message = Message(message_id="m", role=Role.USER, parts=parts)
    verdict = check_structured_input(message, SCHEMAS)
    assert verdict is not None
    assert (verdict.location, verdict.fit) == ("message.parts.1", "invalid")
    assert check_structured_input(replace(message, parts=parts[:1]), SCHEMAS) is None


@pytest.mark.parametrize(
    ("mime_type", "name"),
    [
        ("application/json;schema=a", "a"),
        ("application/json; schema=a-b.c", "a-b.c"),
        ('Application/JSON ; Schema="a b"', "a b"),
        ("application/json", None),
        ("application/json;schema=", None),
        ("application/json;schema=a;schema=b", None),
        ("text/plain;schema=a", None),
        ("application/json;schema=" + "a" * 300, None),
        (5, None),
        (None, None),
    ],
)
def test_a_data_part_names_its_schema(mime_type: Any, name: str | None) -> None:
    assert DataPart(data={}, metadata={"mimeType": mime_type}).schema_name == name
    if isinstance(mime_type, str):
        assert DataPart(data={}, media_type=mime_type).schema_name == name


# --- cards ---------------------------------------------------------------------------------------


def card(extension: Any, **members: Any) -> dict[str, Any]:
    return {"capabilities": {"extensions": [{"uri": "x"}, extension]}} | members


def names_of(document: dict[str, Any]) -> set[str]:
    schemas = CardSchemas.of_card(document)
    known = {"a", "b"}
    return {n for n in known if schemas.verdict(part({}, n), n, "").fit is not Fit.UNKNOWN_SCHEMA}


def test_schemas_stand_at_the_root_or_in_the_params() -> None:
    declared = {"uri": EXTENSION_URI}
    params = declared | {"params": {"schemas": {"b": True}}}
    assert names_of(card(declared, schemas={"a": True})) == {"a"}
    assert names_of(card(params)) == {"b"}
    assert names_of(card(params, schemas={"a": True, "b": True})) == {"a", "b"}


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"schemas": {"a": True}},
        {"capabilities": None, "schemas": {"a": True}},
        {"capabilities": {"extensions": 5}, "schemas": {"a": True}},
        {"capabilities": {"extensions": [5, {"uri": "x"}]}, "schemas": {"a": True}},
    ],
)
def test_a_card_without_the_extension_has_none(document: dict[str, Any]) -> None:
    assert names_of(document) == set()


@pytest.mark.parametrize(
    ("members", "says"),
    [
        pytest.param({"schemas": []}, "expected an object", id="list"),
        pytest.param({"schemas": {str(n): True for n in range(65)}}, "at most 64", id="65"),
        pytest.param({"schemas": {"a": False}}, "same name differ", id="two of one name"),
    ],
)
def test_a_card_with_unclear_schemas_is_refused(members: dict[str, Any], says: str) -> None:
    extension = {"uri": EXTENSION_URI, "params": {"schemas": {"a": True}}}
    with pytest.raises(InvalidSchemaError, match=says):
        CardSchemas.of_card(card(extension, **members))


def test_one_bad_schema_spoils_nothing_but_its_own_data() -> None:
    schemas = CardSchemas({"a": {"type": "nonsense"}, "b": {"type": "object"}})
    assert schemas.unusable == {"a": "not a schema at /type"}
    verdict = schemas.verdict(part({}), "a", "")
    assert (verdict.fit, verdict.rule) == (Fit.UNDECIDED, "not a schema at /type")
    assert schemas.verdict(part({}), "b", "").fit is Fit.VALID


# --- what is said, and what is not done -----------------------------------------------------------


def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a schema made a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    schema = {"$id": "https://x.example/s", "$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/b"}}}
    with pytest.raises(UndecidedError, match="leads nowhere"):
        check(schema, {})


def test_a_complaint_holds_nothing_of_the_data() -> None:
    complaint = check({"properties": {"a/b": {"items": {"const": 1}}}}, {"a/b": [1, "hunter2"]})
    assert (complaint.path, complaint.rule) == ("/a~1b/1", "const")
    assert "hunter2" not in repr(complaint)


@pytest.mark.parametrize(
    ("items", "unique"),
    [
        ([1, 1.0], False),
        ([1, True], True),
        ([0, False], True),
        ([{"a": 1, "b": [1.0]}, {"b": [1], "a": 1}], False),
        ([[1], [True]], True),
        (["1", 1], True),
        ([], True),
    ],
)
def test_items_are_unique_by_value(items: list[Any], unique: bool) -> None:
    assert (check({"uniqueItems": True}, items) is None) is unique
    assert jsonschema.Draft202012Validator({"uniqueItems": True}).is_valid(items) is unique


# --- the library as the judge --------------------------------------------------------------------

simple = st.sampled_from(
    [
        {"type": "object"},
        {"type": ["string", "null"]},
        {"minLength": 2, "pattern": "^[a-z]+$"},
        {"enum": [1, "a", None, [1], True]},
        {"const": {"a": 1}},
        {"minimum": 0, "multipleOf": 0.5},
        {"uniqueItems": True},
        {"required": ["a"]},
        {"patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": False},
        {"properties": {"X": {}}, "additionalProperties": {"type": "string"}},
        {"$ref": "#/$defs/own"},
    ]
)
schemas: st.SearchStrategy[Any] = st.recursive(
    simple | st.booleans(),
    lambda inner: st.one_of(
        st.builds(lambda s: {"items": s}, inner),
        st.builds(lambda s: {"not": s}, inner),
        st.builds(lambda s: {"properties": {"a": s, "X": s}}, inner),
        st.builds(
            lambda word, some: {word: some},
            st.sampled_from(["anyOf", "allOf", "oneOf"]),
            st.lists(inner, min_size=1, max_size=2),
        ),
        st.builds(lambda a, b, c: {"if": a, "then": b, "else": c}, inner, inner, inner),
    ),
    max_leaves=5,
)


@settings(deadline=None, max_examples=200)
@given(schemas, values)
def test_says_what_the_plain_library_says(schema: Any, data: Any) -> None:
    whole = {"$defs": {"own": {"type": "object"}}, "allOf": [schema]}
    plain = jsonschema.Draft202012Validator(whole)
    assert (check(whole, data) is None) is plain.is_valid(data)


@pytest.mark.parametrize("package", ["pushkit", "receiver"])
def test_packages_that_check_no_data_do_not_load_the_schemas(package: str) -> None:
    code = f"import sys, {package}; print('pushkit.schemas' in sys.modules)"
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  # ours
    assert found.stdout.strip() == "False"
