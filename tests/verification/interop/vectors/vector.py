"""One vector: a request, and what a receiver has to say to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tests.verification.interop.vectors.requests import jwt_request

__all__ = ["Level", "Vector", "accepted", "refused"]

# must: whoever does otherwise is wrong. may: pushkit does so, and others lose no safety if they
# don't; the vector says why.
Level = Literal["must", "may"]

# Of each code: the status, and the step of the wire profile (§4) that mostly decides.
_VERDICTS = {
    "accepted": (202, 9),
    "duplicate": (200, 7),
    "method_not_allowed": (405, 1),
    "unsupported_media_type": (415, 1),
    "unknown_sender": (403, 2),
    "malformed_request": (400, 3),
    "invalid_signature": (401, 3),
    "digest_mismatch": (401, 3),
    "stale_timestamp": (401, 4),
    "invalid_claims": (401, 4),
    "wrong_audience": (401, 4),
    "invalid_token": (401, 5),
    "malformed_body": (400, 6),
    "unrecognised_body": (422, 6),
    "id_conflict": (409, 7),
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


def refused(
    name: str,
    what: str,
    code: str = "invalid_signature",
    *,
    by: Callable[..., Mapping[str, Any]] = jwt_request,
    step: int | None = None,
    level: Level = "must",
    after: str | None = None,
    a2a: str = "1.0",
    **of_request: Any,
) -> Vector:
    """Return a vector that is refused; the other arguments are those of `by`."""
    status, usual = _VERDICTS[code]
    return Vector(
        id=name,
        what=what,
        a2a=a2a,
        level=level,
        request=by(**of_request),
        after=after,
        expected={"status": status, "code": code, "step": step or usual},
    )


def accepted(name: str, what: str, code: str = "accepted", **others: Any) -> Vector:
    """Return a vector that is accepted; the other arguments are those of `refused`."""
    return refused(name, what, code, **others)
