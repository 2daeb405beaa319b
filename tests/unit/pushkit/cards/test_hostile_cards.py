"""Cards made to hurt: they end in a verdict, or in the one error type."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushkit.cards import CardForm, CardPolicy, TrustedKeys, sign_card, verify_card
from pushkit.cards.document import MAX_CARD_BYTES, MAX_SIGNATURES
from pushkit.errors import MalformedCardError, PushkitError
from pushkit.keys.jwk import Algorithm, generate_key
from tests.unit.pushkit.cards.vectors import NOW, TRUST, served

EVERYTHING = CardPolicy(admit=frozenset(CardForm))
SIGNED = served("signed_ref_spec")["c01_minimal"]


def with_params(params: str) -> bytes:
    """Return the signed card with hostile free-form JSON in it."""
    extension = f'"capabilities": {{"extensions": [{{"uri": "u", "params": {{"p": {params}}}}}]}}'
    rest = json.dumps({name: v for name, v in SIGNED.items() if name != "capabilities"})
    return f"{{{extension}, {rest.removeprefix('{')}".encode("utf-8", "surrogatepass")


MALFORMED = {
    "deep": with_params("[" * 100_000 + "]" * 100_000),
    "deep-objects": with_params('{"a":' * 5000 + "1" + "}" * 5000),
    "deep-never-closed": b'{"a":' * 100_000,
    "a-little-too-deep": with_params("[" * 61 + "]" * 61),
    "digits": with_params("9" * 100_000),
    "beyond-a-double": with_params("1e999"),
    "nan": with_params("NaN"),
    "infinity": with_params("-Infinity"),
    "half-a-pair": with_params(r'"\ud83d"'),
    "half-a-pair-as-name": with_params(r'{"\udc00": 1}'),
    "half-a-pair-raw": with_params('"\ud800"'),
    "twice": with_params('{"a": 1, "a": 2}'),
    "twice-by-escape": with_params(r'{"a": 1, "\u0061": 2}'),
    "not-utf-8": b'{"name": "\xff"}',
    "utf-16": '{"name": "x"}'.encode("utf-16"),
    "byte-order-mark": b"\xef\xbb\xbf{}",
    "ten-megabytes": b'{"name": "' + b"a" * 10_000_000 + b'"}',
    "ten-megabytes-of-brackets": b"[" * 10_000_000,
    "too-many-values": with_params("[" + "0," * 60_000 + "0]"),
    "list": b"[]",
    "string": b'"card"',
    "empty": b"",
    "null": b"null",
}
SURVIVED = {
    "deep-enough": with_params("[" * 50 + "]" * 50),
    "long-integer": with_params("9" * 400),
    "wide": with_params("[" + ",".join(["0"] * 9000) + "]"),
    "wide-floats": with_params("[" + ",".join(["1e-300"] * 9000) + "]"),
    "wide-strings": with_params("[" + ",".join(['"\U0001f600\x7f"'] * 9000) + "]"),
    "wide-empties": with_params("[" + ",".join(["[]"] * 4500) + "]"),
    "long-string": with_params('"' + r"\u0001" * 40_000 + '"'),
    "many-names": with_params("{" + ",".join(f'"{n}": {{}}' for n in range(4500)) + "}"),
    # The path of each empty value repeats the long name.
    "long-name": with_params(
        json.dumps({"\U0001f600" + "x" * 150_000: dict.fromkeys(map(str, range(4500)), "")})
    ),
}


@pytest.mark.parametrize("card", MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_card_is_malformed(card: bytes) -> None:
    with pytest.raises(MalformedCardError):
        verify_card(card, TRUST, now=NOW, policy=EVERYTHING)
    with pytest.raises(MalformedCardError):
        sign_card(card, generate_key(Algorithm.ES256), now=NOW)


@pytest.mark.parametrize("card", SURVIVED.values(), ids=SURVIVED)
def test_what_is_odd_gets_a_verdict(card: bytes) -> None:
    assert len(card) < MAX_CARD_BYTES
    assert not verify_card(card, TRUST, now=NOW, policy=EVERYTHING).verified


@pytest.mark.parametrize("name", ["ten-megabytes", "deep", "wide", "wide-empties", "long-name"])
@pytest.mark.slow
def test_memory_stays_in_proportion(name: str) -> None:
    card = {**MALFORMED, **SURVIVED}[name]
    tracemalloc.start()
    try:
        verify_card(card, TRUST, now=NOW, policy=EVERYTHING)
    except MalformedCardError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 32 * 1024 * 1024


def test_the_most_work_that_a_card_can_ask_for_is_bounded() -> None:
    keys = [generate_key(Algorithm.ES256) for _ in range(40)]
    trust = TrustedKeys.pinned(*(key.to_verification_key() for key in keys))
    card = json.loads(SURVIVED["wide-strings"])
    [entry] = SIGNED["signatures"]
    card["signatures"] = [entry] * (MAX_SIGNATURES - 1)
    signed = sign_card(card, keys[-1], ("raw",), now=NOW)
    verdict = verify_card(signed.content, trust, now=NOW)
    # Signatures that name no key are given up one after another; one that does is always tried.
    assert [found.accepted for found in verdict.signatures] == [False] * 15 + [True]
    assert "too many" in verdict.signatures[-2].reason


def test_a_card_has_as_many_values_and_bytes_as_the_page_says() -> None:
    page = (Path(__file__).parents[4] / "docs" / "cards.md").read_text("utf-8")
    assert "256 KiB and 10,000 values" in page
    for numbers in (9_999, 10_000):  # the card itself, the list and its elements
        card = b'{"x":[' + b",".join([b"0"] * numbers) + b"]}"
        with contextlib.nullcontext() if numbers < 10_000 else pytest.raises(MalformedCardError):
            verify_card(card, TRUST, now=NOW)
    for size in (256 * 1024, 256 * 1024 + 1):
        card = b'{"x":"' + b"x" * (size - 8) + b'"}'
        with contextlib.nullcontext() if size == 256 * 1024 else pytest.raises(MalformedCardError):
            verify_card(card, TRUST, now=NOW)


@given(st.binary(max_size=200))
def test_any_bytes_end_in_a_value_or_in_the_one_error(data: bytes) -> None:
    with contextlib.suppress(PushkitError):
        verify_card(data, TRUST, now=NOW, policy=EVERYTHING)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


@given(member=st.sampled_from(sorted({*SIGNED, "provider", "securitySchemes"})), value=JSON)
def test_any_value_of_any_member_ends_in_a_verdict_or_in_the_one_error(
    member: str, value: Any
) -> None:
    changed = json.dumps({**SIGNED, member: value}).encode()
    try:
        verdict = verify_card(changed, TRUST, now=NOW, policy=EVERYTHING)
    except PushkitError:
        return
    assert not verdict.verified or verdict.card == {**SIGNED, member: value}
