"""Stories of defects that seeds found, in their smallest form: they must not come back."""

from __future__ import annotations

from tests.simulation.scenario import Scenario, Step

__all__ = ["KEPT"]

_NOTIFIED = tuple(Step(2.0 + n, "notify", (0, "task0", n)) for n in range(8))

KEPT = {
    # An agent was told that nothing was stored, and it was.
    "a commit in which the disk fails": Scenario(
        seed=5,
        agents=1,
        workers=0,
        webhooks=1,
        receivers=0,
        postgres=False,
        twins=False,
        steps=(
            Step(0.5, "subscribe", (0, "task0", "owner0", "hook0", "1.0")),
            Step(1.9, "disk", ("uncertain", 30.0)),
            *_NOTIFIED,
        ),
        ends=100.0,
    ),
    # What was sent again stayed behind for ever: nobody could resume what its end had withdrawn.
    "a pause while the last of a task is under way": Scenario(
        seed=268,
        agents=1,
        workers=0,
        webhooks=1,
        receivers=0,
        postgres=False,
        twins=False,
        steps=(
            Step(0.5, "subscribe", (0, "task0", "owner0", "hook0", "1.0")),
            Step(1.0, "mood", ("hook0", "sluggish")),
            Step(2.0, "finish", (0, "task0", "completed")),
            Step(3.0, "pause", (0, "task0", "owner0")),
            Step(30.0, "resend", (0,)),
        ),
        ends=100.0,
    ),
}
