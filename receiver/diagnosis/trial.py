"""The agent of the kit, which signs as a pushkit sender does, and the trials of a receiver."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Container,
    Iterable,
    Mapping,
)
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar

from pushkit.a2a import WireVersion
from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.clock import utc_now
from pushkit.errors import ConfigError
from pushkit.keys.jwk import Algorithm, SigningKey, generate_key, public_jwk
from pushkit.signing.http_message_signatures import sign_http_message
from pushkit.signing.jose import at_once, b64url_decode, b64url_encode, sign
from pushkit.signing.notification_jwt import (
    SIGNATURE_HEADER,
    body_sha256,
    sign_notification,
    static_claims,
)
from pushkit.signing.scheme import Scheme
from pushkit.signing.standard_webhooks import (
    WebhookSigner,
    generate_webhook_secret,
    read_signer,
    read_signers,
    sign_webhook,
)
from pushkit.url import audience_of
from pushkit.version import USER_AGENT
from pushkit.webhook import A2A_VERSION, Headers, WebhookRequest, token_headers
from receiver.diagnosis.report import CheckOutcome, Examined
from receiver.diagnosis.subject import Answer, ReceiverAtUrl, ReceiverUnderTest

T = TypeVar("T")

_MIN_TOKEN_CHARS = 16
_JWT_ALONE = frozenset({Scheme.JWT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A notification that a receiver must accept; a check replaces one member."""

    url: str  # the webhook
    issuer: str  # `iss`
    audience: str  # `aud`
    key: SigningKey = field(repr=False)  # the key that signs it
    token: str = field(repr=False)  # the notification token; empty for none
    delivery_id: str  # `jti` and `webhook-id`
    task_id: str  # the signed `taskId`
    seq: int  # the signed `seq`
    body: bytes = field(repr=False)  # the raw bytes that are signed
    # The raw bytes that are sent instead, if any.
    body_sent: bytes | None = field(default=None, repr=False)
    # When this attempt is signed; None for the moment of `request()`.
    issued_at: datetime | None = None
    # Members of the JWS header, in addition to or instead of `typ`, `alg`, `kid`; None leaves one
    # out.
    header: Mapping[str, JsonValue] = field(default_factory=dict)
    # Claims of the JWT, in addition to or instead of those above; None leaves one out.
    claims: Mapping[str, JsonValue] = field(default_factory=dict)
    # A static `Authorization`, `{scheme} {credentials}`; the JWT is in `X-A2A-Signature` then.
    authorization: str = field(default="", repr=False)
    # Header fields that are sent, in addition to or instead of the signed ones; () leaves one out.
    headers_sent: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    signed: bool = True  # whether there is any signature
    schemes: frozenset[Scheme] = _JWT_ALONE  # of its signatures
    # The signers of Standard Webhooks.
    signers: tuple[WebhookSigner, ...] = field(default=(), repr=False)

    def request(self) -> WebhookRequest:
        """Return the request of an attempt, signed now unless `issued_at` is given."""
        moment = self.issued_at or utc_now()
        schemes = self.schemes if self.signed else ()
        headers = [
            ("Content-Type", WireVersion.V1_0.content_type),
            (A2A_VERSION, WireVersion.V1_0.value),
            ("User-Agent", USER_AGENT),
            *token_headers(self.token),
        ]
        if self.authorization:
            headers.append(("Authorization", self.authorization))
        if Scheme.JWT in schemes:
            jwt = self.jwt(moment)
            headers.append(
                (SIGNATURE_HEADER, jwt)
                if self.authorization
                else ("Authorization", f"Bearer {jwt}")
            )
        if Scheme.STANDARD_WEBHOOKS in schemes:
            headers += sign_webhook(
                self.body, delivery_id=self.delivery_id, now=moment, signers=self.signers
            )
        else:
            headers.append(("webhook-id", self.delivery_id))
            headers.append(("webhook-timestamp", str(int(moment.timestamp()))))
        if Scheme.HTTP_MESSAGE_SIGNATURES in schemes:
            signed = WebhookRequest(target=self.audience, headers=Headers(headers), body=self.body)
            headers += at_once(sign_http_message(signed, self.key, now=moment))
        replaced = {name.lower() for name in self.headers_sent}
        headers = [one for one in headers if one[0].lower() not in replaced]
        headers += [(name, one) for name, values in self.headers_sent.items() for one in values]
        body = self.body if self.body_sent is None else self.body_sent
        return WebhookRequest(target=self.url, headers=Headers(headers), body=body)

    def forged(self) -> Draft:
        """Return a copy that another key signs, under the known kid."""
        return replace(
            self,
            key=replace(generate_key(Algorithm.ES256), kid=self.key.kid),
            signers=(read_signer(generate_webhook_secret()),),
        )

    def jwt(self, moment: datetime | None = None) -> str:
        """Return the JWT of an attempt at this moment, by default that of `request()`."""
        compact = at_once(
            sign_notification(
                static_claims(
                    issuer=self.issuer,
                    audience=self.audience,
                    task_id=self.task_id,
                    config_id="receiver-testing",
                ),
                self.key,
                issued_at=int((moment or self.issued_at or utc_now()).timestamp()),
                delivery_id=self.delivery_id,
                seq=self.seq,
                body_sha256=body_sha256(self.body),
            )
        )
        return self._changed(compact) if self.header or self.claims else compact

    def _changed(self, compact: str) -> str:
        signing_input = ".".join(
            b64url_encode(_json(_with(json.loads(b64url_decode(part, "JWT")), changes)))
            for part, changes in zip(compact.split("."), (self.header, self.claims), strict=False)
        )
        if self.header.get("alg") == "none":  # RFC 7515 §8: an empty signature
            return f"{signing_input}."
        return f"{signing_input}.{b64url_encode(at_once(sign(signing_input.encode(), self.key)))}"


