"""The examination of a sender: a webhook for each scenario, and how the sender reacts to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from pushkit.clock import utc_now
from pushkit.errors import ConfigError
from pushkit.url import host_and_port
from receiver.doctor.report import Outcome, Result
from receiver.doctor.scenarios import LANDED, SCENARIOS, accepts
from receiver.doctor.signatures import Signatures
from receiver.doctor.sink import Sink, sinking

# How long to wait at least for the first requests: the sender may have to be started first.
ARRIVAL_SECONDS = 60

# Makes the sender under test notify each URL, by its scenario; returns once that has begun.
Drive = Callable[[Mapping[str, str]], Awaitable[None]]


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
) -> AsyncIterator[Result]:
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


def _judged(name: str, sink: Sink, *, driven: bool) -> Result:
    scenario = SCENARIOS[name]
    visits = [*sink.visits.get(f"/{name}", ())]
    if name == "redirect":
        visits += sink.visits.get(LANDED, ())
    if not visits:
        outcome = Outcome.FAILED if driven else Outcome.UNSEEN
        details: tuple[str, ...] = (f"no request arrived within {sink.elapsed():.0f} s",)
    else:
        outcome, details = scenario.judge(visits, sink.elapsed() - visits[0].at)
    return Result(check=name, promise=scenario.promise, outcome=outcome, details=details)


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
