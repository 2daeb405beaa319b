"""A request by itself: verified as a receiver would, and then the steps that it did not come to.

`verify` does this with saved requests, `doctor --sender` with those of a sender. The receiver's own
code decides: after a refusal, each later step is asked as if the one before had passed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, ParamSpec

from pushkit.a2a import decode_update
from pushkit.clock import TOLERANCE
from pushkit.errors import ConfigError, InboundError
from pushkit.keys.jwk import Algorithm, VerificationKey, generate_key
from pushkit.keys.jwks import key_for
from pushkit.signing.notification_jwt import ask_pyjwt, body_sha256
from pushkit.signing.scheme import Scheme
from pushkit.url import audience_of
from pushkit.webhook import A2A_VERSION, WebhookRequest, hash_token, read_token
from receiver.diagnosis.report import (
    OF_A_SIGNATURE,
    Unproven,
    in_words,
    signed_again,
    unstated,
)
from receiver.notification import VerifiedNotification, read_notification
from receiver.options import Schemes
from receiver.request import Request
from receiver.senders import SenderProfile, TaskPolicy, TrustedSender
from receiver.signatures import SignedClaims, check_claims, prove_body
from receiver.steps import CheckResult, Result, Step, Trail, results_of
from receiver.tokens import HandedOut, check_secrets, read_secrets
from receiver.trust import load_trust
from receiver.verification import verify_notification

_P = ParamSpec("_P")
_PLACES: Final = {step: place for place, step in enumerate(Step)}
_URL: Final = "https://unstated.invalid"  # RFC 6761 §6.4: no such name exists
_ISSUER: Final = "urn:pushkit:unstated"
# What only a running receiver checks.
_OF_A_RECEIVER: Final = {
    Step.REQUEST: "the receiver's limits of head, type and rate",
    Step.SIZE: "the receiver's limit",
    Step.RATE: "the receiver's limit",
    Step.REPLAY: "the receiver's memory of ids",
    Step.TASK: "the tasks that the receiver expects",
    Step.STORED: "the receiver's inbox",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a request by itself is verified against; what is None is not checked."""

    # The sender's keys; None if they are unknown.
    keys: Sequence[VerificationKey] | None = field(repr=False)
    schemes: Schemes  # the signatures that must all be valid
    profile: SenderProfile = SenderProfile.STANDARD
    issuer: str | None = None
    audience: str | None = None  # the URL of the webhook
    token: str | None = field(default=None, repr=False)
    now: datetime  # when the request was received
    tolerance: timedelta = TOLERANCE


class CheckedRequest(NamedTuple):
    """The results of a request by itself."""

    results: list[CheckResult]  # of every step, more than one where each scheme has its own
    proven: dict[Scheme, VerifiedNotification]  # by the schemes that prove it

    @property
    def failed(self) -> list[CheckResult]:
        """The results that refuse it, or would."""
        wrong = (Result.REFUSED, Result.WOULD_REFUSE)
        return [one for one in self.results if one.result in wrong]


def verify_by_itself(request: WebhookRequest, expected: Expected) -> CheckedRequest:
    """Verify a request as a receiver would, by each scheme, and then the steps that it did not.

    Raises:
        ConfigError: What is expected contradicts itself.
    """
    by_scheme: list[list[CheckResult]] = []
    proven: dict[Scheme, VerifiedNotification] = {}
    names = expected.schemes.names
    for scheme in names:
        one = _ByScheme(request, expected, scheme)
        by_scheme.append(one.results())
        if one.verified is not None:
            proven[scheme] = one.verified
    rows: list[CheckResult] = []
    for place, step in enumerate(Step):
        for scheme, results in zip(names, by_scheme, strict=True):
            if len(names) > 1 and step in OF_A_SIGNATURE:
                rows.append(results[place]._replace(found=f"{scheme}: {results[place].found}"))
            elif scheme is names[0]:
                rows.append(results[place])
    return CheckedRequest(list(_as_one(rows)), proven)


def _as_one(rows: Sequence[CheckResult]) -> Iterator[CheckResult]:
    """Yield results as those of a receiver that requires all of them, and stops at the first."""
    refused = [_PLACES[row.step] for row in rows if row.result is Result.REFUSED]
    although = {Result.PASSED: Result.WOULD_PASS, Result.REFUSED: Result.WOULD_REFUSE}
    for row in rows:
        later = bool(refused) and _PLACES[row.step] > min(refused)
        yield row._replace(result=although.get(row.result, row.result)) if later else row


