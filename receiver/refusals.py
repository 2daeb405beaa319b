"""Refusals: one table of their codes, statuses and log levels; `Refusals` logs and answers them."""

from __future__ import annotations

import functools
import json
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from datetime import datetime, timedelta
from http import HTTPStatus
from types import MappingProxyType
from typing import Final, NamedTuple

from pushkit.clock import utc_now
from pushkit.errors import (
    AudienceError,
    ClaimError,
    CodeTable,
    DigestMismatchError,
    InboundError,
    InvalidSignatureError,
    IssuerError,
    KeysUnavailableError,
    MalformedJsonError,
    MalformedRequestError,
    TimestampError,
    TokenError,
    UnrecognisedBodyError,
    page_of,
)
from pushkit.events import Listeners, NotificationRefused
from pushkit.logs import RepeatedLog, one_word, printable
from pushkit.peers import rate_key
from receiver.registrations import TaskNotExpectedError
from receiver.request import Answer, ConsumedBodyError, HeadersTooLargeError
from receiver.selection import UnknownSenderError
from receiver.steps import CheckResult, Result, Step, Trail, results_of

_log = logging.getLogger("receiver")

_SECOND, _MINUTE = timedelta(seconds=1), timedelta(minutes=1)


class Refusal(NamedTuple):
    """One row: how a refusal is answered, and how often it is logged."""

    # The HTTP status: an error that is declared below this table says it, one above reads it here.
    status: int
    means: str  # what was found; the log line says more, the answer has the code alone
    remedy: str  # what the receiver's operator can do about it
    # The steps of the verification that it can come from, in order; none for the others. Which it
    # was is in the request's trail.
    steps: tuple[Step, ...] = ()
    # `Retry-After`; an error that knows it better has its own (`RateLimitedError`).
    retry_after: timedelta | None = None
    # Log it at most once in this time per sender, or per address that has proven nothing. None: log
    # each one of a sender, and one a second of an address.
    once_in: timedelta | None = None
    level: int = logging.WARNING  # of the log
    closes: bool = False  # whether the connection ends after it, because a body is left unread


