"""Triggers: cause faults of a process in the middle of a request, an answer or a callback.

A process that is stopped at a random time is nearly always idle. A trigger waits for the n-th
request that reaches a webhook, the n-th that reaches a receiver (`intake`), or the n-th callback
that begins, and hits its process a few milliseconds later. A frozen process is thawed when another
process has taken over its work. Some triggers are instructions of owners and operators instead,
about a delivery that is being attempted.
"""

from __future__ import annotations

import contextvars
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.verification.simulation.loop import Process
from tests.verification.simulation.workload import SPAN, Actors, any_behaviour
from tests.verification.simulation.world import Unit, World

__all__ = ["Triggers", "add_triggers"]

_ENDS = ("crash", "crash", "stop", "freeze", "freeze", "blip")
_BLIPS = ("uncertain", "seldom", "error", "full", "busy", "hiccup", "hiccup")
_ASKED_FOR = ("pause", "unsubscribe", "redrive", "resend", "retry_now")
_UNUSUAL = ("410", "400", "503 Retry-After 7", "redirect", "babble", "babble late", "leave")
_LONGEST = 100.0  # seconds that a process is frozen, if no other takes over its work


@dataclass(slots=True)
class _Trigger:
    what: str
    where: str
    left: int
    seconds: float


@dataclass
class Triggers:
    """The triggers of one world."""

    _world: World
    _units: Mapping[str, Unit]  # the programs, by name
    _ask: Callable[[str, str], object]  # called with the kind of an instruction, and a delivery id
    _waiting: list[_Trigger] = field(default_factory=list)
    _frozen: dict[str, Process] = field(default_factory=dict)  # by the work they were doing

    def add(self, what: str, where: str, number: int, seconds: float) -> None:
        """Add a trigger at the n-th moment of a kind from now."""
        self._waiting.append(_Trigger(what, where, number, seconds))

    def clear(self) -> None:
        """Remove all triggers, and thaw frozen processes."""
        self._waiting.clear()
        for process in self._frozen.values():
            self._world.loop.thaw(process)
        self._frozen.clear()

    def moment(self, where: str, process: Process | None, work: str) -> bool:
        """Note that a process does some work now; return whether that work should take longer."""
        lasts = False
        if process is None:
            return lasts
        frozen = self._frozen.pop(work, None)
        if frozen is not None and frozen is not process:
            self._later(lambda: self._world.loop.thaw(frozen))
        for trigger in [each for each in self._waiting if each.where == where]:
            trigger.left -= 1
            if trigger.left < 0:
                self._waiting.remove(trigger)
                lasts |= trigger.what in _ASKED_FOR
                self._later(lambda trigger=trigger: self._hit(trigger, process, work))  # type: ignore[misc]

        return lasts

    def _later(self, call: Callable[[], object]) -> None:
        # Between the time before the answer and the time after it is settled.
        pause = self._world.loop.random.random() ** 2 * 0.03
        self._world.loop.call_later(pause, call, context=contextvars.Context())

    def _hit(self, trigger: _Trigger, process: Process, work: str) -> None:
        unit = self._units[process.name.partition(".")[0]]
        if unit.process is not process or not process.alive:
            return
        self._world.note(f"triggered {trigger.what}: {process.name}")
        if trigger.what == "crash":
            unit.crash(down_for=trigger.seconds)
        elif trigger.what == "stop":
            unit.stop(trigger.seconds)
        elif trigger.what == "freeze":
            unit.freeze(_LONGEST)
            self._frozen[work] = process
        else:
            self._ask(trigger.what, work)

    def blip(self) -> str:
        """Return a random short error of the disk."""
        return self._world.loop.random.choice(_BLIPS)


def add_triggers(chance: random.Random, add: Callable[..., Any], actors: Actors) -> None:
    """Add triggers to a scenario, with unusual answers and simultaneous updates."""
    span = SPAN * 0.7
    for _ in range(chance.choice((0, 1, 2, 3, 5))):
        where = chance.choice(("request", "request", "callback", "intake"))
        what = chance.choice((*_ENDS, *_ASKED_FOR) if where == "request" else _ENDS)
        seconds = chance.choice((0.1, 1.0, 40.0))
        add(2 + chance.random() * span, "trigger", what, where, chance.randint(0, 3), seconds)
    for _ in range(chance.choice((0, 0, 1, 3, 5))):
        behaviour = chance.choice((*_UNUSUAL, any_behaviour(chance), any_behaviour(chance)))
        add(chance.random() * span, "next_answer", chance.choice(actors.webhooks), behaviour)
    for _ in range(chance.choice((0, 0, 1, 2))):
        at, task = 2 + chance.random() * span, chance.choice(actors.tasks)
        if chance.random() < 0.6:
            add(at - 0.001, "disk", chance.choice(_BLIPS), chance.choice((0.02, 0.2, 1.0)))
        for agent in range(actors.agents):
            kind = chance.choice(("burst", "burst", "shout"))
            for wave in range(chance.choice((1, 1, 1, 4))):  # later waves coincide with settling
                moment = at + wave * 0.007 + chance.random() * 0.003
                add(moment, kind, agent, task, chance.randint(2, 4))
