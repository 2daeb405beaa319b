"""Requests saved in files: the HTTP/1.1 message or JSON, and the circumstances of its arrival.

`listen --save` writes `NAME.http` and `NAME.json`; `pushkit verify` and `pushkit replay` read them.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from pushkit.bounded_json import JsonObject, read_json_object, write_json
from pushkit.errors import ConfigError, InvalidUrlError, MalformedJsonError, MalformedRequestError
from pushkit.files import read_file
from pushkit.record import record
from pushkit.url import Url
from pushkit.webhook import Headers, WebhookRequest

# RFC 9110 §7.6.1: fields of one connection; a replayed request gets its own host and length.
_CONNECTION_FIELDS = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


@record(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What verification used besides the request itself, and its outcome."""

    received_at: datetime
    audience: str  # the URL of the webhook
    issuer: str | None  # the expected issuer; None if any was accepted
    # The public key that the request names, as a JWK Set; None if no key was looked up.
    jwks: JsonObject | None
    answered: str  # the status and code of the answer
    profile: str = "standard"  # how the sender signs

    def as_json(self) -> bytes:
        """Return the contents of the JSON file."""
        document: JsonObject = {
            "received_at": self.received_at.isoformat(),
            "audience": self.audience,
            "issuer": self.issuer,
            "jwks": self.jwks,
            "answered": self.answered,
            "profile": self.profile,
        }
        return write_json(document) + b"\n"


def circumstances_of(path: Path) -> Circumstances | None:
    """Return the circumstances that are saved beside a request; None if there are none.

    Raises:
        ConfigError: The JSON file is not one that `listen --save` wrote.
    """
    beside = path.with_suffix(".json")
    if path.suffix != ".http" or not beside.is_file():
        return None
    try:
        document = read_json_object(read_file(beside))
        jwks, issuer = document["jwks"], document["issuer"]
        return Circumstances(
            received_at=_moment(str(document["received_at"])),
            audience=str(document["audience"]),
            issuer=None if issuer is None else str(issuer),
            jwks=jwks if isinstance(jwks, dict) else None,
            answered=str(document["answered"]),
            profile=str(document.get("profile", "standard")),
        )
    except (MalformedJsonError, KeyError, ValueError, OSError) as exc:
        raise ConfigError(
            f"{beside}: expected what `listen --save` writes beside a request"
        ) from exc


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.utcoffset() is None:
        raise ValueError("expected an offset from UTC")
    return found


def save(folder: Path, name: str, request: WebhookRequest, circumstances: Circumstances) -> Path:
    """Write a request and its circumstances into two files that only their owner may read.

    The request is written as an HTTP/1.1 message, with the order and spelling of its fields and the
    raw body. It includes token and credentials.

    Raises:
        ConfigError: The files cannot be written.
    """
    lines = [f"{request.method} {request.target} HTTP/1.1"]
    lines += [f"{field}: {value}" for field, value in request.headers]
    head = "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
    path = folder / f"{name}.http"
    for file, data in (
        (path, head + request.body),
        (path.with_suffix(".json"), circumstances.as_json()),
    ):
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as writing:  # noqa: PTH123  # a descriptor, not a path
                writing.write(data)
        except OSError as exc:
            raise ConfigError(f"{file}: {exc.strerror}") from exc
    return path


def fields_to_send(request: WebhookRequest) -> list[tuple[str, str]]:
    """Return the header fields to replay: all but those of the connection."""
    return [
        (name, value) for name, value in request.headers if name.lower() not in _CONNECTION_FIELDS
    ]


def read_request(data: bytes) -> WebhookRequest:
    """Read a request that was captured: an HTTP/1.1 message, or JSON.

    Raises:
        MalformedRequestError: It is neither.
    """
    return _read_json_request(data) if data.lstrip()[:1] == b"{" else _read_http_request(data)


def _read_http_request(data: bytes) -> WebhookRequest:
    head, separator, body = data.partition(b"\r\n\r\n")
    if not separator:
        head, separator, body = data.partition(b"\n\n")
    lines = [line.rstrip("\r") for line in head.decode("latin-1").split("\n")]
    words = lines[0].split()
    if not separator or len(words) != 3 or not words[2].startswith("HTTP/"):
        raise MalformedRequestError(
            "found no HTTP/1.1 request: expected `POST /path HTTP/1.1`, headers, an empty line"
        )
    fields = [tuple(line.split(":", 1)) for line in lines[1:] if ":" in line]
    headers = Headers([(field[0].strip(), field[1].strip(" \t")) for field in fields])
    return WebhookRequest(method=words[0], target=_target(words[1]), headers=headers, body=body)


def _read_json_request(data: bytes) -> WebhookRequest:
    try:
        document = read_json_object(data)
    except MalformedJsonError as exc:
        raise MalformedRequestError(f"the request file: {exc}") from exc
    headers, body = document.get("headers"), document.get("body")
    if not isinstance(headers, dict) or not isinstance(body, str):
        raise MalformedRequestError("the request file: expected members `headers` and `body`")
    return WebhookRequest(
        method=str(document.get("method", "POST")),
        target=_target(str(document.get("target", "/"))),
        headers=Headers({name: str(value) for name, value in headers.items()}),
        body=body.encode("utf-8"),
    )


def _target(url: str) -> str:
    if url.startswith("/"):
        return url.partition("#")[0]
    try:
        return Url.parse(url).target
    except InvalidUrlError as exc:
        raise MalformedRequestError("the request file: the target is not a URL") from exc