class _ByScheme:
    """The verification of a request by one scheme."""

    def __init__(self, request: WebhookRequest, expected: Expected, scheme: Scheme) -> None:
        self.verified: VerifiedNotification | None = None
        self._request, self._expected, self._scheme = request, expected, scheme
        signed = expected.profile.signed
        self._stated = Unproven.by(scheme, request.headers) if signed else Unproven()
        self._keys = expected.keys
        if expected.keys is None and scheme is Scheme.JWT and signed:
            own = generate_key(Algorithm.ES256)
            self._keys = [own.to_verification_key()]
            with contextlib.suppress(InboundError):
                self._request = replace(request, headers=signed_again(request.headers, own))
        self._sender = self._trusted()

    def results(self) -> list[CheckResult]:
        """Return every step with its result."""
        expected, trail = self._expected, Trail()
        facts = {
            Step.SENDER: f"iss {expected.issuer}",
            Step.TOKEN: "the expected one",
            Step.SIZE: f"{len(self._request.body)} bytes",
        }
        with contextlib.suppress(InboundError):
            version = self._request.headers.one(A2A_VERSION)
            facts[Step.CONTENT] = decode_update(self._request.body, version).summary
        facts |= self._stated.facts(self._request, expected.now)
        try:
            self.verified = self._verify(self._request, self._sender, trail)
        except InboundError as exc:
            results = list(self._although(results_of(trail.words, exc.code, str(exc))))
        else:
            results = results_of(trail.words)
        return in_words([self._second(one) for one in results], facts, self._unchecked(facts))

    def _verify(
        self, request: WebhookRequest, sender: TrustedSender, trail: Trail
    ) -> VerifiedNotification:
        return verify_notification(
            request,
            load_trust(_URL, [sender]),
            now=self._expected.now,
            path="/",
            tokens=self._tokens(),
            trail=trail,
        )

    def _trusted(self) -> TrustedSender:
        """Return a sender that is trusted with what is expected, or else with what is stated."""
        expected, by, claims = self._expected, self._scheme, self._stated.claims
        signed, by_jwt = expected.profile.signed, by is Scheme.JWT
        states = by_jwt and expected.profile is SenderProfile.STANDARD
        issuer = expected.issuer or (claims.issuer if claims else None) or _ISSUER
        audience = [expected.audience] if expected.audience else []
        if not audience and claims is not None:
            with contextlib.suppress(ConfigError):
                audience = [audience_of(url) for url in claims.audience]
        by_secret = by is Scheme.STANDARD_WEBHOOKS
        return TrustedSender(
            name="agent",
            issuer=issuer if states else None,
            keys=None if by_secret or not signed else self._keys or [],
            path="/",
            audience=audience if signed else (),
            profile=expected.profile,
            schemes=[by] if signed else [Scheme.JWT],
            webhook_secrets=expected.schemes.webhook_secrets if by_secret else (),
            tolerance=expected.tolerance,
            token_required=expected.token is not None,
            tasks=TaskPolicy.ANY,
        )

    def _tokens(self) -> list[str]:
        """Return the token that is expected, or else the one that is there."""
        if self._expected.token is not None:
            return [self._expected.token]
        found = None
        with contextlib.suppress(InboundError):
            found = read_token(self._request.headers)
        return [found] if found else []

    def _unchecked(self, facts: Mapping[Step, str]) -> dict[Step, str]:
        """Return the steps that are not checked, each with the reason."""
        expected, by_jwt = self._expected, self._scheme is Scheme.JWT
        unchecked = _OF_A_RECEIVER | unstated([self._scheme], expected.profile)
        unchecked[Step.SIZE] = f"{facts[Step.SIZE]}; {unchecked[Step.SIZE]}"
        if expected.issuer is None or not by_jwt:
            unchecked[Step.SENDER] = "any that has these keys or secrets is taken"
        if expected.token is None:
            unchecked[Step.TOKEN] = "--token was not given"
        lacking = {
            Step.SIGNATURE: by_jwt and expected.keys is None and "--jwks was not given, nor saved",
            Step.ISSUER: expected.issuer is None and "--issuer was not given",
            Step.AUDIENCE: expected.audience is None and "--audience was not given",
        }
        for step, says in lacking.items():
            if says:
                unchecked.setdefault(step, f"{says}; found {facts.get(step, 'none')}")
        return unchecked

    # --- a second opinion, and the steps that were not reached -----------------------------------

    def _second(self, one: CheckResult) -> CheckResult:
        """Return the result of a signature with PyJWT's opinion, or with the keys there are."""
        stated, keys = self._stated, self._expected.keys
        if one.step is not Step.SIGNATURE or keys is None:
            return one
        known = [key for key in keys if key.kid == stated.kid]
        if one.result is Result.REFUSED and stated.kid is not None and not known:
            there = " or ".join(dict.fromkeys(key.kid for key in keys)) or "none"
            return one._replace(found=f"found kid {stated.kid}, expected {there}")
        if one.result not in (Result.PASSED, Result.WOULD_PASS) or stated.jwt is None:
            return one
        key = key_for(known, stated.jwt.algorithm)
        if key is None:
            return one
        try:
            ask_pyjwt(stated.jwt.token, key)
        except InboundError as exc:
            passed = one.result is Result.PASSED
            result = Result.REFUSED if passed else Result.WOULD_REFUSE
            return CheckResult(one.step, result, str(exc), exc.code)
        says = stated.facts(self._request, self._expected.now)[Step.SIGNATURE]
        return one._replace(found=f"{says}; PyJWT agrees")

    def _although(self, results: Sequence[CheckResult]) -> Iterator[CheckResult]:
        """Yield results; of steps that were not reached, those that each by itself would have."""
        checked = self._checked()
        for one in results:
            if one.result is not Result.NOT_REACHED or one.step not in checked:
                yield one
            elif (refusal := checked[one.step]) is None:
                yield CheckResult(one.step, Result.WOULD_PASS)
            else:
                yield CheckResult(one.step, Result.WOULD_REFUSE, str(refusal), refusal.code)

    def _checked(self) -> dict[Step, InboundError | None]:
        """Check each step by itself, as if the signature were valid: None if it passes."""
        body, headers = self._request.body, self._request.headers
        jwt, unproven, signature, webhook, _ = self._stated
        token = jwt.token if jwt else None
        claims = SignedClaims(self._sender, token, unproven, signature, webhook)
        found: dict[Step, InboundError | None] = {}
        if any(self._stated):
            found = self._checked_claims(claims)
            found[Step.SIGNATURE] = _refusal(self._check_signature)
            found[Step.BODY] = _refusal(prove_body, claims, body, Trail())
        found[Step.CONTENT] = _refusal(
            read_notification, claims, None, body, body_sha256(body), Trail(), headers=headers
        )
        found[Step.TOKEN] = _refusal(self._check_token, claims)
        return found

    def _checked_claims(self, claims: SignedClaims) -> dict[Step, InboundError | None]:
        """Check times, issuer, audience and ids, each as if the one before had passed."""
        now, audiences = self._expected.now, self._sender.audiences or (f"{_URL}/",)
        found: dict[Step, InboundError | None] = {}
        while Step.IDS not in found:
            trail = Trail()
            asked = Request.of(self._request, "/", trail=trail)
            refusal = _refusal(check_claims, claims, asked, audiences, now)
            found = dict.fromkeys(trail.begun[1:]) | found | {trail.step: refusal}
            claims = _as_if_passed(trail.step, claims, now, audiences)
        return found

    def _check_signature(self) -> None:
        """Check the signature of another issuer than the expected one, by the keys there are."""
        trail, jwt = Trail(), self._stated.jwt
        sender = replace(self._sender, issuer=jwt.issuer) if jwt and jwt.issuer else self._sender
        try:
            self._verify(replace(self._request, method="POST"), sender, trail)
        except InboundError:
            if trail.step in (Step.SENDER, Step.SIGNATURE):
                raise

    def _check_token(self, claims: SignedClaims) -> None:
        secrets = read_secrets(claims, Request.of(self._request, "/", trail=Trail()))
        registered = [HandedOut(token=hash_token(token)) for token in self._tokens()]
        check_secrets(claims, secrets, registered, Trail())


def _refusal(
    check: Callable[_P, object], *args: _P.args, **options: _P.kwargs
) -> InboundError | None:
    try:
        check(*args, **options)
    except InboundError as exc:
        return exc
    return None


def _as_if_passed(
    step: Step, claims: SignedClaims, now: datetime, audiences: Sequence[str]
) -> SignedClaims:
    """Return claims with the times, the issuer or the audience that would pass."""
    jwt, signature, webhook = claims.jwt, claims.signature, claims.webhook
    if step is Step.TIME:
        times: dict[str, Any] = {"issued_at": now, "expires_at": now}
        return claims._replace(
            jwt=jwt and replace(jwt, not_before=None, **times),
            signature=signature and replace(signature, **times),
            webhook=webhook and replace(webhook, timestamp=now),
        )
    if jwt is not None and step is Step.ISSUER:
        jwt = replace(jwt, issuer=claims.sender.issuer)
    elif jwt is not None:
        jwt = replace(jwt, audience=tuple(audiences))
    return claims._replace(jwt=jwt)
