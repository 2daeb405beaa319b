"""What checks are written with: posting, waiting for callbacks, and proving refusals."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from receiver.testing.agent import Draft, SigningAgent
from receiver.testing.subject import Answer, ReceiverUnderTest

_PAUSE = 0.02
# 429 would not prove that the request itself was refused.
_REFUSALS = frozenset({400, 401, 403, 404})


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

    async def calls(self, draft: Draft) -> int:
        """Return how often callbacks were called with a notification."""
        return list(await self.subject.callbacks()).count(draft.delivery_id)

    async def uncalled(self, *drafts: Draft) -> list[Draft]:
        """Wait until notifications are called back; return those that are not, in time."""
        left = list(drafts)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.deadline.total_seconds()):
                while left := await self._never_called(left):  # noqa: ASYNC110
                    await asyncio.sleep(_PAUSE)
        return left

    async def _never_called(self, drafts: Sequence[Draft]) -> list[Draft]:
        called = set(await self.subject.callbacks())
        return [draft for draft in drafts if draft.delivery_id not in called]

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

    async def refused(self, drafts: Mapping[str, Draft]) -> list[str]:
        """Return which of these are not refused, or are called back."""
        answers = {name: await self.post(draft) for name, draft in drafts.items()}
        found = [
            f"{name}: {described(answer)}, expected 401"
            for name, answer in answers.items()
            if answer is None or answer.status not in _REFUSALS
        ]
        found += await self.settled()
        for name, draft in drafts.items():
            if await self.calls(draft):
                found.append(f"{name}: called back")
        return found

    async def once(self, draft: Draft) -> list[str]:
        """Return what went wrong if a notification was not called back exactly once."""
        found = await self.settled()
        calls = await self.calls(draft)
        return found if calls == 1 else [*found, f"called back {calls} times, expected once"]


def accepted(answer: Answer | None) -> bool:
    """Return whether a sender would count a notification as delivered."""
    return answer is not None and answer.accepted


def described(answers: Answer | Iterable[Answer | None] | None) -> str:
    """Describe an answer, or several, for a finding."""
    if answers is None or isinstance(answers, Answer):
        return f"answered {answers.status}" if answers else "no answer"
    statuses = {answer.status if answer else 0 for answer in answers}
    return f"answered {', '.join(str(status or 'nothing') for status in sorted(statuses))}"
