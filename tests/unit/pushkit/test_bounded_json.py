from __future__ import annotations

import collections
import decimal
import functools
import json
import uuid
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from pushkit import bounded_json
from pushkit.bounded_json import JsonValue, read_json, read_json_object, write_json
from pushkit.errors import MalformedJsonError

json_values: st.SearchStrategy[JsonValue] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # UTF-8 cannot encode surrogates.
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=20,
)


@given(json_values)
def test_reads_what_the_standard_library_writes(value: JsonValue) -> None:
    assert read_json(json.dumps(value).encode()) == value


@given(json_values)
def test_reads_what_it_writes_itself(value: JsonValue) -> None:
    found = read_json(write_json(value))
    assert found == value
    assert json.dumps(found) == json.dumps(value)  # 1, 1.0 and true are equal, -0.0 and 0.0 too


@given(
    st.text(alphabet='[]{}",:\\u0123456789-+eE.truefalsn', max_size=40)
    | json_values.map(lambda value: json.dumps(value, separators=(",", ":")))
)
def test_the_fast_reader_takes_nothing_that_the_strict_one_refuses(text: str) -> None:
    canonical, value = bounded_json._read_canonical(text.encode())
    if canonical:
        strictly = bounded_json._read_strictly(text.encode())
        assert json.dumps(value) == json.dumps(strictly)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_the_one_error(data: bytes) -> None:
    try:
        read_json(data)
    except MalformedJsonError:
        return


@given(st.text(alphabet='[]{}",:\\udDabcdef0123456789-+eE.truefalsnNIy \n', max_size=60))
def test_anything_like_json_is_a_value_or_the_one_error(text: str) -> None:
    try:
        read_json(text.encode())
    except MalformedJsonError:
        return


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{", id="cut off"),
        pytest.param(b"{} {}", id="two texts"),
        pytest.param(b'{"a":1,"a":1}', id="a member twice"),
        pytest.param(b'[{"b":{"a":1,"\\u0061":2}}]', id="a member twice, spelled in two ways"),
        pytest.param(b"NaN", id="NaN"),
        pytest.param(b"[-Infinity]", id="infinity"),
        pytest.param(b"1e400", id="beyond a double"),
        pytest.param(b"9" * 5000, id="endless digits"),
        pytest.param(b"\xff\xfe[\x00]\x00", id="UTF-16"),
        pytest.param(b"\xef\xbb\xbf[]", id="a byte order mark"),
        pytest.param(b'"\xc3"', id="half of a character"),
        pytest.param(b'"\\ud800"', id="half of a surrogate pair"),
        pytest.param(b'{"\\udfff":1}', id="half of a surrogate pair, as a name"),
        pytest.param(b"[" * 100_000, id="open brackets without end"),
        pytest.param(b'{"a":' * 65 + b"1" + b"}" * 65, id="65 levels"),
        pytest.param(b"[" * 65 + b"]" * 65, id="65 levels around nothing"),
    ],
)
def test_refuses(data: bytes) -> None:
    with pytest.raises(MalformedJsonError):
        read_json(data)


def test_accepts_64_levels() -> None:
    assert read_json(b"[" * 64 + b"1" + b"]" * 64)


def test_accepts_many_brackets_side_by_side() -> None:
    assert read_json(b"[" + b"[]," * 1000 + b"[]]") == [[]] * 1001


def test_accepts_a_whole_surrogate_pair() -> None:
    assert read_json(b'"\\ud83d\\ude00"') == "\N{GRINNING FACE}"


@pytest.mark.parametrize("data", [b"null", b"true", b"1", b"1.5", b'"a"', b"[]"])
def test_an_object_is_an_object(data: bytes) -> None:
    with pytest.raises(MalformedJsonError, match="expected a JSON object"):
        read_json_object(data)


def test_no_message_repeats_the_contents() -> None:
    with pytest.raises(MalformedJsonError) as caught:
        read_json(b'{"token":"canary","token":"canary"}')
    assert "canary" not in str(caught.value)


