"""Where heads begin and end, however the bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver.serving.framing import Framing

HEAD = b"POST /a2a/push HTTP/1.1\r\nHost: x\r\n"
BODIES = [
    pytest.param(HEAD + b"\r\n", id="no body"),
    pytest.param(
        HEAD + b"content-LENGTH : 30 \r\n\r\n" + b"POST / HTTP/1.1\r\nHost: x\r\n\r\n..",
        id="length",
    ),
    pytest.param(HEAD + b"Content-Length: 0\r\n\r\n", id="length of nothing"),
    pytest.param(
        HEAD
        + b"Transfer-Encoding: chunked\r\n\r\n4;x=y\r\n\r\n\r\n\r\n0A\r\n0123456789\r\n0\r\n\r\n",
        id="chunks",
    ),
    pytest.param(
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nTrailer: y\r\n\r\n", id="trailers"
    ),
    pytest.param(b"\r\n\r\n" + HEAD + b"\r\n", id="empty lines before"),
]


def fed(data: bytes, cuts: list[int]) -> Framing:
    framing, at = Framing(), 0
    for cut in sorted({*cuts, len(data)}):
        framing.feed(data[at:cut])
        at = max(at, cut)
    return framing


@pytest.mark.parametrize("message", BODIES)
@given(cuts=st.lists(st.integers(0, 400), max_size=8), half=st.integers(1, len(HEAD)))
def test_half_a_head_is_seen_behind_every_kind_of_message(
    message: bytes, cuts: list[int], half: int
) -> None:
    whole = fed(message * 2, cuts)
    assert (whole.heads, whole.head_bytes, whole.in_body) == (2, 0, False)
    behind = fed(message * 2 + HEAD[:half], cuts)
    assert (behind.heads, behind.head_bytes) == (2, half)


def test_a_body_is_no_head() -> None:
    framing = fed(HEAD + b"Content-Length: 100\r\n\r\n" + HEAD, [])
    assert (framing.heads, framing.head_bytes, framing.in_body) == (1, 0, True)


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_no_bytes_raise_anything(pieces: list[bytes]) -> None:
    framing = Framing()
    for piece in [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *pieces]:
        framing.feed(piece)
    assert framing.heads >= 1
