"""What checks are written with (posting, waiting for callbacks, proving refusals), and run by.

Of a receiver that does not show its callbacks, nothing is found about them, neither good nor bad:
`examine` says which promises that leaves open.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from datetime import timedelta

from pushkit.errors import ConfigError
from pushkit.signing.scheme import Scheme
from receiver.diagnosis.agent import Draft, SigningAgent
from receiver.diagnosis.report import CheckOutcome, Examined
from receiver.diagnosis.subject import Answer, ReceiverUnderTest

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
    task_id: str = field(default_factory=lambda: f"task-{secrets.token_hex(8)}")
    _seq: int = 0

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
    *,
    only: Collection[str] = (),  # names of checks; all of them by default
) -> AsyncIterator[Examined]:
    """Yield the result of each check as it ends, also of those that were not run.

    Raises:
        ConfigError: There is no check of that name.
    """
    check_only(only, checks)
    accepts = True
    for name in checks:
        if not only or name in only:
            result = await _examined(name, checks[name], trial(), accepts=accepts)
            accepts = accepts and (name != "genuine" or result.outcome is not CheckOutcome.FAILED)
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


def check_only(only: Collection[str], known: Collection[str]) -> None:
    """Check the names of `--only`. Raises ConfigError: one of them is unknown."""
    if unknown := sorted(set(only) - set(known)):
        raise ConfigError(f"--only: found {unknown[0]!r}, expected some of {', '.join(known)}")
