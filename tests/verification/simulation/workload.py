"""The generators of steps: each draws its steps from `chance` only.

A step of kind `x` calls the method `do_x` of `Clients`, `Attacker` or `play.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tests.verification.simulation.attacks import FORGERIES

__all__ = [
    "GENERATORS",
    "SELDOM_GENERATORS",
    "SPAN",
    "Actors",
    "Step",
    "any_behaviour",
    "losses",
    "mailboxes",
    "staggered",
    "subscriptions",
    "together",
    "updates",
]

SPAN: Final = 120.0  # seconds in which steps happen; deliveries finish after that


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happens."""

    at: float  # the time, in seconds
    kind: str  # the name of its method, without `do_`
    args: tuple[Any, ...] = ()  # the arguments of that method

    def __str__(self) -> str:
        return f"{self.at:9.3f} {self.kind}({', '.join(map(repr, self.args))})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Actors:
    """The number of agents, and the names of all other actors."""

    agents: int
    webhooks: list[str]
    receivers: list[str]
    owners: list[str]
    tasks: list[str]

    @property
    def hosts(self) -> list[str]:
        return [*self.webhooks, *self.receivers]


Generator = Callable[[random.Random, Actors], Iterator[Step]]

_VERSIONS = ("1.0", "1.0", "1.0", "0.3", "0.2", "0.1", "agentvault-0.2")
_HOWS = ("jwt", "jwt", "jwt", "jwt", "signatures", "webhooks", "both", "samples", "unsigned")
_MORE = ("", "", "", "", "basic", "bearer", "apikey", "states", "end", "chunks", "again")
_PACES = ("", "", "gathered", "slowly")
_SHAPES = ("status", "status", "said", "artifact", "chunk", "last", "message", "task", "bare")
_RARE_SHAPES = ("submitted", "input-required", "auth-required", "unknown", "big")
_ENDS = ("completed", "completed", "failed", "canceled", "rejected")
_WAITS = ("7", "0", "30", "+20", "+-3600", "soon", "-5", "1, 2", "1e3", "Fri, 31 Feb 2026 25:61")
_STATUSES = (200, 202, 301, 304, 307, 400, 401, 403, 404, 405, 408, 409, 410, 413, 415, 418, 422)
_WORDS = (
    *("ok", "slow", "late", "hang", "close", "drip", "drip 500", "redirect", "garbage"),
    *("babble", "babble late", "leave", "leave late"),
)


# For hostile owners: how their webhooks answer; the number of owners; the fewest and most
# subscriptions of each, of which twelve are allowed; and how many updates there are at once.
_FLOODS = (
    # No breaker opens for a webhook that answers slowly, but well.
    ("sluggish", 1, 8, 14, (3, 9, 12)),
    ("sluggish", 1, 8, 14, (3, 9, 12)),
    ("hang", 3, 6, 9, (3,)),
    # Enough owners to take all slots but the reserved ones.
    ("sluggish", 6, 3, 5, (3,)),
    # Deliveries that wait for `Retry-After` fill the window in which a claim looks for work.
    ("503 Retry-After 30", 6, 9, 10, (1,)),
    # More owners than slots: each queue could keep its slot for ever.
    ("unhurried", 18, 1, 1, (8,)),
    ("unhurried", 24, 1, 3, (5,)),
)


def _step(at: float, kind: str, *args: Any) -> Step:
    return Step(round(at, 3), kind, args)


def _moment(chance: random.Random) -> float:
    return 2 + chance.random() * (SPAN - 2)


def subscriptions(chance: random.Random, actors: Actors) -> Iterator[Step]:
    """Owners subscribe to tasks."""
    for task in actors.tasks:
        for _ in range(chance.choice((1, 1, 1, 1, 2, 3))):
            yield _subscribe(chance, actors, chance.random() * 2, task)


