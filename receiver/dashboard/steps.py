"""The steps of the verification, in the order of `receiver.verification`, each with its result."""

from __future__ import annotations

from typing import Final, NamedTuple

from pushkit.bounded_json import JsonObject
from pushkit.events.receiver import NotificationRefused
from receiver.inbox.inspection import NotificationReport
from receiver.inbox.model import InboxStatus
from receiver.refusals import refusal_of


class _Check(NamedTuple):
    step: int
    checks: str


_BODY: Final = _Check(1, "the body, whole and in time")
_HASH: Final = _Check(3, "the body is what was signed")
_CHECKS: Final = (
    _Check(1, "address, head and size"),
    _Check(2, "trusted sender"),
    _Check(3, "signature"),
    _Check(4, "times, audience, issuer"),
    _Check(5, "token and credentials"),
    _BODY,
    _HASH,
    _Check(6, "the body can be read"),
    _Check(7, "no replay"),
    _Check(8, "the task is expected"),
    _Check(9, "within the backlog limits, and stored"),
    _Check(10, "callbacks"),
)
_SIGNED: Final = frozenset({3, 4})  # steps that check what is signed
# Codes of several steps: without a proven sender, it is unknown which earlier steps were done.
_ANYWHERE: Final = frozenset({"invalid_signature", "invalid_token", "malformed_request", "storage"})


def steps_of_refused(refused: NotificationRefused) -> list[JsonObject]:
    """Return every step with its result; none if the request was no notification."""
    row = refusal_of(refused.code)
    if row.step is None:
        return []
    failing = _failing(refused, row.step)
    # The event names the sender once it is proven, which is after steps 1 to 4.
    unknown = refused.code in _ANYWHERE and refused.sender is None
    steps: list[JsonObject] = []
    for number, check in enumerate(_CHECKS):
        if number == failing:
            steps.append(_step(check, "failed", refused.reason))
        elif number > failing:
            steps.append(_step(check, "not_reached", ""))
        elif unknown and number > 0:
            steps.append(_step(check, "not_told", ""))
        else:
            found = refused.sender if check.step == 2 else None
            steps.append(_step(check, "passed", found or ""))
    return steps


def _failing(refused: NotificationRefused, step: int) -> int:
    """Return the index in `_CHECKS` of the step that failed."""
    is_proven = refused.sender is not None
    if refused.code == "digest_mismatch":
        return _CHECKS.index(_HASH)
    if refused.code == "rate_limited" and is_proven:
        step = 6
    if step == 1 and is_proven:
        return _CHECKS.index(_BODY)
    if refused.code == "malformed_request" and refused.task_id is not None:
        step = 6
    elif refused.code == "malformed_request" and is_proven:
        step = 5
    return next(number for number, check in enumerate(_CHECKS) if check.step == step)


def steps_of_accepted(report: NotificationReport) -> list[JsonObject]:
    """Return every step with what it proved: a notification in the inbox has passed 1 to 9.

    Without a key, the inbox does not say whether the sender signs, so neither do the steps.
    """
    found = report.notification
    late = (found.received_at - found.issued_at).total_seconds()
    of_task = f"task {found.task_id}" if found.task_id else "no task"
    key = f"key {found.kid}" if found.kid else "this sender names no key"
    proven = (
        "",
        found.sender,
        key,
        f"signed {late:.1f} s before it arrived",
        "as this sender requires",
        f"{found.body_bytes:,} bytes",
        key,
        of_task,
        f"the first of id {found.delivery_id}",
        of_task,
        f"stored {found.received_at:%Y-%m-%d %H:%M:%S} UTC",
    )
    passed = [
        _step(check, "passed" if found.kid or check.step not in _SIGNED else "not_told", says)
        for check, says in zip(_CHECKS[:-1], proven, strict=True)
    ]
    return [*passed, _step(_CHECKS[-1], *_of_callbacks(report))]


def _of_callbacks(report: NotificationReport) -> tuple[str, str]:
    """Return the result of the callbacks, and what is known of them."""
    found, called = report.notification, report.callbacks
    if found.unmatched:
        return "not_reached", "it matched no callback"
    ended = {InboxStatus.DONE: "passed", InboxStatus.DEAD: "failed"}.get(found.status, "waits")
    if ended == "passed" and not called:
        ended = "not_told"
    return ended, f"{sum(each.done for each in called)} of {len(called)} done"


def _step(check: _Check, result: str, found: str) -> JsonObject:
    return {"step": check.step, "checks": check.checks, "found": found, "result": result}
