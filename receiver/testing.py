"""A black-box test kit for receivers: it signs as a pushkit sender does, and checks promises.

It needs no knowledge of how a receiver is built: it posts, counts callbacks, and restarts.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import timedelta

from pushkit.errors import ConfigError
from receiver.diagnosis.checks import CHECKS
from receiver.diagnosis.report import CheckOutcome
from receiver.diagnosis.subject import Answer, ReceiverUnderTest
from receiver.diagnosis.trial import Draft, SigningAgent, Trial, chosen, examine

__all__ = [
    "CHECKS",
    "Answer",
    "Draft",
    "Finding",
    "ReceiverUnderTest",
    "SigningAgent",
    "check_receiver",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A promise that was broken."""

    check: str  # the name of the check, one of `CHECKS`
    promise: str  # what should hold
    detail: str  # what was seen instead; never a token or a signature


async def check_receiver(
    subject: ReceiverUnderTest,
    agent: SigningAgent,
    *,
    only: Collection[str] = (),
    deadline: timedelta = timedelta(seconds=10),
    rounds: int = 20,
) -> list[Finding]:
    """Check a receiver; return the promises that it breaks.

        assert not await check_receiver(subject, agent)

    A run leaves notifications behind, and may be repeated on the same state. Checks that do not
    apply to the agent's schemes are left out. If a genuine notification is not accepted, the other
    checks are not run, and that finding names them.

    Args:
        subject: The receiver.
        agent: The agent that it trusts.
        only: Names of `CHECKS`; all of them by default.
        deadline: How long a callback may take.
        rounds: How often each of the two checks of crashes tries, at different moments.

    Raises:
        ConfigError: There is no check of that name, or it does not apply to the agent's schemes.
    """
    checks = chosen(CHECKS, only)
    for name in only:
        if why := checks[name].unseen(subject, agent):
            raise ConfigError(f"only: {name} {why}")
    results = examine(checks, lambda: Trial(subject, agent, deadline, rounds))
    found = [result async for result in results]
    findings = [
        Finding(check=result.check, promise=result.promise, detail=detail)
        for result in found
        if result.outcome is CheckOutcome.FAILED
        for detail in result.details
    ]
    if left := [result.check for result in found if result.outcome is CheckOutcome.NOT_RUN]:
        findings[-1] = replace(
            findings[-1], detail=f"{findings[-1].detail}; not run: {', '.join(left)}"
        )
    return findings