def _subscribe(chance: random.Random, actors: Actors, at: float, task: str) -> Step:
    agent, owner, host = (
        chance.randrange(actors.agents),
        chance.choice(actors.owners),
        None,
    )
    host = chance.choice(actors.hosts)
    plain = chance.random() < 0.5
    version, how = ("1.0", "jwt") if plain else (chance.choice(_VERSIONS), chance.choice(_HOWS))
    more = "" if plain else chance.choice(_MORE) or chance.choice(_PACES)
    if how == "unsigned" and more == "apikey":
        more = ""
    return _step(at, "subscribe", agent, task, owner, host, version, how, more)


def updates(chance: random.Random, actors: Actors) -> Iterator[Step]:
    """Agents notify updates of tasks until they end, and sometimes after that."""
    for task in actors.tasks:
        at = 2 + chance.random() * SPAN / 2
        for number in range(chance.choice((1, 1, 2, 2, 3, 3, 6))):
            at += chance.expovariate(1.0) * chance.choice((0.01, 1.0, 10.0))
            shapes = _RARE_SHAPES if chance.random() < 0.1 else _SHAPES
            if at < SPAN:
                shape = chance.choice(shapes)
                yield _step(at, "notify", chance.randrange(actors.agents), task, number, shape)
        if chance.random() < 0.6:
            at = min(at + 1, SPAN)
            yield _step(at, "finish", chance.randrange(actors.agents), task, chance.choice(_ENDS))
            if chance.random() < 0.2:
                yield _step(at + 1, "notify", chance.randrange(actors.agents), task, 99, "status")


def together(chance: random.Random, actors: Actors) -> Iterator[Step]:
    """Agents notify one task at the same moment, while other updates of it are in flight."""
    task = actors.tasks[0]
    for number in range(3):
        host = chance.choice(actors.hosts)
        at = chance.random() * 2
        yield _step(at, "subscribe", 0, task, f"owner{number}", host, "1.0", "jwt", "")
    for _ in range(chance.choice((1, 2, 4))):
        at = _moment(chance)
        for agent in range(actors.agents):
            yield _step(at + chance.random() * 0.003, "shout", agent, task, 1)


def staggered(chance: random.Random, actors: Actors) -> Iterator[Step]:
    """An agent freezes in the middle of a queue, whose lease expires.

    Another agent claims the queue, while more is added to it.
    """
    at, task, host = (
        2 + chance.random() * SPAN / 2,
        "staggered",
        chance.choice(actors.webhooks),
    )
    yield _step(chance.random(), "subscribe", 0, task, "owner0", host, "1.0", "jwt", "")
    yield _step(at - 0.1, "behaviour", host, "sluggish")
    for number, after in enumerate((0.0, chance.uniform(0.2, 2.5), chance.uniform(3, 7))):
        yield _step(at + after, "notify", 0, task, number)
    yield _step(at + 7.2, "freeze", "agent0", 90.0)
    yield _step(at + 7.3, "behaviour", host, "slow")
    for number in range(3, chance.randint(4, 8)):
        yield _step(at + 7.4 + number / 10, "notify", 1, task, number)


def rivals(chance: random.Random, actors: Actors) -> Iterator[Step]:
    """Clients set, replace and remove one config at the same moments, between updates."""
    task, owner = chance.choice(actors.tasks), chance.choice(actors.owners)
    for _ in range(chance.choice((1, 2))):
        at = _moment(chance)
        for _ in range(chance.randint(2, 10)):
            agent, host = chance.randrange(actors.agents), chance.choice(actors.hosts)
            rounds = chance.choice((1, 3, 6, 10))
            yield _step(at + chance.random() * 0.01, "rival", agent, task, owner, host, rounds)


