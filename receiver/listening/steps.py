"""The result of each step of the verification, in words: what was found, and what was expected.

The receiver stops at the first step that fails; the list marks the steps after it as not reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

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
from receiver.notification import VerifiedNotification
from receiver.refusals import REFUSALS
from receiver.senders import SenderProfile
from receiver.steps import Result, Step, Trail, results_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownStep:
    """One step and its result, as the screen shows it."""

    name: str
    holds: bool | None  # None if it was not checked, or not reached
    says: str  # what was found, or why it fails
    reached: bool = True  # whether the receiver came to it


# Steps of a request whose sender does not sign.
_OF_A_SIGNATURE = frozenset(
    {Step.SIGNATURE, Step.TIME, Step.ISSUER, Step.AUDIENCE, Step.IDS, Step.BODY}
)


def steps_of(
    request: WebhookRequest,
    trail: Trail,  # the steps that the request came to
    found: VerifiedNotification | None,  # if it passed steps 1 to 6
    *,
    code: str,  # the code of the receiver's answer
    reason: str,  # of its refusal
    possible: Sequence[str],  # the names of the senders that it may be from, by its headers
    source: KeySource,  # which signatures are accepted: what it leaves open is not checked
    now: datetime,
) -> list[ShownStep]:
    """Return every step with its result."""
    claims = _claims_of(request.headers)
    source = source.for_issuer(claims[0].issuer if claims else None)
    facts = {
        Step.SENDER: " or ".join(possible),
        **_facts(request, found, claims, duplicate=code == "duplicate", now=now),
    }
    if Scheme.JWT not in source.schemes.names:
        facts[Step.SIGNATURE] = ", ".join(source.schemes.names)
    refused = code if code in REFUSALS else None
    steps: list[ShownStep] = []
    for each in results_of(trail.words, refused, reason):
        if each.result is Result.REFUSED:
            steps.append(ShownStep(name=each.step.word, holds=False, says=each.found))
        elif each.step is Step.SENDER and _is_unread(trail):
            steps.append(ShownStep(name=each.step.word, holds=None, says=facts[Step.SENDER]))
        elif each.result is Result.NOT_REACHED:
            steps.append(
                ShownStep(name=each.step.word, holds=None, says="not reached", reached=False)
            )
        else:
            unchecked = _unchecked(each.step, source, claims)
            if each.result is Result.NOT_CHECKED:
                unchecked = unchecked or _left_out(each.step, duplicate=code == "duplicate")
            says = facts.get(each.step, "") if unchecked is None else f"not checked: {unchecked}"
            holds = True if unchecked is None else None
            steps.append(ShownStep(name=each.step.word, holds=holds, says=says))
    return steps


def _is_unread(trail: Trail) -> bool:
    """Return whether a signature could not be read: it may be of any of the possible senders."""
    return trail.step is Step.SIGNATURE and Step.SENDER not in trail.begun


def _unchecked(
    step: Step, source: KeySource, claims: tuple[UnverifiedJwt, JwtClaims] | None
) -> str | None:
    """Return why a step is not checked; None if it is."""
    profile = source.profile
    if not profile.signed and step in _OF_A_SIGNATURE:
        return f"{profile.value} has no signature"
    if step is Step.SIGNATURE and source.any_key:
        return f"--any-key was given; found kid {claims[0].kid if claims else None}"
    states = {Step.ISSUER: source.states_issuer, Step.AUDIENCE: source.states_audience}
    if not states.get(step, True):
        standard = profile is SenderProfile.STANDARD
        names = ", ".join(source.schemes.names) if standard else profile.value
        return f"{names} has no {step.word}"
    if step is Step.ISSUER and source.issuer is None:
        return f"--issuer was not given; found {claims[1].issuer if claims else None}"
    return None


def _left_out(step: Step, *, duplicate: bool) -> str:
    """Return why the receiver left out a step that it checks of other requests."""
    if duplicate:
        return "a notification that was accepted before"
    # Standard Webhooks: it begins once the body is proven.
    return "it is over the body" if step is Step.SIGNATURE else "nothing to check"


def _facts(
    request: WebhookRequest,
    found: VerifiedNotification | None,
    claims: tuple[UnverifiedJwt, JwtClaims] | None,
    *,
    duplicate: bool,
    now: datetime,
) -> dict[Step, str]:
    """Return what was found, by the step that checks it."""
    media_type = ", ".join(request.headers.all("Content-Type")) or "no media type"
    facts = {
        Step.REQUEST: media_type,
        Step.TOKEN: "the token of the push config",
        Step.SIZE: f"{len(request.body)} bytes",
    }
    if claims is not None:
        jwt, stated = claims
        ends = stated.expires_at
        good = "" if ends is None else f", good for {(ends - now).total_seconds():.0f} s more"
        facts |= {
            Step.SIGNATURE: f"{jwt.algorithm} by kid {jwt.kid}",
            Step.TIME: f"signed {(now - stated.issued_at).total_seconds():.0f} s ago{good}",
            Step.ISSUER: stated.issuer or "",
            Step.AUDIENCE: ", ".join(stated.audience),
            Step.IDS: stated.delivery_id or "none",
            Step.BODY: f"sha256 {stated.body_sha256}",
        }
    if found is not None:
        retry = "same id and body: a retry of a notification that was accepted"
        facts |= {
            Step.SENDER: found.sender,
            Step.CONTENT: found.update.summary,
            Step.REPLAY: retry if duplicate else f"new: {found.delivery_id or 'without an id'}",
            Step.TASK: found.task_id or "none",
            Step.STORED: "in the inbox",
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
