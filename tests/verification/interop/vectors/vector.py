"""One vector: a request, and what a receiver has to say to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tests.verification.interop.vectors.requests import jwt_request

__all__ = ["Vector", "accepted", "accepted_jwt", "refused", "refused_jwt"]

# must: whoever does otherwise is wrong. may: pushkit does so, and others lose no safety if they
# don't; the vector says why.
Level = Literal["must", "may"]

_STATUS = {"accepted": 202, "duplicate": 200} | {
    "malformed_request": 400,
    "malformed_body": 400,
    "unknown_sender": 403,
    "method_not_allowed": 405,
    "id_conflict": 409,
    "unsupported_media_type": 415,
    "unrecognised_body": 422,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """One vector.

    Attributes:
        id: Its name.
        what: What is special about it.
        a2a: The A2A version of the body.
        level: Whether everybody has to do as is expected.
        request: Sender, method, target, headers, body.
        after: Another vector that has to be accepted before this one comes.
        expected: Status, code, and the step of the wire profile (§4) that decides.
    """

    id: str
    what: str
    a2a: str
    level: Level
    request: Mapping[str, Any]
    after: str | None
    expected: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def accepted(
    name: str,
    what: str,
    request: Mapping[str, Any],
    *,
    a2a: str = "1.0",
    level: Level = "must",
    code: str = "accepted",
    after: str | None = None,
) -> Vector:
    """Return a vector that is accepted."""
    return _vector(name, what, request, code, 9 if after is None else 7, level, after, a2a)


def refused(
    name: str,
    what: str,
    request: Mapping[str, Any],
    code: str = "invalid_signature",
    *,
    step: int = 3,
    level: Level = "must",
    after: str | None = None,
) -> Vector:
    """Return a vector that is refused."""
    return _vector(name, what, request, code, step, level, after, "1.0")


def accepted_jwt(
    name: str,
    what: str,
    *,
    a2a: str = "1.0",
    level: Level = "must",
    code: str = "accepted",
    after: str | None = None,
    **of_request: Any,
) -> Vector:
    """Return a vector of a JWT that is accepted; the others are arguments of `jwt_request`."""
    request = jwt_request(**of_request)
    return accepted(name, what, request, a2a=a2a, level=level, code=code, after=after)


def refused_jwt(
    name: str,
    what: str,
    code: str = "invalid_signature",
    *,
    step: int = 3,
    level: Level = "must",
    after: str | None = None,
    **of_request: Any,
) -> Vector:
    """Return a vector of a JWT that is refused; the others are arguments of `jwt_request`."""
    request = jwt_request(**of_request)
    return refused(name, what, request, code, step=step, level=level, after=after)


def _vector(  # noqa: PLR0917  # in the order of its two callers' own
    name: str,
    what: str,
    request: Mapping[str, Any],
    code: str,
    step: int,
    level: Level,
    after: str | None,
    a2a: str,
) -> Vector:
    expected = {"status": _STATUS.get(code, 401), "code": code, "step": step}
    return Vector(
        id=name, what=what, a2a=a2a, level=level, request=request, after=after, expected=expected
    )
