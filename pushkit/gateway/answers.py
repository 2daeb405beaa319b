"""A client's request as it goes to the agent, and the agent's answer as it goes to the client."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, NamedTuple

import aiohttp
from aiohttp import web

from pushkit.gateway.calls import Binding, ClientCall
from pushkit.gateway.upstream import end_to_end
from pushkit.integrations.push_config_api.errors import (
    ApiError,
    ErrorKind,
    http_error,
    json_rpc_refusal,
)
from pushkit.webhook import Headers

_OF_THIS_REQUEST: Final = frozenset(
    {
        "a2a-version",
        "accept",
        "accept-encoding",
        "content-encoding",
        "content-type",
        "range",
        "user-agent",
    }
)


class Asked(NamedTuple):
    """A request of a client, read."""

    request: web.BaseRequest
    headers: Headers  # as they were received
    body: bytes
    fields: list[tuple[str, str]]  # as they go to the agent

    @property
    def path(self) -> str:
        """The path, undecoded."""
        return self.request.raw_path.partition("?")[0]

    @property
    def fields_to_ask_with(self) -> list[tuple[str, str]]:
        """The fields with which the gateway asks the agent for this caller."""
        return [field for field in self.fields if field[0].lower() not in _OF_THIS_REQUEST]


def decoded(raw: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Return header fields as text, as aiohttp writes it again, byte for byte."""
    return [(name.decode("ascii"), value.decode("utf-8", "surrogateescape")) for name, value in raw]


def not_compressed(fields: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return fields that ask for an answer that the gateway can read."""
    kept = [field for field in fields if field[0].lower() != "accept-encoding"]
    return [*kept, ("Accept-Encoding", "identity")]


def head_of(answer: aiohttp.ClientResponse) -> web.StreamResponse:
    """Return the head of the agent's answer, as it goes to the client."""
    response = web.StreamResponse(status=answer.status, reason=answer.reason)
    for name, value in end_to_end(decoded(answer.raw_headers)):
        response.headers.add(name, value)
    return response


def whole(answer: aiohttp.ClientResponse, body: bytes) -> web.Response:
    """Return the agent's answer, which was read."""
    response = web.Response(status=answer.status, reason=answer.reason, body=body)
    response.headers.clear()
    for name, value in end_to_end(decoded(answer.raw_headers)):
        if name.lower() != "content-length":
            response.headers.add(name, value)
    return response


def json_response(status: int, body: bytes) -> web.Response:
    """Return an answer of the gateway's own."""
    return web.Response(status=status, body=body, content_type="application/json")


def cut(request: web.BaseRequest, response: web.StreamResponse) -> web.StreamResponse:
    """End a connection whose answer is not whole, so that the client sees that it is not."""
    if request.transport is not None:
        request.transport.abort()
    response.force_close()
    return response


def refusal(call: ClientCall, error: ApiError) -> web.Response:
    """Return the answer to a message whose config is refused."""
    if call.place.binding is Binding.HTTP_JSON:
        return json_response(error.status, json.dumps(http_error(error)).encode())
    status = error.status if error.kind is ErrorKind.CALLER else 200
    told = json_rpc_refusal(error, call.place.version, call.id)
    return json_response(status, json.dumps(told).encode())
