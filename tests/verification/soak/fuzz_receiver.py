"""Fuzz the receiver: change genuine notifications in many ways, send them, and check the answers.

python -m tests.verification.soak.fuzz_receiver --seed 7 --cases 1000000 [--from 250000]
    [--doors service,app]

Every case is a few requests: a notification of one of the trusted senders (`fuzzing/parties.py`:
every profile, scheme, algorithm and policy), changed in up to three ways (`fuzzing/kinds.py`), sent
by one of the doors (`fuzzing/doors.py`), and then repeated, posted to another path, or followed
by another notification (`COURSES`). The promises about answers are in `fuzzing/oracles.py`, a
function each.

A case depends only on the seed and its number: `--from` continues a run, and `--from N --cases 1`
repeats one case.
"""

from __future__ import annotations

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

from pushkit.progress import advance
from pushkit.terminal.databases import showing_progress
from tests.verification.soak.fuzzing.doors import DOORS, Door, opened
from tests.verification.soak.fuzzing.exchange import Memory, Minted, exchange
from tests.verification.soak.fuzzing.kinds import KINDS, Kind
from tests.verification.soak.fuzzing.making import Draft, Evidence, Request, status_body
from tests.verification.soak.fuzzing.oracles import ORACLES, complaints
from tests.verification.soak.fuzzing.parties import Party, parties
from tests.verification.soak.killing import options

__all__ = ["STORED", "BrokenPromiseError", "Fuzzer", "fuzz"]

STORED = "stored"  # what is asked at the end of a run, of the inboxes


class BrokenPromiseError(AssertionError):
    """An oracle found a broken promise."""

    def __init__(self, oracle: str, complaint: str, *, case: str) -> None:
        super().__init__(f"{oracle}: {complaint}\n{case}")
        self.oracle = oracle


@dataclass
class Fuzzer:
    """Plays cases against receivers."""

    seed: int  # decides all cases
    doors: Mapping[str, Door]  # the receivers, by door
    among: Sequence[Party]  # the senders whose notifications are sent
    oracles: Collection[str]  # the checks of each answer
    memories: dict[str, Memory] = field(default_factory=dict)
    answers: Counter[str] = field(default_factory=Counter)  # how often each answer came
    kinds: Counter[str] = field(default_factory=Counter)  # how often each change was made
    requests: int = 0

    async def play(self, number: int) -> None:
        """Play the case of this number."""
        chance = Random(f"{self.seed} {number}")
        name = sorted(self.doors)[number % len(self.doors)]
        memory = self.memories.setdefault(name, Memory())
        memory.minted.clear()
        # Every kind has its turn; what it fits, what goes with it and what follows is chance.
        first = KINDS[number % len(KINDS)]
        party = chance.choice([one for one in self.among if first.fits(one)] or self.among)
        case = Case(self, self.doors[name], memory, party, f"{number}-{name}")
        fitting = [kind for kind in KINDS if kind.fits(party) and kind is not first]
        more = chance.sample(fitting, chance.choice([0, 0, 0, 1, 2]))
        case.kinds = [*([first] if first.fits(party) else []), *more] if number % 7 else []
        self.kinds.update(kind.name for kind in case.kinds)
        course = chance.choice(list(COURSES))
        case.about = (
            f"{name}, {case.party.name}: {[kind.name for kind in case.kinds]}, {course}\n"
            f"again: --seed {self.seed} --from {number} --cases 1 --doors {','.join(self.doors)}"
        )
        await case.begin(chance)
        await COURSES[course](case, chance)

    async def check_stored(self) -> None:
        """Check that the inboxes contain exactly what was acknowledged."""
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
class Case:
    """One case: a notification, and what follows it."""

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
        """Send a request, and ask the oracles; `expected` is the code for a genuine one."""
        self.door.log()
        self.fuzzer.requests += 1
        # A new address each time: the log limits the refusals of strangers by address.
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
        """What identifies a repetition: an `id`, the `signed` content, or nothing."""
        if self.party.states_ids and self.party.profile in ("standard", "unsigned-secret-only"):
            return "id"
        return "signed" if self.party.signs else ""


# --- what comes after ---------------------------------------------------------------------------


async def nothing_more(case: Case, chance: Random) -> None:
    """Nothing follows."""
    del case, chance


