"""The steps of the verification, in the order of `receiver.verification`, each with its result."""

from __future__ import annotations

from typing import Final

from pushkit.events.receiver import NotificationRefused
from receiver.dashboard.documents import StepResult, VerifiedStep
from receiver.inbox.inspection import NotificationReport
from receiver.inbox.model import InboxStatus
from receiver.steps import Step, results_of

# Steps that check what is signed, of a notification in the inbox: one without a key may be of a
# sender that does not sign.
_SIGNED: Final = (Step.SIGNATURE, Step.TIME, Step.IDS, Step.BODY)
# Not each signature states them, and the inbox does not say which one it was.
_OF_SOME_SIGNATURES: Final = (Step.ISSUER, Step.AUDIENCE)
_ENDED: Final = {InboxStatus.DONE: StepResult.PASSED, InboxStatus.DEAD: StepResult.FAILED}


def steps_of_refused(refused: NotificationRefused) -> list[VerifiedStep]:
    """Return every step with its result; none if the request was no notification."""
    if not refused.steps:
        return []
    found = {Step.SENDER: refused.sender or ""}
    return [
        _step(each.step, StepResult(each.result), each.found or found.get(each.step, ""))
        for each in results_of(refused.steps, refused.code, refused.reason)
    ]


def steps_of_accepted(report: NotificationReport) -> list[VerifiedStep]:
    """Return every step with what it proved: a notification in the inbox has passed 1 to 9.

    Without a key, the inbox does not say whether the sender signs, so neither do the steps.
    """
    found = report.notification
    late = (found.received_at - found.issued_at).total_seconds()
    of_task = f"task {found.task_id}" if found.task_id else "no task"
    key = f"key {found.kid}" if found.kid else "this sender names no key"
    proven = {
        Step.SENDER: found.sender,
        Step.SIGNATURE: key,
        Step.TIME: f"signed {late:.1f} s before it arrived",
        Step.IDS: found.delivery_id,
        Step.TOKEN: "as this sender requires",
        Step.SIZE: f"{found.body_bytes:,} bytes",
        Step.BODY: key,
        Step.CONTENT: of_task,
        Step.REPLAY: f"the first of id {found.delivery_id}",
        Step.TASK: of_task,
        Step.STORED: f"stored {found.received_at:%Y-%m-%d %H:%M:%S} UTC",
    }
    untold = (*_OF_SOME_SIGNATURES, *(() if found.kid else _SIGNED))
    passed = [
        _step(
            step,
            StepResult.NOT_TOLD if step in untold else StepResult.PASSED,
            proven.get(step, ""),
        )
        for step in Step
    ]
    result, says = _of_callbacks(report)
    callbacks: VerifiedStep = {
        "step": 10,
        "name": "callbacks",
        "checks": "callbacks, in the order of the task",
        "found": says,
        "result": result,
    }
    return [*passed, callbacks]


def _of_callbacks(report: NotificationReport) -> tuple[StepResult, str]:
    """Return the result of the callbacks, and what is known of them."""
    found, called = report.notification, report.callbacks
    if found.unmatched:
        return StepResult.NOT_REACHED, "it matched no callback"
    ended = _ENDED.get(found.status, StepResult.WAITS)
    if ended is StepResult.PASSED and not called:
        ended = StepResult.NOT_TOLD
    return ended, f"{sum(each.done for each in called)} of {len(called)} done"


def _step(step: Step, result: StepResult, found: str) -> VerifiedStep:
    return {
        "step": step.number,
        "name": step.word,
        "checks": step.checks,
        "found": found,
        "result": result,
    }
