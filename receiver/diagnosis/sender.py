"""The examination of a sender: a webhook for each scenario, and how the sender reacts to it.

Its requests are verified as a receiver would, and by PyJWT.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from pushkit.clock import utc_now
from pushkit.errors import ConfigError
from pushkit.keys.jwk import VerificationKey
from pushkit.url import host_and_port
from receiver.diagnosis.by_itself import Expected, verify_by_itself
from receiver.diagnosis.report import Examined, Outcome
from receiver.diagnosis.scenarios import LANDED, SCENARIOS, accepts
from receiver.diagnosis.sink import Sink, Visit, sinking
from receiver.options import Schemes

# How long to wait at least for the first requests: the sender may have to be started first.
ARRIVAL_SECONDS = 60

# Makes the sender under test notify each URL, by its scenario; returns once that has begun.
Drive = Callable[[Mapping[str, str]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signatures:
    """The keys and schemes that signatures are verified with."""

    # The sender's keys; None if no scheme has keys.
    keys: Sequence[VerificationKey] | None = field(repr=False)
    schemes: Schemes

    def fault(self, visits: Sequence[Visit], *, url: str, opened: datetime) -> str:
        """Return why a receiver would refuse one of the visits; empty if it would accept all.

        Args:
            url: The base URL that was visited.
            opened: When the sink was opened, from which visits count their seconds.
        """
        for number, visit in enumerate(visits, 1):
            expected = Expected(
                keys=self.keys if self.schemes.by_key else None,
                schemes=self.schemes,
                audience=f"{url}{visit.request.target.partition('?')[0]}",
                now=opened + timedelta(seconds=visit.at),
            )
            for one in verify_by_itself(visit.request, expected).failed:
                at = f"request {number} at step {one.name}"
                return f"a receiver would refuse {at} ({one.code}): {one.found}"
        return ""


async def examine_sender(
    # The listener of each scenario's webhook. Each has its own origin, because a sender may pause
    # or open a breaker for a whole origin.
    listeners: Mapping[str, socket.socket],
    drive: Drive,
    *,
    patience: timedelta,  # how long the sender is watched after each webhook had a request
    driven: bool = True,  # whether it is a failure that no request arrives
    # Returns how to verify the signatures; it is called late, for until then the sender may not
    # run. None to check only whether there is a signature.
    signatures: Callable[[], Awaitable[Signatures]] | None = None,
) -> AsyncIterator[Examined]:
    """Watch a sender, and yield the result of each scenario."""
    scripts = {f"/{name}": SCENARIOS[name].script for name in listeners}
    urls = {
        name: f"http://{host_and_port(*listener.getsockname()[:2])}/{name}"
        for name, listener in listeners.items()
    }
    opened = utc_now()
    async with sinking({**scripts, LANDED: accepts}, list(listeners.values())) as sink:
        await drive(urls)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(patience.total_seconds(), ARRIVAL_SECONDS)):
                await sink.until_visited(scripts)
        await asyncio.sleep(patience.total_seconds())
        held = await signatures() if signatures else None
        for name, url in urls.items():
            result = _judged(name, sink, driven=driven)
            visits = sink.visits.get(f"/{name}", ())
            base = url.removesuffix(f"/{name}")
            fault = held.fault(visits, url=base, opened=opened) if held else ""
            if fault:
                details = (*result.details, fault)
                result = replace(result, outcome=Outcome.FAILED, details=details)
            yield result


def _judged(name: str, sink: Sink, *, driven: bool) -> Examined:
    scenario = SCENARIOS[name]
    visits = [*sink.visits.get(f"/{name}", ())]
    if name == "redirect":
        visits += sink.visits.get(LANDED, ())
    if not visits:
        outcome = Outcome.FAILED if driven else Outcome.UNSEEN
        details: tuple[str, ...] = (f"no request arrived within {sink.elapsed():.0f} s",)
    else:
        outcome, details = scenario.judge(visits, sink.elapsed() - visits[0].at)
    return Examined(check=name, promise=scenario.promise, outcome=outcome, details=details)


@contextlib.asynccontextmanager
async def run_for_each(words: Sequence[str], token: str) -> AsyncIterator[Drive]:
    """Yield a function that runs a command for each URL; kill the commands when the block ends.

    The URL is the last argument; the environment has `DOCTOR_URL` and `DOCTOR_TOKEN`.
    """
    running: list[asyncio.subprocess.Process] = []

    async def drive(urls: Mapping[str, str]) -> None:
        for url in urls.values():
            environment = {**os.environ, "DOCTOR_URL": url, "DOCTOR_TOKEN": token}
            try:
                process = await asyncio.create_subprocess_exec(
                    *words,
                    url,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    env=environment,
                    start_new_session=True,
                )
            except OSError as exc:
                raise ConfigError(f"--run: {words[0]}: {exc.strerror}") from exc
            running.append(process)

    try:
        yield drive
    finally:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
