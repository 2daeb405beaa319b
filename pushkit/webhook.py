"""HTTP requests as data, with header fields as received; their token; and cacheable documents."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import chain
from typing import Final, Self

from pushkit.errors import MalformedRequestError, TokenError
from pushkit.record import field, record

A2A_VERSION: Final = "A2A-Version"
"""The field that names the A2A version of a notification's body."""
TRACEPARENT: Final = "traceparent"
"""The field that carries a trace's context, in version 00 (W3C Trace Context)."""

_WRITTEN: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class Headers:
    """An ordered, case-insensitive, immutable list of header fields (RFC 9110 §5).

    Values are kept as received. A name may be repeated; `one` refuses that, because a signed
    request that can be read in two ways is an attack.
    """

    __slots__ = ("_fields", "_repeated", "_values")

    def __init__(self, fields: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        if not isinstance(fields, list) and isinstance(fields, Mapping):  # ABC checks are slow
            fields = fields.items()
        self._fields: tuple[tuple[str, str], ...] = tuple(fields)
        self._values: dict[str, str] | None = None  # made when first needed
        self._repeated: Mapping[str, list[str]] = _NONE

    @classmethod
    def from_bytes(cls, fields: Iterable[tuple[bytes, bytes]]) -> Self:
        """Return header fields as a server hands them over: any byte is one character."""
        return cls([(name.decode("latin-1"), value.decode("latin-1")) for name, value in fields])

    def all(self, name: str) -> list[str]:
        """Return every value of a field, in order."""
        name = name.lower()
        value = self.values().get(name)
        return [] if value is None else list(self._repeated.get(name) or (value,))

    def one(self, name: str) -> str | None:
        """Return the value of a field, without surrounding white space; None if it is absent.

        Raises:
            MalformedRequestError: The field is repeated.
        """
        value = (self._values or self.values()).get(name.lower())
        if self._repeated and (found := len(self._repeated.get(name.lower(), ()))):
            raise MalformedRequestError(f"header {name}: found {found} times, expected once")
        return value and value.strip(" \t")

    def combined(self, name: str) -> str | None:
        """Return all lines of a field as one value (RFC 9421 §2.1); None if it is absent.

        Raises:
            MalformedRequestError: Line breaks or other characters that a signature cannot cover.
        """
        lines = self.all(name)
        if not lines:
            return None
        value = ", ".join(line.strip(" \t") for line in lines)
        # Obsolete line folding (RFC 9112 §5.2) is not for requests; a bare line break would let one
        # field look like two lines of the signature base.
        if not value.isascii() or not value.replace("\t", " ").isprintable():
            raise MalformedRequestError(f"header {name}: expected printable ASCII on one line")
        return value

    def size(self) -> int:
        """Return the length of the header section in bytes, as HTTP/1.1 writes it."""
        return sum(map(len, chain.from_iterable(self._fields))) + 4 * len(self._fields)

    def values(self) -> Mapping[str, str]:
        """Return the value of each field by its name in lower case; if it is repeated, the last."""
        values = self._values
        if values is None:
            values = self._values = {name.lower(): value for name, value in self._fields}
            if len(values) < len(self._fields):
                self._repeated = _repeated(self._fields)
        return values

    def repeated(self) -> Mapping[str, list[str]]:
        """Return the values of each repeated field in order, by its name in lower case."""
        self.values()
        return self._repeated

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Headers) and self._fields == other._fields

    def __hash__(self) -> int:
        return hash(self._fields)

    def __repr__(self) -> str:
        # Values may be tokens and credentials, so a repr shows none.
        return f"Headers({', '.join(name for name, _ in self._fields)})"


_NONE: Mapping[str, list[str]] = {}


def _repeated(fields: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for name, value in fields:
        values.setdefault(name.lower(), []).append(value)
    return {name: found for name, found in values.items() if len(found) > 1}


@record(frozen=True, slots=True, kw_only=True)
class WebhookRequest:
    """One webhook request, with its whole body."""

    method: str = "POST"
    # Path and query as received, `/a2a?x=1`; for a request about to be sent, the absolute URL.
    target: str
    headers: Headers
    body: bytes = field(repr=False)  # the raw bytes, as signed and as sent


def read_traceparent(values: Sequence[str]) -> str | None:
    """Return the value of the header; None if there is not exactly one, or it is malformed."""
    return values[0] if len(values) == 1 and _WRITTEN.fullmatch(values[0]) else None


def trace_id_of(traceparent: str | None) -> str | None:
    """Return the id of the trace, for logs."""
    return None if traceparent is None else traceparent[3:35]


@record(frozen=True, slots=True, kw_only=True)
class DocumentResponse:
    """The HTTP answer to a GET for a document."""

    status: int
    headers: dict[str, str]
    body: bytes


def document_response(
    body: bytes, media_type: str, tag: str, max_age: timedelta, if_none_match: str | None
) -> DocumentResponse:
    """Answer a GET for a document (RFC 9110 §13.1.2, RFC 9111 §5.2.2).

    `tag` is the entity tag in quotes, after `W/` if it is weak. `if_none_match` is the request's
    field; the caller joins several with commas.
    """
    headers = {"Cache-Control": f"public, max-age={int(max_age.total_seconds())}", "ETag": tag}
    # RFC 9110 §13.1.2 compares weakly (§8.8.3.2): the prefix W/ makes no difference. A tag contains
    # no quotation mark, so finding it as a substring is enough.
    known = if_none_match or ""
    if tag.removeprefix("W/") in known or known.strip() == "*":
        return DocumentResponse(status=304, headers=headers, body=b"")
    return DocumentResponse(status=200, headers={"Content-Type": media_type, **headers}, body=body)


# --- the notification token ----------------------------------------------------------------------

# The client chooses it, and gets it back with its task's notifications (wire profile §2). A2A 0.1
# spells the header `X-A2A-Token`, the SDKs `X-A2A-Notification-Token`, the Go and Rust SDKs
# `A2A-Notification-Token`.
TOKEN_HEADERS = ("X-A2A-Token", "X-A2A-Notification-Token", "A2A-Notification-Token")
_IN_LOWER_CASE = tuple(name.lower() for name in TOKEN_HEADERS)
_API_KEY = "apikey"


def token_headers(token: str | None, *, go_spelling: bool = False) -> list[tuple[str, str]]:
    """Return the header fields that carry a token; an empty list for no token."""
    if not token:
        return []
    names = TOKEN_HEADERS if go_spelling else TOKEN_HEADERS[:2]
    return [(name, token) for name in names]


def read_token(headers: Headers) -> str | None:
    """Return the token of a request, in whichever header.

    Raises:
        TokenError: Two headers carry different tokens.
    """
    values, repeated = headers.values(), headers.repeated()
    stated = {values[name].strip(" \t") for name in _IN_LOWER_CASE if name in values}
    if repeated:
        stated.update(v.strip(" \t") for name in _IN_LOWER_CASE for v in repeated.get(name, ()))
    if len(stated) > 1:
        raise TokenError("the token headers carry different tokens, expected one token")
    return stated.pop() if stated else None


def hash_token(token: str) -> str:
    """Return the SHA-256 of a token in hex, which is stored and compared in place of the token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def hash_credentials(value: str) -> str:
    """Return the hash of an `Authorization` value, or of a bare API key."""
    # RFC 9110 §11.1: only the name of a scheme is case-insensitive.
    scheme, space, credentials = value.partition(" ")
    if not space or scheme.lower() == _API_KEY:
        return hash_token(credentials if space else value)
    return hash_token(f"{scheme.lower()} {credentials}")
