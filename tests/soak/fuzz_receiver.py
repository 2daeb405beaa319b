"""Change genuine notifications in every way, send them in, and hold the answers to the promises.

python tests/soak/fuzz_receiver.py --seed 7 --cases 1000000 [--from 250000] [--doors service,app]

Every case is a story of a few requests: a notification of one of the trusted senders
(`fuzzing/parties.py`: every profile, scheme, algorithm and policy), changed in none to three ways
(`fuzzing/kinds.py`), sent in by one of the doors (`fuzzing/doors.py`), and then repeated, posted
elsewhere, or followed by another (`COURSES`). What must hold of every answer stands in
`fuzzing/oracles.py`, one function a promise.

A case depends on the seed and its own number alone: a run goes on with `--from`, and
`--from N --cases 1` is that case again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from pushkit.progress import advance  # noqa: E402  # also run as a script
from pushkit.terminal.progress import showing_progress  # noqa: E402
from tests.soak.fuzzing.doors import DOORS, Door, opened  # noqa: E402
from tests.soak.fuzzing.exchange import Memory, Minted, exchange  # noqa: E402
from tests.soak.fuzzing.kinds import KINDS, Kind  # noqa: E402
from tests.soak.fuzzing.making import Draft, Evidence, Request, status_body  # noqa: E402
from tests.soak.fuzzing.oracles import ORACLES, complaints  # noqa: E402
from tests.soak.fuzzing.parties import Party, parties  # noqa: E402

__all__ = ["STORED", "BrokenPromiseError", "Fuzzer", "fuzz"]

STORED = "stored"  # what is asked at the end of a run, of the inboxes


class BrokenPromiseError(AssertionError):
    """An oracle complains."""

    def __init__(self, oracle: str, complaint: str, *, case: str) -> None:
        super().__init__(f"{oracle}: {complaint}\n{case}")
        self.oracle = oracle


@dataclass
class Fuzzer:
    """Tells stories to a receiver.

    Attributes:
        seed: Of all chance.
        doors: Where they are told.
        among: Whose notifications.
        oracles: Who is asked of each answer.
        answers: How often each answer came.
        kinds: How often each change was made.
    """

    seed: int
    doors: Mapping[str, Door]
    among: Sequence[Party]
    oracles: Collection[str]
    memories: dict[str, Memory] = field(default_factory=dict)
    answers: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    requests: int = 0

    async def tell(self, number: int) -> None:
        """Tell the story of this number."""
        chance = Random(f"{self.seed} {number}")
        name = sorted(self.doors)[number % len(self.doors)]
        memory = self.memories.setdefault(name, Memory())
        memory.minted.clear()
        # Every kind has its turn; what it fits, what goes with it and what follows is chance.
        first = KINDS[number % len(KINDS)]
        party = chance.choice([one for one in self.among if first.fits(one)] or self.among)
        story = Story(self, self.doors[name], memory, party, f"{number}-{name}")
        fitting = [kind for kind in KINDS if kind.fits(party) and kind is not first]
        more = chance.sample(fitting, chance.choice([0, 0, 0, 1, 2]))
        story.kinds = [*([first] if first.fits(party) else []), *more] if number % 7 else []
        self.kinds.update(kind.name for kind in story.kinds)
        course = chance.choice(list(COURSES))
        story.about = (
            f"{name}, {story.party.name}: {[kind.name for kind in story.kinds]}, {course}\n"
            f"again: --seed {self.seed} --from {number} --cases 1 --doors {','.join(self.doors)}"
        )
        await story.begin(chance)
        await COURSES[course](story, chance)

    async def check_stored(self) -> None:
        """Hold the inboxes against what was acknowledged: neither less nor more is in them."""
        if STORED not in self.oracles:
            return
        for name, door in self.doors.items():
            memory = self.memories.get(name, Memory())
            stored = sum((await door.receiver.inbox.stats()).statuses.values())
            acknowledged = len(memory.accepted) + memory.anonymous
            if stored != acknowledged:
                complaint = f"{acknowledged} were acknowledged, {stored} are in the inbox"
                raise BrokenPromiseError(STORED, complaint, case=name)


@dataclass
class Story:
    """A notification, and what comes of it."""

    fuzzer: Fuzzer
    door: Door
    memory: Memory
    party: Party
    number: str
    kinds: Sequence[Kind] = ()
    about: str = ""
    made: list[Evidence] = field(default_factory=list)
    genuine: bool = True
    draft: Draft = field(init=False)
    request: Request = field(init=False)
    code: str = ""

    async def begin(self, chance: Random) -> None:
        """Make the notification, change it, and send it."""
        token, credentials = self.party.token, next(iter(self.party.credentials), "")
        task = f"task-{self.number}"
        if not token and not credentials:
            token, credentials = await self._mint(task)
        self.draft = Draft(
            party=self.party,
            at=int(time.time()),
            number=f"id-{self.number}",
            task=task,
            token=token,
            credentials=credentials,
        )
        for kind in self.kinds:
            kind.change(self.draft, chance)
        self.genuine = all(kind.harmless for kind in self.kinds)
        self.request = await self.send(self.draft, expected="accepted")

    async def send(self, draft: Draft, *, expected: str | None) -> Request:
        """Sign and send a notification; returns the request."""
        request, made = draft.finished()
        self.made += made
        await self.post(request, expected=expected)
        return request

    async def post(self, request: Request, *, expected: str | None) -> None:
        """Send a request, and ask the oracles; a genuine one is expected to end in this code."""
        self.door.log()
        self.fuzzer.requests += 1
        # Of strangers the log says once in an interval, for each address, what they were refused.
        peer = IPv6Address((0x20010DB8 << 96) + (self.fuzzer.requests << 64) + 1)
        request.put("X-Forwarded-For", str(peer))
        answer = await self.door.send(request)
        self.code = answer.code
        self.fuzzer.answers[f"{answer.status} {answer.code}"] += 1
        seen = exchange(
            request,
            answer,
            self.made,
            log=self.door.log(),
            memory=self.memory,
            expected=expected if self.genuine else None,
        )
        for oracle, complaint in complaints(seen, self.fuzzer.oracles):
            raise BrokenPromiseError(oracle, complaint, case=self.about)

    async def _mint(self, task: str) -> tuple[str, str]:
        expectation = await self.door.receiver.expect(
            self.party.name,
            task_id=task if self.party.tasks == "registered" else None,
            authentication=self.party.minted,
        )
        config = expectation.config
        assert config.token is not None
        given = config.authentication
        credentials = f"{given.schemes[0]} {given.credentials}" if given else ""
        known = task if self.party.tasks == "registered" else None
        self.memory.minted.append(
            Minted(party=self.party.name, token=config.token, credentials=credentials, task=known)
        )
        return config.token, credentials

    @property
    def known_by(self) -> str:
        """What tells a repetition: an `id`, what was `signed`, or nothing."""
        if self.party.states_ids and self.party.profile in ("standard", "unsigned-secret-only"):
            return "id"
        return "signed" if self.party.signs else ""


# --- what comes after ---------------------------------------------------------------------------


async def nothing_more(story: Story, chance: Random) -> None:
    """The story ends."""
    del story, chance


async def the_same_again(story: Story, chance: Random) -> None:
    """The same bytes come again, as often as somebody likes who has seen them."""
    for _ in range(chance.randint(1, 2)):
        await story.post(story.request, expected="duplicate" if story.known_by else "accepted")


async def a_retry(story: Story, chance: Random, *, otherwise: str = "accepted") -> None:
    """The sender tries again: it signs anew."""
    del chance
    again = copy.copy(story.draft)
    again.parameters = {**again.parameters, "nonce": f"{again.number}-2"}
    again.claims = {**again.claims, "nonce": 2}
    await story.send(again, expected="duplicate" if story.known_by == "id" else otherwise)


async def another_body_under_the_id(story: Story, chance: Random) -> None:
    """The sender signs another body with the same id."""
    del chance
    other = copy.copy(story.draft)
    other.body = status_body(other.task, other.number, "TASK_STATE_COMPLETED")
    await story.send(other, expected="id_conflict" if story.known_by == "id" else "accepted")


async def posted_elsewhere(story: Story, chance: Random) -> None:
    """What was signed for one webhook is posted to another, with its token or another one."""
    other = chance.choice([party for party in parties() if party.path != story.party.path])
    request = copy.deepcopy(story.request)
    request.target = other.path
    if other.token and chance.random() < 0.7:
        for name in ("X-A2A-Token", "X-A2A-Notification-Token"):
            request.put(name, other.token)
    story.genuine = False
    await story.post(request, expected=None)


async def another_task_under_the_token(story: Story, chance: Random) -> None:
    """The same token comes with another task."""
    del chance
    other = Draft(
        party=story.party,
        at=story.draft.at,
        number=f"{story.draft.number}-other",
        task=f"{story.draft.task}-other",
        token=story.draft.token,
        credentials=story.draft.credentials,
    )
    bound = story.party.tasks != "any" and story.code == "accepted"
    await story.send(other, expected="task_not_expected" if bound else "accepted")


async def withdrawn(story: Story, chance: Random) -> None:
    """The client withdraws its token: a retry of what was accepted is known, nothing new is."""
    if not story.memory.minted:
        return
    [minted] = story.memory.minted
    await story.door.receiver.expect_no_longer(story.party.name, token=minted.token)
    minted.withdrawn = True
    await a_retry(story, chance, otherwise="task_not_expected")
    story.genuine = False
    new = copy.copy(story.draft)
    new.number = f"{new.number}-new"
    new.put("webhook-id", new.number)
    await story.send(new, expected=None)


Course = Callable[[Story, Random], Awaitable[None]]
COURSES: Mapping[str, Course] = {
    course.__name__.replace("_", " "): course
    for course in (
        *(nothing_more, the_same_again, a_retry, another_body_under_the_id),
        *(posted_elsewhere, another_task_under_the_token, withdrawn),
    )
}


# --- runs ---------------------------------------------------------------------------------------


async def fuzz(
    seed: int,
    cases: range,
    *,
    folder: Path,
    doors: Sequence[str] = DOORS,
    among: Collection[str] = (),
    oracles: Collection[str] = (*ORACLES, STORED),
) -> Fuzzer:
    """Tell stories; raises `BrokenPromiseError` with the first that breaks a promise.

    Args:
        seed: Of all chance.
        cases: The numbers of the stories.
        folder: Where the receivers' databases are.
        doors: Where they are told, in turn.
        among: Whose notifications; everybody's if empty.
        oracles: Who is asked.
    """
    async with _doors(doors, folder) as open_doors:
        named = [party for party in parties() if party.name in among]
        fuzzer = Fuzzer(seed, open_doors, named or parties(), oracles)
        for number in cases:
            await fuzzer.tell(number)
            advance(1)
        await fuzzer.check_stored()
    return fuzzer


@contextlib.asynccontextmanager
async def _doors(names: Sequence[str], folder: Path) -> AsyncIterator[dict[str, Door]]:
    async with contextlib.AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(opened(name, folder / name)) for name in names}


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--doors", default=",".join(DOORS))
    given = parser.parse_args()
    numbers = range(given.first, given.first + given.cases)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pushkit-fuzz-") as folder:
        doing = fuzz(given.seed, numbers, folder=Path(folder), doors=given.doors.split(","))
        try:
            fuzzer = asyncio.run(doing)
        except BrokenPromiseError as exc:
            sys.stdout.write(f"A PROMISE WAS BROKEN: {exc}\n")
            return 1
    for answer, count in fuzzer.answers.most_common():
        sys.stdout.write(f"{count:9} {answer}\n")
    seconds = time.monotonic() - started
    sys.stdout.write(f"{given.cases} cases in {seconds:.0f} s (seed {given.seed})\n")
    return 0


if __name__ == "__main__":
    with showing_progress():  # --from goes on behind as many
        sys.exit(main())
