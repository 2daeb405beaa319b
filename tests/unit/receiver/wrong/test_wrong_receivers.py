"""Proof that the kit can fail: it catches each wrong receiver by the checks of its fault."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from pushkit.errors import ConfigError
from pushkit.signing.scheme import Scheme
from pushkit.webhook import WebhookRequest
from receiver.testing import CHECKS, Answer, check_receiver
from tests.long_runs import share
from tests.unit.receiver.wrong.miniature import Miniature
from tests.unit.receiver.wrong.receivers import CAUGHT_BY, TOUCHED_TOO

pytestmark = pytest.mark.slow

# How long to wait for a callback that never comes, not counting suspensions of this process.
DEADLINE = timedelta(seconds=1)

Make = Callable[[type[Miniature]], Miniature]


@pytest.fixture
def miniature(tmp_path: Path, unused_tcp_port: int) -> Make:
    """Make a receiver that listens on its own port."""
    return lambda kind: kind(tmp_path, unused_tcp_port)


async def findings_of(subject: Miniature, only: Collection[str] = ()) -> dict[str, list[str]]:
    await subject.start()
    try:
        found: dict[str, list[str]] = {}
        for finding in await check_receiver(subject, subject.agent, deadline=DEADLINE, only=only):
            found.setdefault(finding.check, []).append(finding.detail)
    finally:
        await subject.stop()
    return found


@pytest.mark.usefixtures("no_stalls")
async def test_the_receiver_that_the_wrong_ones_extend_keeps_every_promise(
    miniature: Make,
) -> None:
    assert await findings_of(miniature(Miniature)) == {}


@pytest.mark.usefixtures("no_stalls")
@pytest.mark.parametrize(
    ("number", "kind"),
    [pytest.param(number, kind, id=kind.__name__) for number, kind in enumerate(CAUGHT_BY)],
)
async def test_a_wrong_receiver_is_caught_for_what_it_does_wrong_and_for_nothing_else(
    miniature: Make, number: int, kind: type[Miniature]
) -> None:
    checks = {*CAUGHT_BY[kind], *share(CHECKS, number, 3)}
    findings = await findings_of(miniature(kind), checks)

    assert set(findings) - TOUCHED_TOO.get(kind, set()) == CAUGHT_BY[kind], findings


class AcceptsNothing(Miniature):
    """Refuses every request."""

    async def post(self, request: WebhookRequest) -> Answer | None:
        del request
        return Answer(status=401, body=b"")


class IsNotThere(Miniature):
    """Is down."""

    async def post(self, request: WebhookRequest) -> Answer | None:
        del request
        return None


@pytest.mark.parametrize("kind", [AcceptsNothing, IsNotThere])
async def test_a_receiver_that_accepts_nothing_passes_no_other_check(
    miniature: Make, kind: type[Miniature]
) -> None:
    subject = miniature(kind)

    findings = await check_receiver(subject, subject.agent)

    assert [finding.check for finding in findings] == ["genuine"]
    assert findings[0].promise == "A genuine notification is accepted, and called back once."
    assert findings[0].detail.endswith(f"; not run: {', '.join(list(CHECKS)[1:])}")


async def test_a_check_that_does_not_apply_is_not_made_in_silence(miniature: Make) -> None:
    subject = miniature(Miniature)
    agent = replace(subject.agent, schemes=frozenset({Scheme.STANDARD_WEBHOOKS}))

    with pytest.raises(ConfigError, match="audience does not apply to standard-webhooks"):
        await check_receiver(subject, agent, only=["audience"])


async def test_an_unknown_check_is_refused(miniature: Make) -> None:
    subject = miniature(Miniature)

    with pytest.raises(ConfigError, match="'replays'"):
        await check_receiver(subject, subject.agent, only=["retry", "replays"])


def test_every_check_but_the_first_two_has_a_receiver_that_it_catches() -> None:
    # A receiver that accepts nothing breaks `genuine`, and one that accepts all `signature`.
    caught = set().union(*CAUGHT_BY.values())

    assert set(CHECKS) - caught == {"genuine", "signature"}
