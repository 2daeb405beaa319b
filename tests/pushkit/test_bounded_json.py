from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushkit.bounded_json import JsonValue, read_json, read_json_object
from pushkit.errors import MalformedJsonError

json_values: st.SearchStrategy[JsonValue] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # Surrogates are no text that UTF-8 can say.
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=20,
)


@given(json_values)
def test_reads_what_the_standard_library_writes(value: JsonValue) -> None:
    assert read_json(json.dumps(value).encode()) == value


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