async def the_same_again(case: Case, chance: Random) -> None:
    """A replay: the same bytes come again, several times."""
    for _ in range(chance.randint(1, 2)):
        await case.post(case.request, expected="duplicate" if case.known_by else "accepted")


async def a_retry(case: Case, chance: Random, *, otherwise: str = "accepted") -> None:
    """The sender retries, with a new signature."""
    del chance
    again = copy.copy(case.draft)
    again.parameters = {**again.parameters, "nonce": f"{again.number}-2"}
    again.claims = {**again.claims, "nonce": 2}
    await case.send(again, expected="duplicate" if case.known_by == "id" else otherwise)


async def another_body_under_the_id(case: Case, chance: Random) -> None:
    """The sender signs another body with the same id."""
    del chance
    other = copy.copy(case.draft)
    other.body = status_body(other.task, other.number, "TASK_STATE_COMPLETED")
    await case.send(other, expected="id_conflict" if case.known_by == "id" else "accepted")


async def posted_elsewhere(case: Case, chance: Random) -> None:
    """A notification signed for one webhook is posted to another, with its token or another."""
    other = chance.choice([party for party in parties() if party.path != case.party.path])
    request = copy.deepcopy(case.request)
    request.target = other.path
    if other.token and chance.random() < 0.7:
        for name in ("X-A2A-Token", "X-A2A-Notification-Token"):
            request.put(name, other.token)
    case.genuine = False
    await case.post(request, expected=None)


async def another_task_under_the_token(case: Case, chance: Random) -> None:
    """The same token comes with another task."""
    del chance
    other = Draft(
        party=case.party,
        at=case.draft.at,
        number=f"{case.draft.number}-other",
        task=f"{case.draft.task}-other",
        token=case.draft.token,
        credentials=case.draft.credentials,
    )
    bound = case.party.tasks != "any" and case.code == "accepted"
    await case.send(other, expected="task_not_expected" if bound else "accepted")


async def withdrawn(case: Case, chance: Random) -> None:
    """The client withdraws its token: a retry is a duplicate, a new notification is refused."""
    if not case.memory.minted:
        return
    [minted] = case.memory.minted
    await case.door.receiver.unregister(case.party.name, token=minted.token)
    minted.withdrawn = True
    await a_retry(case, chance, otherwise="task_not_expected")
    case.genuine = False
    new = copy.copy(case.draft)
    new.number = f"{new.number}-new"
    new.put("webhook-id", new.number)
    await case.send(new, expected=None)


Course = Callable[[Case, Random], Awaitable[None]]
COURSES: Mapping[str, Course] = {
    course.__name__.replace("_", " "): course
    for course in (
        *(nothing_more, the_same_again, a_retry, another_body_under_the_id),
        *(posted_elsewhere, another_task_under_the_token, withdrawn),
    )
}


# --- runs ---------------------------------------------------------------------------------------


async def fuzz(
    seed: int,  # decides all cases
    cases: range,  # the numbers of the cases
    *,
    folder: Path,  # where the receivers' databases are
    doors: Sequence[str] = DOORS,  # the doors, used in turn
    among: Collection[str] = (),  # the senders whose notifications are sent; all if empty
    oracles: Collection[str] = (*ORACLES, STORED),  # the checks of each answer
) -> Fuzzer:
    """Play cases; raises `BrokenPromiseError` for the first that breaks a promise."""
    async with _doors(doors, folder) as open_doors:
        named = [party for party in parties() if party.name in among]
        fuzzer = Fuzzer(seed, open_doors, named or parties(), oracles)
        for number in cases:
            await fuzzer.play(number)
            advance(1)
        await fuzzer.check_stored()
    return fuzzer


@contextlib.asynccontextmanager
async def _doors(names: Sequence[str], folder: Path) -> AsyncIterator[dict[str, Door]]:
    async with contextlib.AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(opened(name, folder / name)) for name in names}


def main() -> int:
    """Run from the command line."""
    parser = options(__doc__, cases=100_000, seed=0, doors=",".join(DOORS))
    parser.add_argument("--from", type=int, default=0, dest="first")
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
    with showing_progress():  # its count is a number for --from
        sys.exit(main())