_NO_JSON: Final = Refusal(
    MalformedJsonError.status,
    "the body is not JSON within the limits",
    "The agent does not send JSON, or exceeds a limit: `receiver listen` shows the body.",
    (Step.CONTENT,),
)
REFUSALS: Final[Mapping[str, Refusal]] = MappingProxyType(
    {
        # --- no notification ---
        "malformed_http": Refusal(
            400,
            "the bytes are not an HTTP request",
            "A scanner, or a client that speaks TLS to a plain port: nothing to do unless it is an "
            "agent's proxy.",
        ),
        "head_timeout": Refusal(
            408,
            "the head arrived too slowly",
            "A slow or idle client. If it is an agent: check the proxy in front of the receiver, "
            "and request_timeout_seconds.",
        ),
        "not_found": Refusal(
            404,
            "no sender posts to this path",
            "The agent posts to another path: compare its push config with this sender's path.",
        ),
        "method_not_allowed": Refusal(
            405,
            "the method is not POST",
            "A person or a probe requests this path: point probes at /healthz.",
        ),
        "invalid_validation_token": Refusal(
            400,
            "the validation token cannot be echoed",
            "The agent's check of ownership has to send one token of plain characters.",
        ),
        # --- mailboxes ---
        "mailbox_unauthorized": Refusal(
            401,
            "no mailbox of this name with this token",
            "The client of a mailbox has another token, or another name in its URL: compare both "
            "with [[mailbox]].",
        ),
        "mailbox_busy": Refusal(
            429,
            "too many polls of a mailbox wait",
            "Let each client poll once at a time, or raise max_polls.",
            (),
            _SECOND,
            _MINUTE,
        ),
        "unknown_receipt": Refusal(
            404,
            "a mailbox never handed out this receipt",
            "The client of a mailbox settles what it got from another one, or long ago.",
        ),
        "lease_lost": Refusal(
            409,
            "a client of a mailbox settled a notification after its lease had ended",
            "The client is too slow, or was suspended: it has to renew, or raise lease_seconds.",
            level=logging.INFO,
        ),
        # --- the steps of the verification ---
        "rate_limited": Refusal(
            429,
            "too many requests of this address, or (step `rate`) of this sender",
            "For real traffic, raise peer_rate or sender_rate. Behind a proxy, name the proxy in "
            "trusted_proxies.",
            (Step.REQUEST, Step.RATE),
            once_in=_MINUTE,
        ),
        "headers_too_large": Refusal(
            HeadersTooLargeError.status,
            "the headers are longer than max_header_bytes",
            "Raise max_header_bytes, if your own proxy adds so many headers.",
            (Step.REQUEST,),
        ),
        "body_too_large": Refusal(
            413,
            "the body is longer than max_body_bytes",
            "Raise max_body_bytes, or have the agent send artifacts by URL.",
            (Step.REQUEST, Step.SIZE),
            closes=True,
        ),
        "body_timeout": Refusal(
            408,
            "the body was not complete within request_timeout",
            "The link is slow: raise request_timeout_seconds, or let the proxy buffer bodies.",
            (Step.SIZE,),
            closes=True,
        ),
        "incomplete_body": Refusal(
            400,
            "the body broke off",
            "The agent or a proxy closed the connection, perhaps by a time-out. It will retry.",
            (Step.SIZE,),
            closes=True,
        ),
        "body_consumed": Refusal(
            ConsumedBodyError.status,
            "the application read the body before the receiver",
            "Exclude the senders' paths from the middleware that reads bodies (to log, sign or "
            "parse them), or put ReceiverMiddleware in front of it. The sender will retry.",
            (Step.SIZE,),
            _MINUTE,
            _MINUTE,
            logging.ERROR,
            closes=True,
        ),
        "unsupported_media_type": Refusal(
            415,
            "the Content-Type is not JSON, or the body is compressed",
            "The agent has to send application/json, or application/a2a+json, uncompressed.",
            (Step.REQUEST,),
        ),
        "unknown_sender": Refusal(
            UnknownSenderError.status,
            "no sender, or more than one, fits the path, iss and kid",
            "Add a [[senders]] table with this path and issuer to trust it, or leave it refused.",
            (Step.SENDER,),
        ),
        "invalid_signature": Refusal(
            InvalidSignatureError.status,
            "the signature is missing, malformed or not valid",
            "Check that the sender's `jwks_url`, `jwks_file` or secret has the key that signs "
            "now: `receiver check`, where there is a configuration file, shows what it has.",
            (Step.SIGNATURE, Step.BODY),
        ),
        "keys_unavailable": Refusal(
            KeysUnavailableError.status,
            "the sender's keys cannot be fetched",
            "Check that this machine can reach jwks_url: `receiver check`, where there is a "
            "configuration file, tries it. The sender will retry.",
            (Step.SENDER, Step.SIGNATURE),
            5 * _SECOND,
            _MINUTE,
        ),
        "digest_mismatch": Refusal(
            DigestMismatchError.status,
            "the signature covers another body",
            "The bytes have to arrive as they were signed. A framework parsed the body, and wrote "
            "it again: pass on the raw bytes. A cloud function got it in base64 "
            "(`isBase64Encoded`): decode it. A middleware read or changed it, or a proxy does: "
            "turn that off.",
            (Step.BODY,),
        ),
        "invalid_claims": Refusal(
            ClaimError.status,
            "a claim is missing that this profile requires",
            "The agent signs by another profile: set `profile` of this sender, or "
            "update the agent.",
            (Step.TIME, Step.IDS),
        ),
        "stale_timestamp": Refusal(
            TimestampError.status,
            "signed too long ago, ahead of time, or expired",
            "One of the two clocks is wrong: check NTP on both; else the request "
            "was delayed, or replayed.",
            (Step.TIME,),
        ),
        "wrong_issuer": Refusal(
            IssuerError.status,
            "another `iss` than the sender's",
            "Set `issuer` of this sender to the issuer that the agent states, if you trust it.",
            (Step.ISSUER,),
        ),
        "wrong_audience": Refusal(
            AudienceError.status,
            "signed for another webhook",
            "The agent signs for another URL: `url` and the sender's path have to match the URL "
            "in its push config.",
            (Step.AUDIENCE,),
        ),
        "malformed_request": Refusal(
            MalformedRequestError.status,
            "ids disagree, or a header occurs twice",
            "A proxy duplicates or rewrites header fields, or the agent is at fault: "
            "compare both ends.",
            (Step.REQUEST, Step.SIGNATURE, Step.IDS, Step.TOKEN, Step.CONTENT),
        ),
        "invalid_token": Refusal(
            TokenError.status,
            "a token or credential is missing or wrong",
            "The agent sends another token than it was given, or none: give it a new "
            "one (`Receiver.expect()`, or `receiver expect`).",
            (Step.TOKEN,),
        ),
        "malformed_json": _NO_JSON,
        "malformed_body": _NO_JSON,
        "unrecognised_body": Refusal(
            UnrecognisedBodyError.status,
            "the body is JSON, but not a notification of a known version",
            "The agent posts something else than notifications, or leaves out what all versions "
            "need; what is newer than this receiver is accepted.",
            (Step.CONTENT,),
        ),
        "id_conflict": Refusal(
            409,
            "this id was accepted with another body",
            "The agent uses one id for two updates, which is a defect. The first one was accepted.",
            (Step.REPLAY,),
        ),
        "being_stored": Refusal(
            503,
            "a copy is being stored right now",
            "Nothing to do: the sender will retry, and then gets the answer to the copy.",
            (Step.STORED,),
            _SECOND,
            _MINUTE,
        ),
        "task_not_expected": Refusal(
            TaskNotExpectedError.status,
            "this task is not expected",
            "Give the agent a token of its own for each task (`Receiver.expect()`, or `receiver "
            'expect`), before it starts, or set tasks = "any".',
            (Step.TASK,),
        ),
        "backlog_full": Refusal(
            429,
            "too many notifications of this sender are unfinished",
            "Its callbacks do not keep up: make them faster, or raise max_backlog_per_sender.",
            (Step.STORED,),
            10 * _SECOND,
            _MINUTE,
        ),
        "inbox_full": Refusal(
            503,
            "too many notifications are unfinished",
            "Callbacks do not keep up: make them faster, or raise callback_concurrency "
            "or max_backlog.",
            (Step.STORED,),
            10 * _SECOND,
            _MINUTE,
        ),
        "storage": Refusal(
            503,
            "the receiver's storage failed",
            "The disk is full, or the database cannot be reached: the log has its error. Senders "
            "will retry.",
            (Step.TOKEN, Step.REPLAY, Step.TASK, Step.STORED),
            _SECOND,
            _MINUTE,
            logging.ERROR,
        ),
        # --- our own faults ---
        "not_started": Refusal(
            503,
            "the receiver is not started",
            "The application has to start the receiver: `async with receiver`, or its lifespan.",
            (),
            None,
            _MINUTE,
            logging.ERROR,
            closes=True,
        ),
        "internal": Refusal(
            503,
            "a defect of pushkit",
            "The log has the traceback: please report it. The sender will retry.",
            (),
            None,
            _MINUTE,
            logging.ERROR,
            closes=True,
        ),
    }
)


