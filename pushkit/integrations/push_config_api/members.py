"""Reads members of params and queries by their camelCase or snake_case name (ProtoJSON)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pushkit.a2a import WireVersion
from pushkit.bounded_json import JsonObject, JsonValue, read_json
from pushkit.errors import MalformedJsonError, UnsupportedVersionError
from pushkit.integrations.push_config_api.errors import ApiError, ErrorKind

_NUMBER = re.compile(r"-?\d{1,10}", re.ASCII)


def read_object(body: bytes, expected: str, otherwise: ErrorKind) -> JsonObject:
    """Return the JSON object in a body. Raises ApiError: not JSON, or `otherwise` for no object."""
    try:
        document = read_json(body)
    except MalformedJsonError as exc:
        raise ApiError(ErrorKind.PARSE, str(exc)) from exc
    if not isinstance(document, dict):
        raise ApiError(otherwise, f"expected {expected}, an object")
    return document


def optional_text(params: Mapping[str, JsonValue], name: str) -> str | None:
    """Return a string; None if it is absent, null or empty."""
    value = _member(params, name)
    if value is not None and not isinstance(value, str):
        raise ApiError(ErrorKind.PARAMS, f"{name}: expected a string")
    return value or None


def text(params: Mapping[str, JsonValue], name: str) -> str:
    """Return a required string."""
    value = optional_text(params, name)
    if value is None:
        raise ApiError(ErrorKind.PARAMS, f"{name}: expected, but missing")
    return value


def number(params: Mapping[str, JsonValue], name: str) -> int:
    """Return an integer, which may be a string in ProtoJSON; 0 if it is absent."""
    value = _member(params, name)
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | None):
        raise ApiError(ErrorKind.PARAMS, f"{name}: expected an integer")
    return value or 0


def _member(params: Mapping[str, JsonValue], name: str) -> JsonValue:
    snake = re.sub(r"(?=[A-Z])", "_", name).lower()
    if name != snake and name in params and snake in params:
        raise ApiError(ErrorKind.PARAMS, f"{name}: given in both spellings")
    return params.get(name, params.get(snake))


def check_version(header: str | None, version: WireVersion) -> None:
    """Check the `A2A-Version` of a call, if there is one, against the version of its method."""
    if not header:
        return
    try:
        named = WireVersion.parse(header)
    except UnsupportedVersionError as exc:
        raise ApiError(ErrorKind.VERSION, "A2A-Version: expected 0.1, 0.3 or 1.0") from exc
    if named is not version:
        raise ApiError(ErrorKind.VERSION, f"A2A-Version: found {named}, expected {version}")