def outage(chance: random.Random, actors: Actors) -> Iterator[Step]:
    """A webhook fails, or asks to wait, while an owner has several queues to it."""
    at, agent = 3 + chance.random() * SPAN / 3, chance.randrange(actors.agents)
    host = chance.choice(actors.webhooks)
    how = chance.choice(("500", "tired", "503 Retry-After 30", "429 Retry-After 30"))
    # Enough to open a breaker, or so few that only the wait that was asked for holds them.
    tasks = range(4 if "Retry-After" in how else chance.randint(6, 8))
    for task in tasks:
        config = (f"outage{task}", "patient", host, "1.0", "jwt", "")
        yield _step(chance.random() * 2, "subscribe", agent, *config)
    yield _step(at - 0.5, "behaviour", host, how)
    for number, after in enumerate((0.0, chance.uniform(2, 12), chance.uniform(12, 50))):
        for task in tasks if number else tasks[:-2]:  # later ones have nothing older to wait for
            yield _step(at + after + chance.random() / 10, "notify", agent, f"outage{task}", number)
    yield _step(at + chance.uniform(13, 60), "cancel", agent, "outage0")
    works = chance.choice(("ok", "malformed"))
    yield _step(at + chance.choice((20, 60, 100)), "behaviour", host, works)


def coalescing(chance: random.Random, actors: Actors) -> Iterator[Step]:
    """Newer statuses replace older ones in a queue whose webhook fails."""
    at, host = 5 + chance.random() * SPAN / 2, chance.choice(actors.webhooks)
    yield _step(chance.random(), "subscribe", 0, "crowded", "owner0", host, "1.0", "jwt", "")
    yield _step(at, "behaviour", host, "503")
    for number in range(chance.randint(5, 12)):
        at += chance.expovariate(1.0)
        shape = chance.choice(("said", "chunk")) if number % 4 in {1, 2} else "mute"
        yield _step(at, "notify", chance.randrange(actors.agents), "crowded", number, shape)
    yield _step(at + chance.random() * 10, "behaviour", host, "ok")


def enlisting(chance: random.Random, actors: Actors) -> Iterator[Step]:
    """Agents notify updates within transactions of their own, and commit some of them."""
    for number in range(chance.randint(2, 6)):
        agent, task = chance.randrange(actors.agents), chance.choice(actors.tasks)
        seconds, commits = chance.choice((0.0, 0.05, 0.5)), chance.random() < 0.5
        yield _step(_moment(chance), "enlist", agent, task, number, seconds, commits)


def disputes(chance: random.Random, actors: Actors) -> Iterator[Step]:
    """Ids come again with other bodies: soon, at once, and after they were forgotten."""
    for receiver in actors.receivers:
        config = ("disputed", "owner0", receiver, "1.0", "jwt", "")
        yield _step(chance.random(), "subscribe", 0, *config)
        for number in range(3):
            yield _step(3.0 + number, "notify", 0, "disputed", number)
        at = 10 + chance.random() * SPAN / 2
        yield _step(at, "duel", receiver, chance.choice((1, 4, 8)))
        yield _step(at + 1, "reuse", receiver, chance.randrange(100))
        yield _step(at + 2, "forget", receiver)
        for _ in range(2):
            yield _step(at + 2 + chance.random(), "reuse", receiver, chance.randrange(100))


def mailboxes(chance: random.Random, actors: Actors, readers: list[str]) -> Iterator[Step]:
    """Clients fetch what receivers keep for them; they fail, hang, are killed and cut off."""
    for number, receiver in enumerate(actors.receivers):
        for task in range(chance.choice((1, 1, 2, 3))):
            name = f"kept{number}-{task}"
            yield _step(chance.random(), "subscribe", 0, name, "owner0", receiver, "1.0", "jwt", "")
            at = 2 + chance.random() * SPAN / 2
            for update in range(chance.choice((1, 2, 3, 5))):
                at += chance.expovariate(1.0) * chance.choice((0.01, 1.0, 10.0))
                yield _step(min(at, SPAN), "notify", chance.randrange(actors.agents), name, update)
                if chance.random() < 0.1:  # it is handed out to a client that stands still
                    pause = chance.choice((5.0, 20.0, 25.0, 60.0))
                    yield _step(min(at, SPAN) - 0.01, "freeze", chance.choice(readers), pause)
        at = chance.random() * SPAN / 2
        how = chance.choice(("mixed", "quick", "failing", "hanging", "slow"))
        yield _step(at, "fetching", receiver, how)
        yield _step(
            at + chance.expovariate(0.03), "fetching", receiver, chance.choice(("mixed", "quick"))
        )
    for _ in range(chance.choice((0, 0, 1, 2, 4))):
        at, reader = _moment(chance), chance.choice(readers)
        pause = chance.choice((0.1, 1.0, 20.0))
        kind = chance.choice(("crash", "stop", "freeze", "await", "cut", "cut"))
        if kind in ("crash", "stop"):
            yield _step(at, kind, reader, pause)
        elif kind == "await":
            yield _step(at, kind, reader, chance.randint(0, 60), pause)
        else:  # for less and for longer than a lease
            yield _step(at, kind, reader, chance.choice((3.0, 8.0, 25.0, 90.0)))
    for _ in range(chance.choice((0, 0, 1, 2))):
        what = chance.choice(("crash", "crash", "stop", "freeze", "freeze", "blip"))
        pause, where = chance.choice((0.1, 1.0, 40.0)), chance.choice(("mailbox", "settling"))
        yield _step(_moment(chance) * 0.7, "trigger", what, where, chance.randint(0, 3), pause)


