"""The steps of the verification, in the order in which a receiver does them.

Each step notes itself in the request's `Trail` as it begins. So a refusal is where it happened, and
a step that was not reached is never shown as passed. The log, metrics, `listen`, `verify` and the
dashboard read the trail; only status and code of a refusal leave over HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, StrEnum
from typing import NamedTuple


class Step(Enum):
    """One step: its number (wire profile §4), its name, and what it checks."""

    REQUEST = (1, "request", "address, head, declared size and type")
    SENDER = (2, "sender", "a trusted sender posts to this path")
    SIGNATURE = (3, "signature", "the sender's signature, by a key of its own")
    TIME = (4, "time", "the times are within the tolerance")
    ISSUER = (4, "issuer", "the issuer is this sender's")
    AUDIENCE = (4, "audience", "it is signed for this webhook")
    IDS = (4, "ids", "the ids agree")
    TOKEN = (5, "token", "token and credentials")
    SIZE = (1, "size", "the body, whole, in time and not too long")
    BODY = (3, "body", "the body is what was signed")
    RATE = (6, "rate", "the rate of this sender")
    CONTENT = (6, "content", "the body is an update, of the signed task")
    REPLAY = (7, "replay", "the id is new, or a retry")
    TASK = (8, "task", "the task is expected")
    STORED = (9, "stored", "within the backlog's limits, and stored")

    def __init__(self, number: int, word: str, checks: str) -> None:
        self.number = number
        self.word = word
        self.checks = checks


class Result(StrEnum):
    """The result of one step."""

    PASSED = "passed"
    REFUSED = "refused"
    NOT_CHECKED = "not_checked"
    """This sender's scheme, or its configuration, has nothing to check there."""
    NOT_REACHED = "not_reached"
    WOULD_PASS = "would_pass"  # noqa: S105  # no password
    """Checked by a diagnosis although an earlier step refuses the request."""
    WOULD_REFUSE = "would_refuse"
    """The same, and this step would refuse it, too."""
    UNKNOWN = "unknown"
    """The receiver may have come to it, or not; what is known does not say."""

    @property
    def holds(self) -> bool | None:
        """Whether the request passed it; None unless it passed it or was refused by it."""
        return {Result.PASSED: True, Result.REFUSED: False}.get(self)


class CheckResult(NamedTuple):
    """One step with its result."""

    step: Step
    result: Result
    found: str = ""  # what was found, or also what was expected; never a secret
    code: str | None = None  # of the refusal

    @property
    def name(self) -> str:
        """The name of the step."""
        return self.step.word


class Trail:
    """The steps that a request has come to, and what is proven of it."""

    __slots__ = ("begun", "delivery_id", "reason", "sender", "task_id", "trace_id")

    def __init__(self, *, sender: str | None = None) -> None:
        # In order; the last one is the one that refuses, if any does.
        self.begun: list[Step] = [Step.REQUEST]
        self.reason = ""  # why that one refuses it
        self.sender = sender  # this and the others once they are proven
        self.task_id: str | None = None
        self.delivery_id: str | None = None
        self.trace_id: str | None = None

    @property
    def step(self) -> Step:
        """The step that it has come to."""
        return self.begun[-1]

    @property
    def proven(self) -> dict[str, str]:
        """What is proven, by the names that log lines use."""
        facts = (
            ("sender", self.sender),
            ("task", self.task_id),
            ("delivery_id", self.delivery_id),
            # A stranger's trace is not believed.
            ("trace_id", self.trace_id if self.sender else None),
        )
        return {name: fact for name, fact in facts if fact is not None}

    @property
    def words(self) -> tuple[str, ...]:
        """The names of the steps that it has come to, in order."""
        return tuple(step.word for step in self.begun)


def results_of(
    begun: Sequence[str], code: str | None = None, reason: str = ""
) -> list[CheckResult]:
    """Return every step with its result.

    Args:
        begun: The names of the steps that a request has come to (`Trail.words`).
        code: The code of its refusal, by the last of them; None if it was not refused.
        reason: The reason of that.
    """
    refusing = begun[-1] if begun and code is not None else None
    last = max((place for place, step in enumerate(Step) if step.word in begun), default=-1)
    # A signature that cannot be read is refused before its sender is known.
    unknown = Step.SENDER if code is not None else None
    results: list[CheckResult] = []
    for place, step in enumerate(Step):
        if step.word == refusing:
            results.append(CheckResult(step, Result.REFUSED, reason, code))
        elif step.word in begun:
            results.append(CheckResult(step, Result.PASSED))
        elif step is unknown or (place > last and code is not None):
            results.append(CheckResult(step, Result.NOT_REACHED))
        else:
            results.append(CheckResult(step, Result.NOT_CHECKED))
    return results