_SHORT = {"delivery_id": "id"}
# Lines in an interval: a flood from many addresses must not fill the disk.
_OF_STRANGERS, _OF_A_SENDER = 10, 100


class Refusals:
    """Answers each refusal, and logs its reason, as often as its row says.

    A line says how many were left out before it. Refusals after a valid signature name their task
    and delivery, so each is logged, up to a hundred a second per sender, unless its row has an
    interval. All addresses that have proven nothing share ten lines per interval.
    """

    def __init__(
        self, events: Listeners | None = None, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self._events = events or Listeners(_log)
        self._clock = clock
        self._by_minute = RepeatedLog(_log, interval=_MINUTE)
        self._of_strangers = {
            span: RepeatedLog(_log, interval=span, most=_OF_STRANGERS)
            for span in (_SECOND, _MINUTE)
        }
        self._of_senders = defaultdict[str, RepeatedLog](
            lambda: RepeatedLog(_log, interval=_SECOND, most=_OF_A_SENDER)
        )

    def refuse(
        self,
        refused: InboundError | str,
        reason: str = "",
        *,
        peer: str,
        trail: Trail | None = None,
        error: BaseException | None = None,
    ) -> Answer:
        """Log and report a refusal, and return the answer.

        Args:
            refused: The error, or the code of a row.
            reason: What was found, if `refused` does not say it; what the row means if empty.
            peer: The address that the request came from.
            trail: The steps that the request came to, and what is proven of it.
            error: The fault of this process, whose traceback is logged.
        """
        code = refused if isinstance(refused, str) else refused.code
        row, answer = refusal_of(code), problem(code)
        if isinstance(refused, InboundError):
            # The log alone has it: the answer tells an outsider nothing about keys and tokens.
            reason = str(refused)
            answer = problem(code, refused.status, getattr(refused, "retry_after", None))
        reason = reason or row.means
        steps = () if trail is None else trail.words
        step = steps[-1] if steps else None
        trail = trail or Trail()
        trail.reason, sender, facts = reason, trail.sender, trail.proven
        if self._events.wants(NotificationRefused.usual_level):
            self._events.emit(
                NotificationRefused(
                    at=self._clock(),
                    sender=sender,
                    task_id=trail.task_id,
                    delivery_id=trail.delivery_id,
                    trace_id=facts.get("trace_id"),
                    status=answer.status,
                    code=code,
                    steps=steps,
                    peer=peer,
                    reason=reason,
                )
            )
        cause: Hashable
        if row.level >= logging.ERROR:  # our own fault, whoever meets it
            log, cause = self._by_minute, (code, type(error))
        elif sender is None:
            log, cause = self._of_strangers[row.once_in or _SECOND], (code, rate_key(peer))
        elif row.once_in is None:
            log, cause = self._of_senders[sender], object()
        else:
            log, cause = self._by_minute, (code, sender)
        unsaid = log.due(cause)
        if unsaid is None:
            return answer
        about = "".join(f" {_SHORT.get(name, name)}={printable(facts[name])}" for name in facts)
        log.write(
            unsaid,
            row.level,
            "refused %d %s%s peer=%s%s: %s%s",
            *(answer.status, code, f" step={step}" if step else "", one_word(peer), about, reason),
            page_said(code),
            exc_info=error or False,
            extra={
                "status": answer.status,
                "code": code,
                "step": step,
                "peer": peer,
                "reason": reason,
                **facts,
            },
        )
        return answer


@functools.lru_cache(maxsize=256)
def problem(code: str, status: int | None = None, retry_after: timedelta | None = None) -> Answer:
    """Return the problem details of a refusal; they tell an outsider no more than its code.

    Args:
        code: The code of the refusal.
        status: The HTTP status; None for the row's.
        retry_after: When to retry; None for the row's.
    """
    row = refusal_of(code)
    status, retry_after = status or row.status, retry_after or row.retry_after
    headers = [("Content-Type", "application/problem+json")]
    if retry_after is not None:
        headers.append(("Retry-After", str(math.ceil(retry_after.total_seconds()))))
    if code == "mailbox_unauthorized":
        headers.append(("WWW-Authenticate", "Bearer"))  # RFC 9110 §15.5.2
    if code == "method_not_allowed":
        headers.append(("Allow", "POST"))
    title = HTTPStatus(status).phrase
    document = {"type": "about:blank", "title": title, "status": status, "code": code}
    body = json.dumps(document).encode()
    return Answer(status=status, code=code, headers=tuple(headers), body=body, close=row.closes)


def refusal_of(code: str) -> Refusal:
    """Return the row of a code."""
    return REFUSALS.get(code) or _UNLISTED


def page_said(code: str) -> str:
    """Return where a code is explained, as the end of a message; empty for one without a row."""
    return f"; see {page_of(CodeTable.REFUSAL, code)}" if code in REFUSALS else ""


def steps_said(code: str) -> str:
    """Return which steps a code can come from, in words; empty if none.

    Over HTTP nothing else says where a request was refused.
    """
    return " or ".join(step.word for step in refusal_of(code).steps)


def results_over_http(code: str) -> list[CheckResult]:
    """Return every step with its result, as far as the code of a refusal says it."""
    row, places = refusal_of(code), list(Step)
    said = f"{code}: {row.means}"
    if len(row.steps) == 1:
        begun = places[: places.index(row.steps[0]) + 1]
        return results_of([step.word for step in begun], code, said)
    # A signature that cannot be read is refused before its sender is known.
    possible = {*row.steps, *((Step.SENDER,) if Step.SIGNATURE in row.steps else ())}
    reached = [place for place, step in enumerate(places) if step in possible]
    results = []
    for place, step in enumerate(places):
        if step in row.steps:
            others = " or ".join(other.word for other in row.steps if other is not step)
            where = f"refused here, or by {others}: {said}"
            results.append(CheckResult(step, Result.UNKNOWN, where, code))
        elif reached and place < reached[0]:
            results.append(CheckResult(step, Result.PASSED))
        elif reached and place < reached[-1]:
            results.append(CheckResult(step, Result.UNKNOWN))
        else:
            results.append(CheckResult(step, Result.NOT_REACHED))
    return results


_UNLISTED = Refusal(400, "refused", "The log says more.")