def losses(chance: random.Random, actors: Actors) -> Iterator[Step]:
    """A receiver loses its inbox, or is set back to a copy, and its clients ask for what it lacks.

    They do so at once, or later; the receiver perhaps by itself, too.
    """
    receiver = chance.choice(actors.receivers)
    at = chance.uniform(10, SPAN / 2)
    for task in range(chance.choice((1, 1, 2, 3))):
        owner = chance.choice(actors.owners)
        yield _step(chance.random(), "subscribe", 0, f"lost{task}", owner, receiver, "1.0")
        for update in range(chance.choice((2, 4, 8, 12))):
            agent = chance.randrange(actors.agents)
            yield _step(chance.uniform(2, at), "notify", agent, f"lost{task}", update)
    yield _step(
        chance.choice((1.5, chance.uniform(2, at), chance.uniform(2, at))), "backup", receiver
    )
    if chance.random() < 0.3:
        yield _step(0.0, "recover", receiver, "itself")
    for _ in range(chance.choice((1, 1, 1, 2))):
        for _ in range(chance.choice((0, 1, 2))):  # accepted just before, and maybe not settled
            agent, number = chance.randrange(actors.agents), chance.randrange(100, 200)
            yield _step(at - chance.random() * 0.06, "notify", agent, "lost0", number)
        if chance.random() < 0.4:
            yield _step(at / 2, "trigger", "lose", "callback", chance.choice((0, 1, 3)), 0.0)
        else:
            yield _step(at, "lose", receiver, chance.choice((0.1, 1.0, 20.0)))
        for _ in range(chance.choice((0, 1, 1, 1, 2))):
            after = chance.choice((0.0, 0.005, 0.1, 2.0, chance.uniform(2, 40)))
            how = chance.choice(("operator", "operator", "client", "client", "since"))
            yield _step(at + after, "recover", receiver, how)
        at += chance.expovariate(0.05)


def renewals(chance: random.Random, actors: Actors) -> Iterator[Step]:
    """Clients replace tokens that they handed out, before and after their first notification."""
    for receiver in actors.receivers:
        for number in range(2):
            yield _step(_moment(chance), "renew", receiver, number, chance.random() < 0.5)


def snapshots(chance: random.Random, actors: Actors) -> Iterator[Step]:
    """Owners subscribe to tasks that change at the same moments, and ask for a snapshot."""
    for number in range(chance.choice((1, 1, 2, 3))):
        at, task = _moment(chance), f"late{number}"
        width = chance.choice((0.005, 0.02, 0.1, 1.0))
        for change in range(chance.randint(1, 8)):
            moment = max(0.0, at + chance.uniform(-width, width))
            yield _step(moment, "notify", chance.randrange(actors.agents), task, change)
        for owner in range(chance.choice((1, 1, 2))):
            agent, host = chance.randrange(actors.agents), chance.choice(actors.hosts)
            yield _step(at + chance.random() * width, "join", agent, task, f"owner{owner}", host)


