"""The result of each step of the verification, in words: what was found, and what was expected.

The receiver stops at the first step that fails; the list marks the steps after it as not reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pushkit.errors import InboundError
from pushkit.signing.notification_jwt import (
    JwtClaims,
    UnverifiedJwt,
    find_jwt,
    read_unverified,
    read_unverified_claims,
)
from pushkit.signing.scheme import Scheme
from pushkit.webhook import Headers, WebhookRequest
from receiver.listening.trusting import KeySource
from receiver.refusals import REFUSALS
from receiver.senders import SenderProfile
from receiver.verification import VerifiedNotification


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step and its result."""

    name: str
    holds: bool | None  # None if it was not checked, or not reached
    says: str  # what was found, or why it fails
    reached: bool = True  # whether the receiver came to it


# In the receiver's order, with their numbers in `receiver.verification`. Step 4 has several parts;
# the body is part of step 3, but is checked later.
_NUMBERS: Final[Mapping[str, int]] = {
    "request": 1,
    "sender": 2,
    "signature": 3,
    "time": 4,
    "issuer": 4,
    "audience": 4,
    "ids": 4,
    "token": 5,
    "body": 3,
    "content": 6,
    "replay": 7,
    "task": 8,
    "stored": 9,
}
_PART_OF_A_STEP: Final[Mapping[str, str]] = {
    "stale_timestamp": "time",
    "invalid_claims": "issuer",
    "wrong_issuer": "issuer",
    "wrong_audience": "audience",
    "malformed_request": "ids",
    "digest_mismatch": "body",
}
_OF_A_SIGNATURE = frozenset({"audience", "body", "ids", "issuer", "signature", "time"})


def steps_of(
    request: WebhookRequest,
    found: VerifiedNotification | InboundError,  # the result of steps 1 to 6
    *,
    code: str,  # the code of the receiver's answer
    possible: Sequence[str],  # the names of the senders that it may be from, by its headers
    source: KeySource,  # which signatures are accepted: what it leaves open is not checked
    now: datetime,
) -> list[Step]:
    """Return every step with its result."""
    failing = _failing(code)
    claims = _claims_of(request.headers)
    source = source.for_issuer(claims[0].issuer if claims else None)
    facts = {
        "sender": " or ".join(possible),
        **_facts(request, found, claims, duplicate=code == "duplicate", now=now),
    }
    if Scheme.JWT not in source.schemes.names:
        facts = {**facts, "signature": ", ".join(source.schemes.names)}
    steps: list[Step] = []
    for name in _NUMBERS:
        if name == failing:
            same = isinstance(found, InboundError) and found.code == code
            says = str(found) if same else REFUSALS[code].means
            steps.append(Step(name=name, holds=False, says=says))
            break
        unchecked = _unchecked(name, source, claims)
        says = facts.get(name, "") if unchecked is None else f"not checked: {unchecked}"
        steps.append(Step(name=name, holds=True if unchecked is None else None, says=says))
    left = list(_NUMBERS)[len(steps) :]
    return [
        *steps,
        *(Step(name=name, holds=None, says="not reached", reached=False) for name in left),
    ]


def _failing(code: str) -> str | None:
    """Return the step that a refusal belongs to; None if the answer is not a refusal."""
    refusal = REFUSALS.get(code)
    if refusal is None:
        return None
    by_number = (name for name, number in _NUMBERS.items() if number == refusal.step)
    return _PART_OF_A_STEP.get(code) or next(by_number, "request")


def _unchecked(
    name: str, source: KeySource, claims: tuple[UnverifiedJwt, JwtClaims] | None
) -> str | None:
    """Return why a step is not checked; None if it is."""
    profile = source.profile
    if not profile.signed and name in _OF_A_SIGNATURE:
        return f"{profile.value} has no signature"
    if name == "signature" and source.any_key:
        return f"--any-key was given; found kid {claims[0].kid if claims else None}"
    states = {"issuer": source.states_issuer, "audience": source.states_audience}
    if not states.get(name, True):
        standard = profile is SenderProfile.STANDARD
        return f"{', '.join(source.schemes.names) if standard else profile.value} has no {name}"
    if name == "issuer" and source.issuer is None:
        return f"--issuer was not given; found {claims[1].issuer if claims else None}"
    return None


def _facts(
    request: WebhookRequest,
    found: VerifiedNotification | InboundError,
    claims: tuple[UnverifiedJwt, JwtClaims] | None,
    *,
    duplicate: bool,
    now: datetime,
) -> Mapping[str, str]:
    """Return what was found, by the step that checks it."""
    media_type = ", ".join(request.headers.all("Content-Type")) or "no media type"
    facts = {
        "request": f"{media_type}, {len(request.body)} bytes",
        "token": "the token of the push config",
    }
    if claims is not None:
        jwt, stated = claims
        ends = stated.expires_at
        good = "" if ends is None else f", good for {(ends - now).total_seconds():.0f} s more"
        facts |= {
            "signature": f"{jwt.algorithm} by kid {jwt.kid}",
            "time": f"signed {(now - stated.issued_at).total_seconds():.0f} s ago{good}",
            "issuer": stated.issuer or "",
            "audience": ", ".join(stated.audience),
            "ids": stated.delivery_id or "none",
            "body": f"sha256 {stated.body_sha256}",
        }
    if isinstance(found, VerifiedNotification):
        retry = "same id and body: a retry of a notification that was accepted"
        facts |= {
            "sender": found.sender,
            "content": found.update.summary,
            "replay": retry if duplicate else f"new: {found.delivery_id or 'without an id'}",
            "task": found.task_id or "none",
            "stored": "already in the inbox" if duplicate else "in the inbox",
        }
    return facts


def _claims_of(headers: Headers) -> tuple[UnverifiedJwt, JwtClaims] | None:
    """Return the claims of a request's JWT, verified or not; None if it has no readable JWT."""
    try:
        token = find_jwt(headers)
        if token is None:
            return None
        jwt = read_unverified(token)
        return jwt, read_unverified_claims(jwt)
    except InboundError:
        return None
