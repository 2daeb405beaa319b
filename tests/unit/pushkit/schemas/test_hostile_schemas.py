"""Expensive schemas are refused or abandoned in time, and delay nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
import tracemalloc
from typing import Any

import pytest

from pushkit import schemas
from pushkit.a2a import DataPart, Message, MessageUpdate, Role
from pushkit.errors import ConfigError, InvalidSchemaError
from pushkit.schemas import (
    CardSchemas,
    Fit,
    bounded_schema,
    check_structured_data,
    check_structured_data_apart,
)
from pushkit.schemas.bounded_schema import MAX_STEPS, BoundedSchema, Steps, UndecidedError

DRAFT_4 = "http://json-schema.org/draft-04/schema#"


def doubling(levels: int, leaf: Any, keyword: str = "allOf") -> dict[str, Any]:
    """Return a schema of a few lines that applies its leaf 2^levels times."""
    found: dict[str, Any] = {"d0": leaf}
    for level in range(1, levels + 1):
        found[f"d{level}"] = {keyword: [{"$ref": f"#/$defs/d{level - 1}"}] * 2}
    return {"$defs": found, "$ref": f"#/$defs/d{levels}"}


def doubling_for_members(levels: int) -> dict[str, Any]:
    """Return a schema that requires the level below for `a` and for `b`."""
    found: dict[str, Any] = {"d0": True}
    for level in range(1, levels + 1):
        below = {"$ref": f"#/$defs/d{level - 1}"}
        found[f"d{level}"] = {"dependentSchemas": {"a": below, "b": below}}
    return {"$defs": found, "$ref": f"#/$defs/d{levels}"}


def update(data: Any, schema: str = "costly", parts: int = 1) -> MessageUpdate:
    metadata = {"mimeType": f"application/json;schema={schema}"}
    part = DataPart(data=data, metadata=metadata)
    return MessageUpdate(message=Message(message_id="1", role=Role.AGENT, parts=(part,) * parts))


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        pytest.param(5, "expected an object or a boolean", id="number"),
        pytest.param({"type": 5}, "not a schema at /type", id="no schema"),
        pytest.param({"$schema": "https://x.example/s"}, "unknown dialect", id="own dialect"),
        pytest.param({"$schema": 5}, "expected a string", id="dialect of a wrong type"),
        pytest.param(
            {"items": {"$schema": "http://json-schema.org/draft-07/schema#"}},
            "only at the root",
            id="inner dialect",
        ),
        pytest.param({"$ref": "https://x.example/s"}, "starting with #", id="remote"),
        pytest.param({"$ref": "file:///etc/passwd"}, "starting with #", id="file"),
        pytest.param({"items": {"$ref": "other.json"}}, "starting with #", id="relative"),
        pytest.param(
            {"$ref": "https://json-schema.org/draft/2020-12/schema"},
            "starting with #",
            id="meta-schema",
        ),
        pytest.param({"pattern": "(a)\\1"}, "RE2", id="back-reference"),
        pytest.param({"pattern": "(?=a)"}, "RE2", id="look-ahead"),
        pytest.param({"patternProperties": {"(": {}}}, "RE2", id="no pattern"),
        pytest.param({"pattern": "((a{999}){999}){999}"}, "RE2", id="huge automaton"),
        pytest.param({"pattern": "a" * 2000}, "longer than 1024", id="long pattern"),
        pytest.param(
            {"patternProperties": {f"x{n}": {} for n in range(257)}}, "at most 256", id="257"
        ),
        pytest.param({"description": "x" * 70_000}, "at most 65536", id="long"),
        pytest.param(nested(40), "deeper than 32", id="deep"),
        pytest.param(nested(5000), "nested (too deeply|deeper than 32)", id="very deep"),
        pytest.param({"unevaluatedProperties": False}, "unevaluatedProperties", id="unevaluated"),
        pytest.param({"unevaluatedItems": False}, "unevaluatedItems", id="unevaluatedItems"),
        pytest.param({"allOf": [{"unevaluatedProperties": {}}]}, "unevaluated", id="further down"),
        pytest.param({"$dynamicRef": "#x", "$dynamicAnchor": "x"}, "dynamic", id="$dynamicRef"),
        pytest.param(
            {"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveRef": "#"},
            "recursiveRef",
            id="$recursiveRef",
        ),
        pytest.param(
            {"$defs": {"a": {"$anchor": "a"}}, "$ref": "#a"}, "starting with #/", id="anchor"
        ),
        pytest.param({"pattern": "\\p{L}{1,900}"}, "RE2", id="large automaton"),
    ],
)
def test_a_schema_that_cannot_be_bounded_is_refused(schema: Any, says: str) -> None:
    with pytest.raises(InvalidSchemaError, match=says):
        BoundedSchema(schema)


def test_what_was_evaluated_elsewhere_is_not_looked_for() -> None:
    schema = doubling(13, {"properties": {"a": True}}, "allOf")
    schema["unevaluatedProperties"] = False
    [verdict] = check_structured_data(update({"a": 1, "b": 2}), CardSchemas({"costly": schema}))
    assert verdict.fit is Fit.UNDECIDED
    assert verdict.rule is not None
    assert "unevaluatedProperties" in verdict.rule


NUMBERS = [0] * 50_000
TEXT = {"a": "x" * 1_000_000}


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        pytest.param({"anyOf": [{"type": "string"}] * 3000}, NUMBERS, id="complaints about much"),
        pytest.param(doubling(14, {"type": "string"}, "anyOf"), TEXT, id="doubling complaints"),
        pytest.param(doubling_for_members(14), {**TEXT, "b": 1}, id="doubling dependentSchemas"),
        pytest.param({"oneOf": [False] * 1500}, TEXT, id="false"),
        pytest.param(
            {"$id": "https://x.example/", "allOf": [{"$id": "y", **doubling(13, True)}]},
            1,
            id="ids",
        ),
        pytest.param(
            {
                **doubling(12, {"$id": "y", "$ref": "#/x", "x": {}}),
                "x": {f"f{n}": {"$id": f"https://x.example/{n}"} for n in range(1000)},
            },
            1,
            id="many ids",
        ),
        pytest.param({"pattern": "[ab]*a[ab]{900}$"}, "ab" * 500_000, id="automaton x text"),
        pytest.param(
            {"patternProperties": {"[ab]*a[ab]{900}$": {}}},
            {f"{'ab' * 500}{n}": 1 for n in range(500)},
            id="automaton x names",
        ),
    ],
)
@pytest.mark.slow
def test_a_slow_check_ends_in_time_and_with_little_memory(schema: Any, data: Any) -> None:
    bounded = BoundedSchema(schema, max_seconds=60)  # this is about its use
    tracemalloc.start()
    try:
        with pytest.raises(UndecidedError, match="too"):
            bounded.check(data, Steps(MAX_STEPS, seconds=0.3))
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 64 * 1024 * 1024


@pytest.mark.parametrize(
    ("schema", "data", "says"),
    [
        pytest.param(doubling(30, True), {}, "too many steps", id="2^30 references"),
        pytest.param({"$ref": "#"}, {}, "recursive", id="circle"),
        pytest.param(
            {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, {}, "recursive", id="doubling circle"
        ),
        pytest.param({"$ref": "#/$defs/x"}, {}, "leads nowhere", id="reference to nothing"),
        pytest.param(
            {"items": {"not": {"enum": list(range(5000))}}}, [-1] * 5000, "steps", id="enum x items"
        ),
        pytest.param({"uniqueItems": True}, list(range(200_000)), "steps", id="much data"),
        pytest.param(
            {"patternProperties": {f"x{n}": {} for n in range(250)}},
            {f"k{n}": 1 for n in range(1000)},
            "steps",
            id="patterns x properties",
        ),
        pytest.param(
            {"allOf": [{"not": {"pattern": f"x{n}"}} for n in range(250)]},
            "k" * 1_000_000,
            "steps",
            id="patterns x text",
        ),
    ],
)
@pytest.mark.slow
def test_a_check_that_costs_too_much_is_undecided(schema: Any, data: Any, says: str) -> None:
    bounded = BoundedSchema(schema)
    with pytest.raises(UndecidedError, match=says):
        bounded.check(data)


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        pytest.param({"multipleOf": 0.5}, 10**400, id="an integer that is no double"),
        pytest.param({"title": "x", "$ref": "#/title"}, 1, id="a string for a schema"),
        pytest.param({"x": 3, "allOf": [{"$ref": "#/x"}]}, 1, id="a number for a schema"),
        pytest.param({"x": {"type": "none"}, "$ref": "#/x"}, 1, id="no type"),
        pytest.param({"x": {"properties": 5}, "$ref": "#/x"}, {"a": 1}, id="properties: a number"),
        pytest.param({"x": {"required": 5}, "$ref": "#/x"}, {"a": 1}, id="required: a number"),
        pytest.param({"x": {"multipleOf": 0}, "$ref": "#/x"}, 5, id="multiple of nothing"),
        pytest.param({"$id": "http://[", "$ref": "#/a"}, 1, id="an id that is no URI"),
        pytest.param({"x": {"type": [{"type": 5}]}, "$ref": "#/x"}, 1, id="a type of types"),
        pytest.param({"allOf": [{"$id": "http://[::", "$ref": "#/a"}]}, 1, id="a URI broken off"),
    ],
)
def test_an_error_of_the_library_is_undecided(schema: Any, data: Any) -> None:
    with pytest.raises(UndecidedError):
        BoundedSchema(schema).check(data)


@pytest.mark.slow
def test_many_parts_share_one_limit() -> None:
    schemas = CardSchemas({"costly": doubling(12, True)})
    fits = [verdict.fit for verdict in check_structured_data(update({}, parts=500), schemas)]
    assert fits[0] is Fit.VALID
    assert fits[50:] == [Fit.UNDECIDED] * 450


def test_a_pattern_that_backtracks_in_other_engines_ends() -> None:
    complaint = BoundedSchema({"pattern": "^(a+)+$"}).check("a" * 50_000 + "!")
    assert complaint is not None
    assert complaint.rule == "pattern"
    assert (
        BoundedSchema({"patternProperties": {"^(a|a)*$": False}}).check({"a" * 5000 + "!": 1})
        is None
    )
    assert BoundedSchema({"propertyNames": {"pattern": "^(a|aa)+$"}}).check({"a" * 5000: 1}) is None


@pytest.mark.slow
def test_the_limit_counts_inside_of_a_schema_that_names_its_dialect() -> None:
    schema = doubling(30, True) | {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    with pytest.raises(UndecidedError, match="steps"):
        BoundedSchema(schema).check({})


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(
            {"$schema": DRAFT_4, "enum": [x for n in range(4000) for x in (n, str(n))]},
            id="unique among many",
        ),
        pytest.param({"allOf": [{"enum": [[n]]} for n in range(3000)]}, id="many schemas"),
    ],
)
def test_a_schema_is_itself_checked_in_time(schema: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_schema, "_MAX_STEPS_OF_SCHEMA", 10_000)
    assert len(json.dumps(schema)) < 65_536
    with pytest.raises(InvalidSchemaError, match="too"):
        BoundedSchema(schema)


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf", "not", "if", "contains", "items"])
@pytest.mark.parametrize("more", range(4))
@pytest.mark.slow
def test_a_circle_ends_before_the_stack_does(keyword: str, more: int) -> None:
    # A panic of a library in Rust is no Exception: it would end the thread. So that the stack would
    # end in each of the libraries once, the circle is begun at different depths.
    inner: Any = {"$ref": "#"}
    for _ in range(more):
        inner = {"allOf": [inner]}
    circle = {keyword: inner if keyword in ("not", "if", "contains", "items") else [inner, inner]}
    data: Any = [[]] if keyword in ("contains", "items") else {}
    for _ in range(60 if isinstance(data, list) else 0):
        data = [data]

    def at(depth: int) -> Any:
        return at(depth - 1) if depth else BoundedSchema(circle).check(data)

    for depth in range(0, 60, 7):
        with contextlib.suppress(UndecidedError):
            at(depth)


def test_a_tree_as_deep_as_json_may_be_is_decided() -> None:
    tree: dict[str, Any] = {
        "properties": {"child": {"$ref": "#"}, "name": {"type": "string"}},
        "required": ["name"],
        "additionalProperties": False,
    }
    data: dict[str, Any] = {"name": "leaf"}
    for _ in range(60):
        data = {"name": "x", "child": data}
    assert BoundedSchema(tree).check(data) is None


@pytest.mark.parametrize("missing", ["jsonschema", "re2"])
def test_without_the_extra_a_card_with_schemas_is_a_wrong_setting_at_once(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    CardSchemas({})
    for make in (CardSchemas, BoundedSchema):
        with pytest.raises(ConfigError, match=r"pip install '\.\[schemas\]'"):
            make({"a": {}})


@pytest.mark.slow
def test_all_schemas_of_a_card_share_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    slow: dict[str, Any] = {"allOf": [{"enum": [[n]]} for n in range(1000)]}
    began = time.thread_time()
    assert not CardSchemas({"alone": slow}).unusable
    monkeypatch.setattr(schemas, "_MAX_READING_SECONDS", 5 * (time.thread_time() - began))
    card = CardSchemas({f"s{n}": {**slow, "title": str(n)} for n in range(60)})
    unusable = card.unusable
    assert "s0" not in unusable
    assert "too" in unusable["s59"]


@pytest.mark.slow
async def test_the_loop_and_others_go_on_while_a_hostile_schema_is_tried() -> None:
    hostile = CardSchemas({"costly": doubling(16, {"type": "string"}, "anyOf")})
    honest = CardSchemas({"costly": {"type": "object"}})
    tried = [
        asyncio.create_task(check_structured_data_apart(update(TEXT), hostile)) for _ in range(20)
    ]
    [verdict] = await check_structured_data_apart(update({}), honest)
    assert verdict.fit is Fit.VALID
    assert not any(task.done() for task in tried[2:])
    named = [thread.name for thread in threading.enumerate()]
    assert sum("pushkit-schemas" in name for name in named) <= 2
    # A thread of everybody's is free: name lookups and files run there.
    assert await asyncio.to_thread(lambda: True)
    for task in tried[1:]:
        task.cancel()
    [given_up] = await tried[0]
    assert given_up.fit is Fit.UNDECIDED
    await asyncio.gather(*tried, return_exceptions=True)


async def test_checked_apart_is_checked_the_same() -> None:
    schemas = CardSchemas({"costly": {"type": "string"}})
    for data in ("x", 5):
        assert await check_structured_data_apart(update(data), schemas) == check_structured_data(
            update(data), schemas
        )
    [unknown] = await check_structured_data_apart(update({}, "other"), schemas)
    assert unknown.fit is Fit.UNKNOWN_SCHEMA