def changes(chance: random.Random, actors: Actors) -> Iterator[Step]:
    """Owners change, pause, disable and remove subscriptions."""
    for _ in range(chance.randint(1, 6)):
        at, agent = _moment(chance), chance.randrange(actors.agents)
        task, owner = chance.choice(actors.tasks), chance.choice(actors.owners)
        kind = chance.choice(("subscribe", "subscribe", "pause", "disable", "unsubscribe", "test"))
        if kind == "subscribe":
            yield _subscribe(chance, actors, at, task)
            continue
        yield _step(at, kind, agent, task, owner)
        if kind == "pause":
            yield _step(at + chance.random() * 20, "resume", agent, task, owner)
        elif kind == "disable":
            resend = chance.random() < 0.5
            yield _step(at + chance.random() * 20, "enable", agent, task, owner, resend)


def operators(chance: random.Random, actors: Actors) -> Iterator[Step]:
    """Operators redrive, resend, retry, cancel, purge and erase."""
    kinds = ("redrive", "redrive", "resend", "retry_now", "retry_now", "cancel", "purge", "erase")
    for _ in range(chance.randint(1, 4)):
        at, agent, kind = (
            _moment(chance),
            chance.randrange(actors.agents),
            chance.choice(kinds),
        )
        if kind in ("cancel", "erase"):
            yield _step(at, kind, agent, chance.choice(actors.tasks))
        elif kind == "purge":
            yield _step(at, kind, agent, chance.choice((1.0, 30.0)))
        else:
            yield _step(at, kind, agent)


def answers(chance: random.Random, actors: Actors) -> Iterator[Step]:
    """Webhooks misbehave, and most of them recover."""
    for _ in range(chance.randint(1, 5)):
        at, host = chance.random() * SPAN / 2, chance.choice(actors.webhooks)
        yield _step(at, "behaviour", host, any_behaviour(chance))
        if chance.random() < 0.6:
            yield _step(at + chance.expovariate(0.05), "behaviour", host, "ok")


def any_behaviour(chance: random.Random) -> str:
    kind = chance.random()
    if kind < 0.4:
        return chance.choice(_WORDS)
    if kind < 0.7:
        return f"{chance.choice((429, 503, 503, 500))} Retry-After {chance.choice(_WAITS)}"
    return str(chance.choice((*_STATUSES, 425, 451, 500, 502, 504, 599)))


def names(chance: random.Random, actors: Actors) -> Iterator[Step]:
    """Host names resolve to nothing, to forbidden addresses, or to changing ones."""
    for _ in range(chance.randint(1, 3)):
        at, host = chance.random() * SPAN / 2, chance.choice(actors.hosts)
        how = chance.choice(("none", "private", "alone", "link-local", "loopback", "rebinding"))
        yield _step(at, "names", host, how)
        yield _step(at + chance.expovariate(0.05), "names", host, "back")


def keys(chance: random.Random, actors: Actors) -> Iterator[Step]:
    """Signing keys are rotated or revoked, and receivers change whom they trust."""
    for _ in range(chance.randint(1, 4)):
        at = _moment(chance)
        if actors.receivers and chance.random() < 0.4:
            receiver = chance.choice(actors.receivers)
            yield _step(at, "reload", receiver, chance.choice(("all", "fewer", "other")))
            yield _step(at + chance.random() * 30, "reload", receiver, "all")
        else:
            yield _step(at, "rotate", 0, chance.choice(("planned", "at once", "revoke")))


def callbacks(chance: random.Random, actors: Actors) -> Iterator[Step]:
    """Callbacks fail, are slow, or hang."""
    for receiver in actors.receivers:
        for _ in range(chance.randint(1, 2)):
            how = chance.choice(("failing", "failing", "slow", "hanging", "stubborn"))
            at = chance.random() * SPAN / 2
            yield _step(at, "callbacks", receiver, how)
            yield _step(at + chance.expovariate(0.05), "callbacks", receiver, "quick")