def _json(members: JsonObject) -> bytes:
    # Also what pushkit does not write, such as NaN.
    return json.dumps(members, separators=(",", ":")).encode()


def _with(members: JsonObject, changes: Mapping[str, JsonValue]) -> JsonObject:
    return {name: value for name, value in {**members, **changes}.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningAgent:
    """The agent that the receiver trusts. Raises ConfigError: a short token, a wrong secret."""

    webhook_url: str  # where the receiver accepts notifications; also the audience
    issuer: str = "https://agent.example.com"  # `iss`
    # The notification token that the receiver expects; at least 16 characters.
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    # Its signing key.
    key: SigningKey = field(default_factory=lambda: generate_key(Algorithm.ES256), repr=False)
    schemes: frozenset[Scheme] = _JWT_ALONE  # of its signatures
    # Its secrets or keys of Standard Webhooks, `whsec_…` or `whsk_…`.
    webhook_secrets: tuple[str, ...] = field(default=(), repr=False)
    signers: tuple[WebhookSigner, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "signers", read_signers(self.webhook_secrets))
        # Half of a shorter one might occur in an answer by chance.
        if len(self.token) < _MIN_TOKEN_CHARS:
            raise ConfigError(
                f"token: found {len(self.token)} characters, expected at least {_MIN_TOKEN_CHARS}"
            )

    def jwks(self) -> JsonObject:
        """Return the JWK Set that the receiver is to trust."""
        return {"keys": [public_jwk(self.key)]}

    def draft(self, task_id: str, seq: int = 1) -> Draft:
        """Return a genuine notification with an id of its own: a status update, A2A 1.0."""
        event: JsonObject = {
            "taskId": task_id,
            "contextId": "context-1",
            "status": {"state": "TASK_STATE_WORKING"},
            "metadata": {"seq": seq},
        }
        return Draft(
            url=self.webhook_url,
            issuer=self.issuer,
            audience=audience_of(self.webhook_url),
            key=self.key,
            token=self.token,
            delivery_id=f"dlv_{secrets.token_hex(16)}",
            task_id=task_id,
            seq=seq,
            body=_json({"statusUpdate": event}),
            schemes=self.schemes,
            signers=self.signers,
        )


# --- trials ---------------------------------------------------------------------------------------


_PAUSE = 0.02
# 429 would not prove that the request itself was refused.
_REFUSALS = frozenset({400, 401, 403, 404})
_NOT_RUN = "not run: a receiver that does not accept a genuine notification would pass it"
_NOT_SEEN = "callbacks cannot be seen over HTTP: add --observe"


@dataclass(slots=True)
class Trial:
    """One check of one receiver, with a task of its own."""

    subject: ReceiverUnderTest  # the receiver
    agent: SigningAgent  # the agent that it trusts
    deadline: timedelta  # how long a callback may take
    rounds: int  # how often a check of crashes tries, at different moments
    patience: timedelta = timedelta(seconds=30)  # how long it may wait for a slow body
    task_id: str = field(default_factory=lambda: f"task-{secrets.token_hex(8)}")
    _seq: int = 0

    @property
    def at(self) -> ReceiverAtUrl:
        """The receiver, for checks that open connections of their own."""
        if not isinstance(self.subject, ReceiverAtUrl):
            raise TypeError("expected a receiver at a URL")
        return self.subject

    def draft(self) -> Draft:
        """Return the next genuine notification of this check's task."""
        self._seq += 1
        return self.agent.draft(self.task_id, self._seq)

    async def post(self, draft: Draft) -> Answer | None:
        """Make an attempt."""
        return await self.subject.post(draft.request())

    async def calls(self) -> Counter[str]:
        """Return how often callbacks were called, by the delivery id."""
        return Counter(await self.subject.callbacks() if self.subject.shows_callbacks else ())

    async def uncalled(self, *drafts: Draft) -> list[Draft]:
        """Wait until notifications are called back; return those that are not, in time."""
        left = list(drafts) if self.subject.shows_callbacks else []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.deadline.total_seconds()):
                while left:
                    called = set(await self.subject.callbacks())
                    left = [draft for draft in left if draft.delivery_id not in called]
                    await asyncio.sleep(_PAUSE if left else 0)
        return left

    async def delivered(self, draft: Draft) -> bool:
        """Retry, as a sender does, until an attempt is accepted; return whether one was in time."""
        try:
            async with asyncio.timeout(self.deadline.total_seconds()):
                while not accepted(await self.post(draft)):  # noqa: ASYNC110  # the same
                    await asyncio.sleep(_PAUSE)
        except TimeoutError:
            return False
        return True

    async def settled(self) -> list[str]:
        """Wait until all that was accepted of this task was called back; return what went wrong.

        This sends one more genuine notification. Callbacks are in order: what was not called back
        before it never will be.
        """
        draft = self.draft()
        answer = await self.post(draft)
        if not accepted(answer):
            return [f"a genuine notification after it: {described(answer)}, expected 2xx"]
        if await self.uncalled(draft):
            return ["a genuine notification after it was never called back"]
        return []

    async def refused(
        self, drafts: Mapping[str, Draft], *, among: Container[int] = _REFUSALS, says: str = "401"
    ) -> list[str]:
        """Return which of these are not refused, or are called back.

        Args:
            drafts: The notifications, by a name for the findings.
            among: The statuses that refuse one.
            says: Those, for the findings.
        """
        answers = {name: await self.post(draft) for name, draft in drafts.items()}
        found = [
            f"{name}: {described(answer)}, expected {says}"
            for name, answer in answers.items()
            if answer is None or answer.status not in among
        ]
        found += await self.settled()
        calls = await self.calls()
        return found + [
            f"{name}: called back" for name in drafts if calls[drafts[name].delivery_id]
        ]

    async def once(self, draft: Draft) -> list[str]:
        """Return what went wrong if a notification was not called back exactly once."""
        found = await self.settled()
        calls = (await self.calls())[draft.delivery_id]
        if calls == 1 or not self.subject.shows_callbacks:
            return found
        return [*found, f"called back {calls} times, expected once"]


