"""Structured fields (RFC 9651), as signatures need them: dictionaries without duplicates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, cast

import http_sf

from pushkit.errors import MalformedRequestError
from pushkit.webhook import Headers

__all__ = ["InnerList", "Parameters", "combined", "read_dictionary", "write_inner_list"]

Parameters: TypeAlias = Mapping[str, object]
InnerList: TypeAlias = tuple[list[tuple[object, Parameters]], Parameters]


class _DuplicateError(ValueError):
    pass


def combined(headers: Headers, name: str) -> str | None:
    """Return a field's lines as one value (RFC 9421 §2.1); None if it does not stand there.

    Raises:
        MalformedRequestError: Line breaks or other characters that a signature cannot cover.
    """
    lines = headers.all(name)
    if not lines:
        return None
    value = ", ".join(line.strip(" \t") for line in lines)
    # An obsolete line folding (RFC 9112 §5.2) has no business in a request; a bare line break
    # would let one field pass for two lines of what is signed.
    if not value.isascii() or not value.replace("\t", " ").isprintable():
        raise MalformedRequestError(f"header {name}: expected printable ASCII on one line")
    return value


def read_dictionary(headers: Headers, name: str) -> dict[str, tuple[object, Parameters]] | None:
    """Read a field that is a dictionary: each member with its parameters; None if it is absent.

    RFC 9651 §4.2.2 lets the last of two equal keys win. Here that would let a request mean two
    things to two readers, so it is refused.

    Raises:
        MalformedRequestError: No dictionary, or a key or parameter twice.
    """
    value = combined(headers, name)
    if value is None:
        return None
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
    return http_sf.ser(cast("http_sf.StructuredType", [inner_list]))


def _refuse_duplicate(key: str, context: str) -> None:
    raise _DuplicateError(f"{context} {key} twice")
