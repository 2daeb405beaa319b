"""Attack a receiver and a sender with hostile peers, and measure what that costs them.

python -m tests.verification.soak.peers --seed 7 --rounds 100 [--seconds 6] [--origins 30]
    [--only NAME …]

Two `receiver serve`, one with TLS, and a process with a `PushSender` run through all rounds. In a
round, hostile peers (`hostile_peers.py`), which a seed draws, act at all three, while genuine
notifications are posted to both receivers, and the sender delivers genuine updates to a webhook.
Then the hostile peers leave. The promises:

- every genuine notification is answered 2xx and called back once, every update arrives in order,
- memory and open files stay under a bound in each round, and return to what they were before it,
- nothing raises.

The slowest answer and CPU are reported only, because they depend on the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from random import Random

import trustme
from aiohttp import web
from tenacity import stop_after_attempt

from pushkit import (
    BreakerPolicy,
    DeliveryState,
    KeyRing,
    PushSender,
    RetryPolicy,
    SenderOptions,
    StatusUpdate,
    TaskState,
    TaskStatus,
    wait_schedule,
)
from pushkit.clock import utc_now
from pushkit.keys.jwk import signing_key_to_pem
from pushkit.net import connection
from pushkit.progress import advance
from pushkit.terminal.databases import showing_progress
from receiver.testing import SigningAgent
from tests.eventually import DEADLINE, eventually
from tests.ports import free_port
from tests.served import answering, served
from tests.verification.soak.hostile_peers import (
    AT_RECEIVER,
    AT_SENDER,
    RAW,
    Attack,
    attack,
    hostile_agent,
    written,
)
from tests.verification.soak.killing import options

__all__ = ["Soak"]

ROOT = Path(__file__).resolve().parents[3]
CONNECTIONS = 64  # that a receiver allows, and that the sender opens
# While peers attack, more than before this round; afterwards, more than before the first: SQLite's
# cache takes 48 MiB, and large bodies fragment the rest, although the allocator returns all that it
# can. Seen in 140 rounds of five seeds: 85 and 121.
RETURNING = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}
PEAK, LEFT = 128.0, 192.0  # MiB
FILES, FILES_LEFT = CONNECTIONS + 40, 8
TIMEOUT = 2  # seconds, of requests
_CALLED = """import pathlib
async def note(notification):
    with pathlib.Path(__file__).with_suffix(".txt").open("a") as file:
        file.write(notification.delivery_id + "\\n")