def attacks(chance: random.Random, actors: Actors) -> Iterator[Step]:
    """An attacker sends replays, altered notifications and forgeries to receivers."""
    for receiver in actors.receivers:
        for _ in range(chance.randint(3, 8)):
            at = 10 + chance.random() * SPAN
            kind = chance.choice(("replay", "alter", "forge", "forge", "reuse"))
            what = chance.choice(list(FORGERIES)) if kind == "forge" else chance.randrange(100)
            for _ in range(chance.choice((1, 1, 1, 3))):
                yield _step(at, kind, receiver, what)


def hostile(chance: random.Random, actors: Actors) -> Iterator[Step]:
    """Hostile owners use all that they can get; the last two webhooks are theirs.

    No step of this generator is a fault: other owners must not be delayed.
    """
    evils = actors.webhooks[-2:]
    behaviour, owners, fewest, most, updates = chance.choice(_FLOODS)
    for evil in evils:
        yield _step(0.0, "behaviour", evil, behaviour)
    for owner in range(owners):
        for number in range(chance.randint(fewest, most)):
            task, evil = f"evil{number % 2}", evils[(owner + number) % 2]
            at, whose, more = chance.random(), f"mallory{owner}", f"copy{number}"
            yield _step(at, "subscribe", 0, task, whose, evil, "1.0", "jwt", more)
    for task in ("evil0", "evil1"):
        yield _step(2.0, "burst", 0, task, chance.choice(updates))
        yield _step(4.0, "finish", 0, task, "completed")
    for receiver in actors.receivers:
        yield _step(2 + chance.random() * SPAN / 4, "flood", receiver, chance.choice((10, 25, 40)))


def leaving(chance: random.Random, actors: Actors) -> Iterator[Step]:
    """A hostile owner repeatedly fills all slots, and removes its subscriptions during attempts.

    The last two webhooks are its own. No step of this generator is a fault.
    """
    evils, verb = (
        actors.webhooks[-2:],
        chance.choice(("unsubscribe", "unsubscribe", "disable")),
    )
    for evil in evils:
        yield _step(0.0, "behaviour", evil, "hang")
    for wave in range(6):
        at = 1.0 + wave * chance.uniform(6, 9)
        for number in range(chance.randint(6, 12)):
            task, evil = f"evil{number % 2}", evils[number // 2 % 2]
            name = f"copy{number}" if verb == "disable" else f"copy{wave}-{number}"
            yield _step(at, "subscribe", 0, task, "mallory0", evil, "1.0", "jwt", name)
        for task in ("evil0", "evil1"):
            yield _step(at, "enable", 0, task, "mallory0", False)
            yield _step(at + 1, "burst", 0, task, 1)
            yield _step(at + 5, verb, 0, task, "mallory0")


def endless(chance: random.Random, actors: Actors) -> Iterator[Step]:
    """As many hostile owners as the first agent has slots always have more to send.

    The last two webhooks are theirs. No step of this generator is a fault.
    """
    evils = actors.webhooks[-2:]
    for evil in evils:
        yield _step(0.0, "behaviour", evil, "leisurely")
    for owner in range(18):
        task, evil = f"evil{owner % 2}", evils[owner // 2 % 2]
        yield _step(
            chance.random(), "subscribe", 0, task, f"mallory{owner}", evil, "1.0", "jwt", ""
        )
    for wave in range(4):
        for task in ("evil0", "evil1"):
            yield _step(2.0 + wave * 15, "burst", 0, task, 7)


GENERATORS: Final[dict[str, Generator]] = {
    "changes": changes,
    "operators": operators,
    "answers": answers,
    "names": names,
    "keys": keys,
    "callbacks": callbacks,
    "attacks": attacks,
    "hostile": hostile,
    "leaving": leaving,
    "endless": endless,
}
# Generators used besides, each in so many of a hundred scenarios without hostile owners. Each draws
# from a stream of its own, so that scenarios without it stay as they are.
SELDOM_GENERATORS: Final[dict[str, tuple[Generator, int]]] = {
    "concurrent": (rivals, 15),
    "outage": (outage, 20),
    "coalescing": (coalescing, 6),
    "enlisting": (enlisting, 30),  # on PostgreSQL only
    "disputes": (disputes, 15),
    "renewals": (renewals, 15),
    "snapshots": (snapshots, 20),
}
