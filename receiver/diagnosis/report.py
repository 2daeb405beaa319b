"""What diagnosis says: the results of a verification in words, and reports of examinations."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias
from xml.etree import ElementTree

from pushkit.bounded_json import read_json_object
from pushkit.errors import CodeTable, InboundError, MalformedJsonError, page_of
from pushkit.keys.jwk import SigningKey
from pushkit.signing.http_message_signatures import (
    VerifiedHttpSignature,
    read_content_digest,
    read_unverified_signatures,
)
from pushkit.signing.jose import at_once, sign_jwt
from pushkit.signing.notification_jwt import (
    UnverifiedJwt,
    VerifiedJwt,
    body_sha256,
    find_jwt,
    read_unverified,
    read_unverified_claims,
)
from pushkit.signing.scheme import Scheme
from pushkit.signing.standard_webhooks import UnverifiedWebhook, read_unverified_webhook
from pushkit.terminal.command import painted
from pushkit.terminal.output import in_a_line
from pushkit.webhook import Headers, WebhookRequest
from pushkit.webui.api import json_object
from receiver.refusals import REFUSALS
from receiver.senders import SenderProfile
from receiver.steps import CheckResult, Result, Step

OF_A_SIGNATURE: Final = frozenset(
    {Step.SIGNATURE, Step.TIME, Step.ISSUER, Step.AUDIENCE, Step.IDS, Step.BODY}
)
# Their refusals say what was expected, and not always what was found.
_WITH_FACTS: Final = frozenset({Step.SIGNATURE, Step.TIME, Step.IDS, Step.BODY})

# --- what a request states -----------------------------------------------------------------------


class Unproven(NamedTuple):
    """What the signature of one scheme states. Nothing of it is proven."""

    jwt: UnverifiedJwt | None = None
    claims: VerifiedJwt | None = None  # of the JWT, as if it were valid
    signature: VerifiedHttpSignature | None = None  # likewise
    webhook: UnverifiedWebhook | None = None
    kid: str | None = None  # the keys that it names

    @classmethod
    def by(cls, scheme: Scheme, headers: Headers) -> Unproven:
        """Read it: there is nothing in it if there is no such signature, or it cannot be read."""
        with contextlib.suppress(InboundError):
            if scheme is Scheme.STANDARD_WEBHOOKS:
                return cls(webhook=read_unverified_webhook(headers))
            if scheme is Scheme.HTTP_MESSAGE_SIGNATURES:
                if not (found := read_unverified_signatures(headers)):
                    return cls()
                signature = VerifiedHttpSignature(
                    keyid=found[0].keyid,
                    delivery_id=headers.one("webhook-id") or "",
                    issued_at=found[0].issued_at,
                    expires_at=found[0].expires_at,
                    digests=read_content_digest(headers),
                )
                # Two keys may sign during a rotation.
                return cls(signature=signature, kid=", ".join(one.keyid for one in found))
            if compact := find_jwt(headers):
                jwt = read_unverified(compact)
                claims = read_unverified_claims(jwt)
                names = [each.name for each in dataclasses.fields(claims)]
                members = {name: getattr(claims, name) for name in names}
                return cls(jwt=jwt, claims=VerifiedJwt(**members), kid=jwt.kid)
        return cls()

    def facts(self, request: WebhookRequest, now: datetime) -> dict[Step, str]:
        """Return what was found, by the step that checks it."""
        jwt, claims, signature, webhook, kid = self
        if webhook is not None:
            return {
                Step.SIGNATURE: "over id, time and body",
                Step.TIME: _times(webhook.timestamp, None, now),
                Step.IDS: webhook.delivery_id,
                Step.BODY: "the signature is over it",
            }
        if signature is not None:
            return {
                Step.SIGNATURE: f"kid {kid}",
                Step.TIME: _times(signature.issued_at, signature.expires_at, now),
                Step.AUDIENCE: "the URL that is signed",
                Step.IDS: signature.delivery_id or "none",
                Step.BODY: "Content-Digest",
            }
        if claims is None or jwt is None:
            return {}
        received = body_sha256(request.body)
        there = ", ".join(request.headers.all("webhook-id"))
        times = _times(claims.issued_at, claims.expires_at, now)
        if claims.not_before is not None:
            times += f", not before {claims.not_before:%Y-%m-%dT%H:%M:%SZ}"
        return {
            Step.SIGNATURE: f"{jwt.algorithm} by kid {claims.kid}",
            Step.TIME: times,
            Step.ISSUER: claims.issuer or "none",
            Step.AUDIENCE: ", ".join(claims.audience) or "none",
            Step.IDS: claims.delivery_id or "none"
            if there in ("", claims.delivery_id)
            else f"signed {claims.delivery_id}, found {there}",
            Step.BODY: f"sha256 {received}"
            if received == claims.body_sha256
            else f"signed sha256 {claims.body_sha256}, received {received}",
        }


def signed_again(headers: Headers, key: SigningKey) -> Headers:
    """Return headers whose JWT is signed by a key of our own: the claims stay, to be checked.

    Raises:
        InboundError: The JWT cannot be read.
    """
    token = find_jwt(headers)
    if token is None:
        return headers
    again = at_once(sign_jwt(read_unverified(token).claims, key))
    return Headers([(name, value.replace(token, again)) for name, value in headers])


def _times(issued_at: datetime, expires_at: datetime | None, now: datetime) -> str:
    seconds = int((now - issued_at).total_seconds())
    age = f"signed {seconds} s ago" if seconds >= 0 else f"signed {-seconds} s ahead"
    if expires_at is None:
        return age
    left = int((expires_at - now).total_seconds())
    return f"{age}, good for {left} s more" if left >= 0 else f"{age}, expired {-left} s ago"


# --- in words ------------------------------------------------------------------------------------


def in_words(
    results: Sequence[CheckResult],
    facts: Mapping[Step, str],  # what was found, by the step that checks it
    unchecked: Mapping[Step, str],  # why a step is not checked, whatever the trail says
) -> list[CheckResult]:
    """Return results with what was found at each step, or why it was not checked."""
    shown = []
    for one in results:
        step, fact = one.step, facts.get(one.step, "")
        if one.result in (Result.REFUSED, Result.WOULD_REFUSE):
            more = f" ({fact})" if fact and step in _WITH_FACTS else ""
            shown.append(one._replace(found=f"{one.found}{more}"))
        elif one.result is Result.NOT_REACHED:
            shown.append(one)
        elif step in unchecked:
            shown.append(CheckResult(step, Result.NOT_CHECKED, unchecked[step]))
        elif one.result is Result.NOT_CHECKED:
            # Standard Webhooks: it begins once the body is proven.
            says = "it is over the body" if step is Step.SIGNATURE else "nothing to check"
            shown.append(one._replace(found=one.found or says))
        else:
            shown.append(one._replace(found=one.found or fact))
    return shown


def unstated(
    names: Sequence[Scheme], profile: SenderProfile = SenderProfile.STANDARD
) -> dict[Step, str]:
    """Return the steps that have nothing to check with these signatures, each with the reason."""
    if not profile.signed:
        return dict.fromkeys(OF_A_SIGNATURE, f"{profile.value} has no signature")
    standard = profile is SenderProfile.STANDARD
    says = ", ".join(names) if standard else profile.value
    by_key = any(name is not Scheme.STANDARD_WEBHOOKS for name in names)
    lacks = {
        Step.ISSUER: not standard or Scheme.JWT not in names,
        Step.AUDIENCE: not standard or not by_key,
    }
    return {step: f"{says} has no {step.word}" for step, is_so in lacks.items() if is_so}


# --- reports --------------------------------------------------------------------------------------


class CheckOutcome(StrEnum):
    """The outcome of one check."""

    PASSED = "passed"
    FAILED = "failed"
    UNSEEN = "unseen"
    """It could not be observed, or only in part; the details say why, and what is needed."""
    NOT_RUN = "not_run"
    """It was left out, because another check failed; the details say why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """One check and its outcome."""

    check: str
    promise: str  # what should hold; if it passed, what was seen to
    outcome: CheckOutcome
    # What was found, or why nothing could be observed; never a token or a signature.
    details: tuple[str, ...] = ()