"""


@dataclass
class Subject:
    """A process under attack, the memory, files and CPU that it uses, and its genuine work."""

    name: str
    process: asyncio.subprocess.Process
    log: Path
    first_memory: float = 0.0  # MiB
    memory_before: float = 0.0
    first_files: int = 0
    files_seen: list[int] = field(default_factory=list)
    usual_files: float = 0.0
    cpu_before: float = 0.0
    done: int = 0
    slowest: float = 0.0

    @property
    def _proc(self) -> Path:
        return Path(f"/proc/{self.process.pid}")

    def memory(self, name: str = "VmRSS") -> float:
        """Return the resident memory, or its peak `VmHWM`, in MiB."""
        status = (self._proc / "status").read_text()
        return int(status.partition(f"{name}:")[2].split()[0]) / 1024

    def files(self) -> int:
        return len(os.listdir(self._proc / "fd"))  # noqa: PTH208  # as fast as it goes

    def cpu(self) -> float:
        """Return the seconds that it has used."""
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def begin(self) -> None:
        """Begin to count anew."""
        (self._proc / "clear_refs").write_text("5")  # the peak of the memory
        self.memory_before = self.memory()
        self.files_seen, self.cpu_before = [], self.cpu()
        self.done, self.slowest = 0, 0.0

    def took(self, seconds: float) -> None:
        self.done += 1
        self.slowest = max(self.slowest, seconds)


class Soak:
    """The processes, and the rounds."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        cut: str = "",  # code that each process runs first, to take a limit away
        # The behaviours to draw from, at least one of each side; all if empty.
        only: Collection[str] = (),
        origins: int = 30,  # how many hostile webhooks there are
        patience: float = DEADLINE,  # for how long the return to quiet may take, in seconds
    ) -> None:
        self._folder = folder
        self._seed = seed
        self._cut = cut
        self._only = only
        self._patience = patience
        self._webhooks = [free_port() for _ in range(origins)]
        self._ports = (free_port(), free_port())
        self._good = SigningAgent(webhook_url="https://client.example.com/a2a/push")
        self._bad = hostile_agent()
        self._roots = folder / "roots.pem"
        self._certificate = folder / "server.pem"
        self._answered: dict[str, set[str]] = {"plain": set(), "tls": set()}
        self._arrived: list[int] = []
        self._subjects: dict[str, Subject] = {}
        self._accepted = 0
        self._is_over = False
        self.complaints: list[str] = []

    async def run(self, rounds: int, seconds: float) -> list[str]:
        """Play the rounds; return the broken promises."""
        self._write_files()
        async with contextlib.AsyncExitStack() as stack:
            spawn = get_context("spawn")
            pool = ProcessPoolExecutor(1, mp_context=spawn, initializer=hostile_agent)
            stack.enter_context(pool).submit(int)  # it imports before the first round
            webhook = await stack.enter_async_context(served(answering(self._arrive)))
            for side in self._answered:
                code = "from receiver.cli import main; main()"
                await self._start(stack, side, code, "serve", "--config", f"{side}.toml")
            code = "import asyncio, tests.verification.soak.peers as p; asyncio.run(p.deliver())"
            await self._start(stack, "sender", code, webhook, str(self._roots))
            work = [asyncio.create_task(self._post(side)) for side in self._answered]
            watching = asyncio.create_task(self._watch())
            subjects = self._subjects.values()
            await eventually(lambda: all(each.done > 50 for each in subjects))
            for each in subjects:
                each.first_memory, each.first_files = each.memory(), each.files()
            for number in range(rounds):
                await self._round(pool, number, seconds)
                advance(1)
            self._is_over = True
            await asyncio.gather(*work)
            watching.cancel()
            await self._finish()
        return self.complaints

    # --- processes -------------------------------------------------------------------------------

    def _write_files(self) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self._roots)
        leaf = authority.issue_cert("127.0.0.1")
        leaf.private_key_and_cert_chain_pem.write_to_path(self._certificate)
        self._certificate.chmod(0o600)
        for name, agent in (("good", self._good), ("bad", self._bad)):
            (self._folder / f"{name}.json").write_text(json.dumps(agent.jwks()))
        for side, port in zip(("plain", "tls"), self._ports, strict=True):
            (self._folder / f"called_{side}.py").write_text(_CALLED)
            (self._folder / f"called_{side}.txt").touch()
            (self._folder / f"{side}.toml").write_text(self._settings(side, port))

    def _settings(self, side: str, port: int) -> str:
        senders = [
            f'[[senders]]\nname = "{name}"\nissuer = "{agent.issuer}"\njwks_file = "{name}.json"\n'
            f'tokens = ["{agent.token}"]\ntasks = "any"\n'
            for name, agent in (("good", self._good), ("bad", self._bad))
        ]
        pem = self._certificate.name
        tls = f'[tls]\ncertificate = "{pem}"\nkey = "{pem}"\n' if side == "tls" else ""
        return (
            f'url = "https://client.example.com"\nlisten = "127.0.0.1:{port}"\n'
            f'database = "{side}.db"\nmax_connections = {CONNECTIONS}\n'
            f"max_connections_per_peer = {CONNECTIONS // 4}\nmax_body_bytes = 262144\n"
            f"request_timeout_seconds = {TIMEOUT}\nkeep_alive_seconds = 4\n{tls}{''.join(senders)}"
            f'[[callbacks]]\ncall = "called_{side}:note"\nsenders = ["good"]\n'
        )

    async def _start(
        self, stack: contextlib.AsyncExitStack, name: str, code: str, *arguments: str
    ) -> None:
        log = self._folder / f"{name}.log"
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", f"{self._cut}\n{code}", *arguments),
                cwd=self._folder,
                env={**os.environ, **RETURNING, "PYTHONPATH": str(ROOT)},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE if name == "sender" else file,
                stderr=file,
            )
        self._subjects[name] = Subject(name, process, log)
        stack.push_async_callback(_end, process)

    # --- genuine work ----------------------------------------------------------------------------

    async def _post(self, side: str) -> None:
        """Post notifications to a receiver; repeat each until it is answered, as a sender does."""
        subject, port = self._subjects[side], self._ports[side == "tls"]
        tls = ssl.create_default_context(cafile=str(self._roots)) if side == "tls" else None
        writer: asyncio.StreamWriter | None = None
        number = 0
        while not self._is_over:
            number += 1
            draft, begun, head = self._good.draft("good", number), time.monotonic(), b""
            while not head:
                try:
                    if writer is None:
                        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
                    writer.write(written(draft))
                    head = await reader.readuntil(b"\r\n\r\n")
                except (OSError, EOFError):  # a new connection closes idle ones
                    if time.monotonic() > begun + DEADLINE:
                        raise
                    if writer is not None:
                        writer.transport.abort()
                        writer = None
                    await asyncio.sleep(0.02)
            if head[9:12] not in {b"202", b"200"}:
                self.complaints.append(f"{side}: a genuine notification was answered {head!r}")
            self._answered[side].add(draft.delivery_id)
            subject.took(time.monotonic() - begun)
            await asyncio.sleep(0.02)
        if writer is not None:
            writer.transport.abort()

    async def _arrive(self, request: web.Request) -> web.Response:
        """Be the webhook of the sender's genuine updates."""
        update = (await request.json())["statusUpdate"]
        number, at = update["contextId"].split()
        self._arrived.append(int(number))
        self._subjects["sender"].took(time.time() - float(at))
        return web.Response(status=202)

    # --- rounds ----------------------------------------------------------------------------------

    async def _round(self, pool: ProcessPoolExecutor, number: int, seconds: float) -> None:
        for subject in self._subjects.values():
            subject.begin()
        plan = self._plan(number, seconds)
        attacking = asyncio.get_running_loop().run_in_executor(pool, attack, plan)
        hooks = plan.webhooks.items()
        urls = [f"http{'s' * tls}://127.0.0.1:{port}/" for port, (tls, _) in hooks]
        await self._ask_sender(f"{seconds} {' '.join(urls)}")
        sent = await attacking
        for subject in self._subjects.values():  # a burst is accepted before it is refused
            subject.usual_files = statistics.median(subject.files_seen)
        await self._until(lambda: all(map(_is_quiet, self._subjects.values())))
        drawn = (*plan.clients, [name for _, name in plan.webhooks.values()])
        for subject, names in zip(self._subjects.values(), drawn, strict=True):
            self._judge(subject, number, sent[subject.name], names)

    def _plan(self, number: int, seconds: float) -> Attack:
        """Draw the hostile peers of a round."""
        chance, only = Random(f"{self._seed} {number}"), self._only

        def drawn(names: Iterable[str]) -> list[str]:
            return chance.choices([each for each in names if not only or each in only], k=4)

        clients = [
            [name for name in drawn(names) for _ in range(chance.choice((4, 16, 48)))]
            for names in (AT_RECEIVER, [*AT_RECEIVER, *RAW])
        ]
        plain, encrypted = drawn(AT_SENDER), drawn([*AT_SENDER, *RAW])
        return Attack(
            seed=f"{self._seed} {number}",
            seconds=seconds,
            ports=self._ports,
            pem=signing_key_to_pem(self._bad.key),
            clients=(clients[0], clients[1]),
            webhooks={
                port: (tls, chance.choice(encrypted if tls else plain))
                for port in self._webhooks
                for tls in (chance.random() < 0.5,)
            },
            certificate=self._certificate,
        )

    def _judge(self, subject: Subject, number: int, sent: int, names: Iterable[str]) -> None:
        memory, peak, files = subject.memory(), subject.memory("VmHWM"), subject.files()
        broken = {
            "memory while attacked": peak > subject.memory_before + PEAK,
            "open files while attacked": subject.usual_files > subject.first_files + FILES,
            "memory or files afterwards": not _is_quiet(subject),
            "no genuine work": not subject.done,
        }
        cost = 1e6 * (subject.cpu() - subject.cpu_before) / max(sent, 1)
        line = (
            f"{number:4} {subject.name:6} {sent / 1e6:7.1f} MB {cost:6.2f} µs/B"
            f" {subject.memory_before:4.0f} {peak:4.0f} {memory:4.0f} MiB"
            f" {subject.first_files:3} {subject.usual_files:3.0f} {max(subject.files_seen):3}"
            f" {files:3} files"
            f" {subject.done:4} {subject.slowest:5.2f} s  {' '.join(sorted(set(names)))}"
        )
        print(line, flush=True)
        self.complaints += [
            f"{what} of {subject.name}: {line}" for what, is_broken in broken.items() if is_broken
        ]

    async def _watch(self) -> None:
        while True:
            for subject in self._subjects.values():
                subject.files_seen.append(subject.files())
            await asyncio.sleep(0.02)

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Wait for what the processes bring about, or until patience ends."""
        with contextlib.suppress(TimeoutError):
            await eventually(holds, within=self._patience)

    async def _ask_sender(self, line: str) -> None:
        """Let the sender notify, and note how many genuine updates it has accepted so far."""
        process = self._subjects["sender"].process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{line}\n".encode())
        self._accepted = int(await process.stdout.readline())

    async def _finish(self) -> None:
        await self._ask_sender("")
        if self._arrived != list(range(1, self._accepted + 1)):
            seen = len(self._arrived), len(set(self._arrived))
            self.complaints.append(f"sender: {self._accepted} accepted, {seen} arrived, or others")
        for side, answered in self._answered.items():
            called = self._folder / f"called_{side}.txt"
            await self._until(lambda: answered <= set(called.read_text().split()))  # noqa: B023
            if sorted(answered) != sorted(called.read_text().split()):
                self.complaints.append(f"{side}: not called back once each")
        for subject in self._subjects.values():
            log = subject.log.read_text(errors="replace")
            if "Traceback" in log or "never" in log:
                self.complaints.append(f"{subject.name}: {log[-3000:]}")


def _is_quiet(subject: Subject) -> bool:
    """Return whether the hostile peers have left no trace."""
    is_small = subject.memory() <= subject.first_memory + LEFT
    return is_small and subject.files() <= subject.first_files + FILES_LEFT


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    await process.wait()


# --- the sender's process ------------------------------------------------------------------------


async def deliver() -> None:
    """Deliver to the genuine webhook, and for each line of standard input to hostile ones."""
    _, good, roots = sys.argv
    sender = PushSender(
        issuer="https://agent.example.com",
        keys=KeyRing.create(utc_now()),
        database="outbox.db",
        allow=["127.0.0.1:*"],
        options=SenderOptions(
            retry=RetryPolicy(wait=wait_schedule((0.1, 0.5)), stop=stop_after_attempt(10**6)),
            timeout=timedelta(seconds=TIMEOUT),
            breaker=BreakerPolicy(failures=10**6),
            concurrency=CONNECTIONS,
            ca_file=Path(roots),
        ),
    )
    connection._KEPT_SECONDS = 1.0  # type: ignore[misc]  # idle ones are not the peers' traces
    async with sender:
        await sender.subscribe("good", {"url": good, "id": "1"}, version="1.0", owner="good")
        last, is_over = 0, False

        async def notify() -> None:
            nonlocal last
            while not is_over:
                last += 1
                await sender.notify(_update("good", f"{last} {time.time()}"))
                await asyncio.sleep(0.02)

        notifying = asyncio.create_task(notify())
        while line := (await asyncio.to_thread(sys.stdin.readline)).split():
            await _flood(sender, float(line[0]), line[1:])
            print(last, flush=True)
        is_over = True
        await notifying
        while await _unfinished(sender):  # noqa: ASYNC110  # it is seen in the database alone
            await asyncio.sleep(0.05)
        print(last, flush=True)


async def _unfinished(sender: PushSender) -> int:
    states = (await sender.outbox.stats()).states
    return states[DeliveryState.PENDING] + states[DeliveryState.IN_FLIGHT]


async def _flood(sender: PushSender, seconds: float, urls: list[str]) -> None:
    """Notify hostile webhooks of many tasks; then remove their subscriptions."""
    tasks: list[tuple[str, str]] = []
    end, chance = time.monotonic() + seconds, Random(len(urls))
    while time.monotonic() < end:
        await asyncio.sleep(0.01)
        task, owner = f"task-{time.monotonic_ns()}", f"owner-{len(tasks) % 7}"
        config = {"url": chance.choice(urls), "id": "1", "token": "t" * 32}
        await sender.subscribe(task, config, version="1.0", owner=owner)
        tasks.append((task, owner))
        for _ in range(chance.choice((1, 1, 1, 5))):
            pad = chance.choice((0, 0, 0, 100_000))
            await sender.notify(_update(task, "x" * pad))
    for task, owner in tasks:
        await sender.unsubscribe(task, owner=owner)


def _update(task: str, context: str) -> StatusUpdate:
    return StatusUpdate(
        task_id=task, context_id=context, status=TaskStatus(state=TaskState.WORKING)
    )


async def main() -> int:
    """Run from the command line."""
    # The seconds are of each round; origins are of hostile webhooks.
    parser = options(__doc__, seed=0, rounds=100, seconds=6.0, origins=30)
    parser.add_argument("--only", nargs="*", default=(), help="Only these behaviours.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seed, only, origins = arguments.seed, arguments.only, arguments.origins
        soak = Soak(Path(folder), seed, only=only, origins=origins)
        complaints = await soak.run(arguments.rounds, arguments.seconds)
    held = "A PROMISE WAS BROKEN" if complaints else "every promise held"
    print(*complaints, f"{held} (seed {seed})", sep="\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    with showing_progress():
        sys.exit(asyncio.run(main()))
