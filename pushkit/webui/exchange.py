"""A request for a page and its answer, independent of the server: aiohttp's or an ASGI server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import parse_qs, unquote

_MAX_VALUES = 1000

ReadForm: TypeAlias = Callable[[int], Awaitable[bytes | None]]
"""Reads the body of a request, up to a limit in bytes; None if it is longer, or cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """A request for a page."""

    method: str
    # The path under which the dashboard is mounted, percent-encoded, without a trailing slash.
    root: str
    path: str  # the path below it, percent-encoded
    query_string: str
    # The header fields by lower-case name (`joined_fields`).
    headers: Mapping[str, str] = field(repr=False)
    peer: str | None  # the address of the client
    local_address: str | None  # the address of this machine that the client connected to
    is_secure: bool = False  # whether it came over TLS
    # The first value of each name of the query; empty until the site has read it.
    query: Mapping[str, str] = field(default_factory=dict)
    # The values of the route's parameters in the path, by name.
    values: Mapping[str, str] = field(default_factory=dict)
    # The values of a form; a name may have several.
    form: Mapping[str, list[str]] = field(default_factory=dict, repr=False)

    def cookie(self, name: str) -> str:
        """Return the value of a cookie; empty if there is none of that name."""
        for each in self.headers.get("cookie", "").split(";"):
            found, _, value = each.strip().partition("=")
            if found == name:
                return value
        return ""

    def field(self, name: str) -> str:
        """Return the first value of a form's field; empty if there is none."""
        return next(iter(self.form.get(name, ())), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer: a body, or a stream of server-sent events."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = field(default=b"", repr=False)
    # Sent one by one in place of a body; the server's adapter closes the generator.
    events: AsyncGenerator[bytes, None] | None = None


class Refused(Exception):  # noqa: N818  # an answer, no error of this program
    """Raised to answer a request with a refusal."""

    def __init__(self, status: int, text: str, *headers: tuple[str, str]) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


def path_below(mount: str, path: str) -> str | None:
    """Return the part of an undecoded path below a mount, at least `/`.

    Routers and middlewares match a path after decoding it, and so is the mount found here, however
    it is spelled. None if a segment belongs to it only in part (`/mount%2Fa`): the path would name
    one thing for them, and another for an application that splits it at its slashes.
    """
    segments = path.split("/", mount.count("/") + 1)
    candidates = ("/".join(segments[:number]) for number in range(1, len(segments) + 1))
    found = next((each for each in candidates if unquote(each) == mount), None)
    return None if found is None else path[len(found) :] or "/"


def joined_fields(fields: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return header fields by lower-case name; the values of a repeated name are joined."""
    found: dict[str, str] = {}
    for name, value in fields:
        name = name.lower()  # noqa: PLW2901  # the same name
        between = "; " if name == "cookie" else ", "
        found[name] = f"{found[name]}{between}{value}" if name in found else value
    return found


def values_of(encoded: str) -> dict[str, list[str]]:
    """Return the values of a query or a form by name. Raises Refused: there are too many."""
    try:
        return parse_qs(encoded, keep_blank_values=True, max_num_fields=_MAX_VALUES)
    except ValueError as exc:
        raise Refused(400, f"expected at most {_MAX_VALUES} values") from exc