_MARKS = {
    CheckOutcome.PASSED: ("✓", "green"),
    CheckOutcome.FAILED: ("✗", "red"),
    CheckOutcome.UNSEEN: ("·", "yellow"),
    CheckOutcome.NOT_RUN: ("·", "yellow"),
}

_AS_TEXT = re.compile(
    rf"(?:\x1b\[\d+m)?(?:{'|'.join({mark for mark, _ in _MARKS.values()})})".encode()
)

_OF_STEPS = {
    Result.PASSED: _MARKS[CheckOutcome.PASSED],
    Result.REFUSED: _MARKS[CheckOutcome.FAILED],
}
_PREFIXES = {
    Result.NOT_CHECKED: "not checked",
    Result.WOULD_PASS: "would pass",
    Result.WOULD_REFUSE: "would refuse, too",
    Result.UNKNOWN: "unknown",
}


class LinkResult(NamedTuple):
    """A link on the way to a receiver, with its result, as `CheckResult` has that of a step."""

    name: str
    result: Result
    found: str = ""  # what was found, and what to do


Checked: TypeAlias = CheckResult | LinkResult


def said_of(result: Checked) -> str:
    """Return what came of a step, without its mark."""
    if result.result is Result.NOT_REACHED:
        return "not reached"
    prefix = _PREFIXES.get(result.result, "")
    return ": ".join(filter(None, (prefix, in_a_line(result.found))))