def accepted(answer: Answer | None) -> bool:
    """Return whether a sender would count a notification as delivered."""
    return answer is not None and answer.accepted


def described(answers: Answer | Iterable[Answer | None] | None) -> str:
    """Describe an answer, or several, for a finding."""
    if answers is None or isinstance(answers, Answer):
        return f"answered {answers}" if answers else "no answer"
    return f"answered {', '.join(sorted({str(answer or 'nothing') for answer in answers}))}"


# --- checks, and their examination ---------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check, and what it needs."""

    run: Callable[[Trial], Awaitable[list[str]]]  # returns what it found; its docstring is promised
    # What answers alone show of a promise about callbacks; empty for nothing. None: all of it.
    over_http: str | None = None
    schemes: frozenset[Scheme] = frozenset(Scheme)  # it applies to signatures by one of them
    restarts: bool = False  # whether it restarts the receiver
    directly: bool = False  # whether it needs a connection without a proxy

    @property
    def promise(self) -> str:
        """What should hold."""
        return (self.run.__doc__ or "").strip().partition("\n")[0]

    def unseen(self, subject: ReceiverUnderTest, agent: SigningAgent) -> str:
        """Return why it cannot be made; empty if it can."""
        if not agent.schemes & self.schemes:
            return f"does not apply to {' and '.join(sorted(agent.schemes))}"
        if self.directly and not subject.is_reached_directly:
            return "not through a --proxy"
        there = {"--restart": subject.restarts, "--observe": subject.shows_callbacks}
        lacks = [option for option, is_there in there.items() if not is_there]
        return f"needs {' and '.join(lacks)}" if self.restarts and lacks else ""


async def examine(
    checks: Mapping[str, Check],
    trial: Callable[[], Trial],  # makes one, with a task of its own
) -> AsyncIterator[Examined]:
    """Yield the result of each check as it ends, also of those that were not run."""
    accepts = True
    for name, check in checks.items():
        result = await _examined(name, check, trial(), accepts=accepts)
        if name == "genuine":
            accepts = result.outcome is not CheckOutcome.FAILED
        yield result


async def _examined(name: str, check: Check, trial: Trial, *, accepts: bool) -> Examined:
    subject = trial.subject
    result = Examined(check=name, promise=check.promise, outcome=CheckOutcome.PASSED)
    if not accepts:
        return replace(result, outcome=CheckOutcome.NOT_RUN, details=(_NOT_RUN,))
    if why := check.unseen(subject, trial.agent):
        return replace(result, outcome=CheckOutcome.UNSEEN, details=(why,))
    if faults := await check.run(trial):
        return replace(result, outcome=CheckOutcome.FAILED, details=tuple(faults))
    if subject.shows_callbacks or check.over_http is None:
        return result
    if not check.over_http:
        details = (f"the answers are right; {_NOT_SEEN}",)
        return replace(result, outcome=CheckOutcome.UNSEEN, details=details)
    return replace(result, promise=check.over_http, details=(_NOT_SEEN,))


def chosen(known: Mapping[str, T], only: Collection[str]) -> dict[str, T]:
    """Return what `--only` names, or all. Raises ConfigError: one of the names is unknown."""
    if unknown := sorted(set(only) - set(known)):
        raise ConfigError(f"--only: found {unknown[0]!r}, expected some of {', '.join(known)}")
    return {name: each for name, each in known.items() if not only or name in only}
