"""The examination of a receiver: the promises of the test kit, and strain, one after another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from datetime import timedelta
from typing import Final

from pushkit.errors import ConfigError
from receiver.doctor.report import Outcome, Result
from receiver.doctor.strain import STRAINS
from receiver.doctor.subject import Examined
from receiver.testing import CHECKS, SigningAgent, check_receiver
from receiver.testing.checks import unseen_by

NAMES: Final = (*CHECKS, *STRAINS)
_NEED_RESTART: Final = frozenset(
    {"crash_after_answer", "crash_before_answer", "retry_after_restart"}
)
# Whose answers may all be right while somebody is called twice, or never.
_NEED_OBSERVER: Final = frozenset({"concurrent_copies", "retry"}) | _NEED_RESTART
_UNOBSERVED = "the answers are right; who was called cannot be seen over HTTP: --observe"


async def examine(
    subject: Examined,
    agent: SigningAgent,
    *,
    only: Collection[str] = (),  # names of checks; all of them by default
    deadline: timedelta,  # how long a callback may take
    patience: timedelta,  # how long a receiver may wait for a body that drips in
    rounds: int,  # how many crashes each check tries that crashes it
) -> AsyncIterator[Result]:
    """Yield the result of each check as it ends. Raises ConfigError: no such check or command."""
    if unknown := sorted(set(only) - set(NAMES)):
        raise ConfigError(f"--only: found {unknown[0]!r}, expected some of {', '.join(NAMES)}")
    for name, check in CHECKS.items():
        if only and name not in only:
            continue
        if missing := _missing(subject, agent, name):
            yield _result(name, check, Outcome.UNSEEN, missing)
            continue
        findings = await check_receiver(
            subject, agent, only=[name], deadline=deadline, rounds=rounds
        )
        if findings:
            yield _result(name, check, Outcome.FAILED, [each.detail for each in findings])
        elif name in _NEED_OBSERVER and not subject.is_observed:
            yield _result(name, check, Outcome.UNSEEN, [_UNOBSERVED])
        else:
            yield _result(name, check, Outcome.PASSED)
        if name == "genuine" and findings:
            return  # whoever accepts nothing refuses everything
    for name, strain in STRAINS.items():
        if not only or name in only:
            faults = await strain(subject, agent, patience)
            yield _result(name, strain, Outcome.FAILED if faults else Outcome.PASSED, faults)


def _missing(subject: Examined, agent: SigningAgent, name: str) -> list[str]:
    """Return what is missing to see anything of a check."""
    if unseen := unseen_by(agent, name):
        return [unseen]
    if name not in _NEED_RESTART:
        return []
    options = {"--restart": subject.restarts, "--observe": subject.is_observed}
    needed = [option for option, is_given in options.items() if not is_given]
    return [f"needs {' and '.join(needed)}"] if needed else []


def _result(name: str, check: object, outcome: Outcome, details: Sequence[str] = ()) -> Result:
    promise = (check.__doc__ or "").strip().partition("\n")[0]
    return Result(check=name, promise=promise, outcome=outcome, details=tuple(details))