# --- depth, told by the bytes --------------------------------------------------------------------


def depth(value: JsonValue) -> int:
    if not isinstance(value, dict | list):
        return 0
    children = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth, children), default=0)


troublesome = st.text(alphabet='[]{}",:\\/u0022aé\n', max_size=6)
nested: st.SearchStrategy[JsonValue] = st.recursive(
    troublesome | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(troublesome, inner, max_size=4),
    max_leaves=30,
)


@given(nested, st.booleans(), st.integers(0, 6))
def test_the_depth_by_bytes_is_that_of_a_walk(value: JsonValue, escaped: bool, limit: int) -> None:
    data = json.dumps(value, ensure_ascii=escaped).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounded_json, "MAX_DEPTH", limit)
        if depth(value) <= limit:
            assert read_json(data) == value
        else:
            with pytest.raises(MalformedJsonError, match=f"nested deeper than {limit} levels"):
                read_json(data)


# --- writing -------------------------------------------------------------------------------------

FALLBACK = (to_json, functools.partial(from_json, allow_inf_nan=False))


@pytest.fixture(params=["installed", "fallback"])
def writer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer that is installed, and the standard library's."""
    if request.param == "fallback":
        monkeypatch.setattr(bounded_json, "_fast_dumps", FALLBACK[0])
        monkeypatch.setattr(bounded_json, "_fast_loads", FALLBACK[1])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(json_values)
@pytest.mark.usefixtures("writer")
def test_a_written_value_is_read_unchanged(value: JsonValue) -> None:
    assert json.loads(write_json(value)) == value


@pytest.mark.usefixtures("writer")
def test_writes_compact_utf_8() -> None:
    value: JsonValue = {"é": [1, 1.0, -0.5, 10**30, True, None, 'a"b\\c\n\x1f/'], "b": {}}
    expected = '{"é":[1,1.0,-0.5,' + str(10**30) + ',true,null,"a\\"b\\\\c\\n\\u001f/"],"b":{}}'
    assert write_json(value) == expected.encode()


class Name(str):
    """A subclass of str, as enumerations are."""

    __slots__ = ()


@pytest.mark.usefixtures("writer")
def test_writes_what_is_a_text_and_a_dict_by_its_class() -> None:
    assert write_json(collections.OrderedDict(a=Name("x"))) == b'{"a":"x"}'


def deep(levels: int) -> JsonValue:
    value: JsonValue = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        pytest.param({"a": [float("nan")]}, "a.0: a value that JSON cannot represent", id="NaN"),
        pytest.param([float("-inf")], "0: a value", id="infinity"),
        pytest.param({"a": "\ud800"}, "a: a value", id="half of a surrogate pair"),
        pytest.param({"\udfff": 1}, "the document: a value", id="the same, as a name"),
        pytest.param({"a": {1: 2}}, "a: a value", id="a name that is a number"),
        pytest.param({None: 2}, "the document: a value", id="a name that is none"),
        pytest.param([(1,)], "0: a value", id="tuple"),
        pytest.param([b"x"], "0: a value", id="bytes"),
        pytest.param([{1}], "0: a value", id="set"),
        pytest.param([datetime.now(UTC)], "0: a value", id="time"),
        pytest.param([uuid.uuid4()], "0: a value", id="UUID"),
        pytest.param([decimal.Decimal(1)], "0: a value", id="decimal"),
        pytest.param([Ellipsis], "0: a value", id="any object"),
        pytest.param(deep(300), "nested too deeply", id="300 levels"),
        pytest.param(deep(100_000), "nested too deeply", id="100,000 levels"),
        pytest.param([10**5000], "too many digits", id="endless digits"),
    ],
)
@pytest.mark.usefixtures("writer")
def test_refuses_to_write(value: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        write_json(value)


@pytest.mark.usefixtures("writer")
def test_text_is_checked_whatever_its_origin() -> None:
    with pytest.raises(ValueError, match=r"a\.0: a value that JSON cannot represent"):
        write_json({"a": ["\ud800"]}, foreign=False)