def step_lines(results: Sequence[Checked], *, brief: bool = False) -> Iterator[str]:
    """Yield a line for each step, for those not reached, and for where a code is explained.

    Args:
        results: The steps with their results.
        brief: Only those that fail, and those that were not reached.
    """
    for one in results:
        if _is_silent(one) or (brief and one.result.holds is not False):
            continue
        mark, colour = _OF_STEPS.get(one.result, ("·", None))
        wrong = one.result in (Result.REFUSED, Result.WOULD_REFUSE)
        says = painted(said_of(one), "red" if wrong else None, dim=not wrong)
        yield f"{painted(mark, colour, dim=colour is None)} {one.name:10} {says}".rstrip()
    for result in (Result.UNKNOWN, Result.NOT_REACHED):
        if names := [one.name for one in results if _is_silent(one) and one.result is result]:
            says = result.value.replace("_", " ")
            yield painted(f"· {says}: {', '.join(names)}", dim=True)
    codes = [one.code for one in results if isinstance(one, CheckResult) and one.code in REFUSALS]
    for code in dict.fromkeys(filter(None, codes)):
        yield painted(f"see {page_of(CodeTable.REFUSAL, code)}", dim=True)


def _is_silent(one: Checked) -> bool:
    """Return whether there is nothing to say of a step but that it was not, or not surely, done."""
    return one.result is Result.NOT_REACHED or (one.result is Result.UNKNOWN and not one.found)


def lines_of(result: Examined) -> Iterator[str]:
    """Yield the lines of a result."""
    mark, colour = _MARKS[result.outcome]
    yield f"{painted(mark, colour)} {result.check:20} {result.promise}"
    for detail in result.details:
        yield f"    {painted(in_a_line(detail), colour)}"


def summary(results: Sequence[Examined]) -> str:
    """Return the last line: how many checks have each outcome."""
    counts = Counter(result.outcome for result in results)
    shown = [one for one in CheckOutcome if counts[one] or one is not CheckOutcome.NOT_RUN]
    return ", ".join(f"{counts[outcome]} {outcome.value.replace('_', ' ')}" for outcome in shown)


def as_text(_: str, results: Sequence[Examined]) -> str:
    """Return a report for people."""
    return "\n".join(line for result in results for line in lines_of(result))


def as_json(subject: str, results: Sequence[Examined]) -> str:
    """Return a report for programs."""
    found = [json_object(result) for result in results]
    return json.dumps({"subject": subject, "results": found}, indent=2)


def as_junit(subject: str, results: Sequence[Examined]) -> str:
    """Return a report for continuous integration; what was not seen or not run is skipped."""
    counts = Counter(result.outcome for result in results)
    suite = ElementTree.Element(
        "testsuite",
        name=f"pushkit doctor {in_a_line(subject)}",
        tests=str(len(results)),
        failures=str(counts[CheckOutcome.FAILED]),
        errors="0",
        skipped=str(counts[CheckOutcome.UNSEEN] + counts[CheckOutcome.NOT_RUN]),
    )
    for result in results:
        case = ElementTree.SubElement(suite, "testcase", name=result.check)
        case.set("classname", "pushkit.doctor")
        if result.outcome is not CheckOutcome.PASSED:
            kind = "failure" if result.outcome is CheckOutcome.FAILED else "skipped"
            said = in_a_line("; ".join(result.details))
            ElementTree.SubElement(case, kind, message=said).text = result.promise
    ElementTree.indent(suite)
    written: bytes = ElementTree.tostring(suite, "utf-8", xml_declaration=True)
    return written.decode()


WRITTEN_AS: Final[Mapping[str, Callable[[str, Sequence[Examined]], str]]] = {
    "text": as_text,
    "json": as_json,
    "junit": as_junit,
}


def is_report(content: bytes) -> bool:
    """Return whether this is a report, in any of the formats."""
    if _AS_TEXT.match(content) or b'<testsuite name="pushkit doctor ' in content:
        return True
    try:
        return read_json_object(content).keys() == {"subject", "results"}
    except MalformedJsonError:
        return False
