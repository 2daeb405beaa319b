"""Structured fields (RFC 9651), as signatures need them: dictionaries without duplicates."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias, cast

from pushkit.errors import MalformedRequestError
from pushkit.webhook import Headers

if TYPE_CHECKING:
    import http_sf

Parameters: TypeAlias = Mapping[str, object]
InnerList: TypeAlias = tuple[list[tuple[object, Parameters]], Parameters]


def read_dictionary(headers: Headers, name: str) -> dict[str, tuple[object, Parameters]]:
    """Read a field that is a dictionary: each member with its parameters; empty if it is absent.

    RFC 9651 §4.2.2 lets the last of two equal keys win. Here that would let a request mean two
    things to two readers, so it is refused.

    Raises:
        MalformedRequestError: No dictionary, or a key or parameter twice.
    """
    value = headers.combined(name)
    if value is None:
        return {}
    import http_sf  # 25 ms, for the one scheme that needs it

    try:
        parsed = http_sf.parse(
            value.encode("ascii"), tltype="dictionary", on_duplicate_key=_refuse_duplicate
        )
    except ValueError as exc:
        raise MalformedRequestError(
            f"header {name}: not a structured dictionary without duplicates"
        ) from exc
    return cast("dict[str, tuple[object, Parameters]]", parsed)


def write_inner_list(inner_list: InnerList) -> str:
    """Write an inner list with its parameters in its one spelling (RFC 9651 §4.1.1.1)."""
    import http_sf

    return http_sf.ser(cast("http_sf.StructuredType", [inner_list]))


def byte_sequence(data: bytes) -> str:
    """Write bytes (RFC 9651 §4.1.8)."""
    return f":{base64.b64encode(data).decode('ascii')}:"


def _refuse_duplicate(key: str, context: str) -> None:
    raise ValueError(f"{context} {key} twice")
