"""A request for a page and its answer, whichever server has them: aiohttp's, or one of ASGI."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import parse_qsl

_MAX_VALUES = 1000

ReadForm: TypeAlias = Callable[[int], Awaitable[bytes | None]]
"""Reads the body of a request; None once it is longer than the limit, or breaks off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """A request."""

    method: str
    # The path under which the dashboard stands, percent-encoded, without a slash at its end.
    root: str
    path: str  # the path below it, percent-encoded
    query: Mapping[str, str]  # what it asks for
    # Its header fields by name, in small letters (`joined_fields`).
    headers: Mapping[str, str] = field(repr=False)
    peer: str | None  # the address that it came from
    asked: str | None  # the address of this machine that its connection leads to
    is_secure: bool = False  # whether it came over TLS
    # What stands in its path, by the names of the route.
    values: Mapping[str, str] = field(default_factory=dict)
    # What a form says; its names may stand several times.
    form: Mapping[str, list[str]] = field(default_factory=dict, repr=False)

    def cookie(self, name: str) -> str:
        """Return a cookie; empty if there is none of that name."""
        for each in self.headers.get("cookie", "").split(";"):
            found, _, value = each.strip().partition("=")
            if found == name:
                return value
        return ""

    def field(self, name: str) -> str:
        """Return what a form says once; empty if it does not."""
        return next(iter(self.form.get(name, ())), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer: with a body, or with events for as long as they come."""

    status: int = 200  # the status
    headers: tuple[tuple[str, str], ...] = ()  # its header fields
    body: bytes = field(default=b"", repr=False)  # its body
    # What is sent in place of a body, as it comes; whoever serves closes it.
    events: AsyncGenerator[bytes, None] | None = None


class Refused(Exception):  # noqa: N818  # an answer, no error of this program
    """Raised where a request is answered with a refusal."""

    def __init__(self, status: int, text: str, *headers: tuple[str, str]) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


class SeeOther(Exception):  # noqa: N818  # an answer, no error of this program
    """Raised where another page is to be shown: a path below the dashboard's root."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def joined_fields(fields: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return header fields by name, in small letters; what stands twice is one value of both."""
    found: dict[str, str] = {}
    for name, value in fields:
        name = name.lower()  # noqa: PLW2901  # the same name
        between = "; " if name == "cookie" else ", "
        found[name] = f"{found[name]}{between}{value}" if name in found else value
    return found


def values_of(encoded: str) -> dict[str, list[str]]:
    """Return the values of a query or a form. Raises Refused: there are too many."""
    try:
        pairs = parse_qsl(encoded, keep_blank_values=True, max_num_fields=_MAX_VALUES)
    except ValueError as exc:
        raise Refused(400, f"expected at most {_MAX_VALUES} values") from exc
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found
