"""The examination of a sender: a webhook for each scenario, and how the sender reacts to it.

Signatures are verified by a receiver's steps 2 to 6, and by PyJWT.
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
from pushkit.errors import ConfigError, InboundError
from pushkit.keys.jwk import VerificationKey
from pushkit.keys.jwks import key_for
from pushkit.signing.notification_jwt import find_jwt, read_unverified
from pushkit.signing.scheme import Scheme
from pushkit.signing.second_opinion import ask_pyjwt
from pushkit.signing.token import read_token
from pushkit.url import host_and_port
from receiver.diagnosis.report import Examined, Outcome
from receiver.diagnosis.scenarios import LANDED, SCENARIOS, accepts
from receiver.diagnosis.sink import Sink, Visit, sinking
from receiver.options import Schemes
from receiver.senders import TaskPolicy, TrustedSender
from receiver.trust import load_trust
from receiver.verification import verify_notification

# How long to wait at least for the first requests: the sender may have to be started first.
ARRIVAL_SECONDS = 60
_UNSTATED = "urn:pushkit:unstated"

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
            now = opened + timedelta(seconds=visit.at)
            try:
                trust = load_trust(url, [self._sender(visit)])
                token = read_token(visit.request.headers)
                tokens = [token] if token else []
                verify_notification(visit.request, trust, now=now, tokens=tokens)
                self._ask_pyjwt(visit)
            except InboundError as exc:
                return f"a receiver would refuse request {number} ({exc.code}): {exc}"
        return ""

    def _ask_pyjwt(self, visit: Visit) -> None:
        """Verify the JWT with another library, too."""
        compact = find_jwt(visit.request.headers)
        if Scheme.JWT not in self.schemes.names or compact is None or self.keys is None:
            return
        jwt = read_unverified(compact)
        key = key_for([key for key in self.keys if key.kid == jwt.kid], jwt.algorithm)
        if key is not None:
            ask_pyjwt(compact, key)

    def _sender(self, visit: Visit) -> TrustedSender:
        """Return a trusted sender with the issuer that a visit states."""
        by_jwt = Scheme.JWT in self.schemes.names
        return TrustedSender(
            name="sender",
            issuer=_stated_issuer(visit) if by_jwt else None,
            keys=self.keys if self.schemes.by_key else None,
            path=visit.request.target.partition("?")[0],
            schemes=self.schemes.names,
            webhook_secrets=self.schemes.webhook_secrets,
            token_required=False,
            tasks=TaskPolicy.ANY,
        )


def _stated_issuer(visit: Visit) -> str:
    try:
        compact = find_jwt(visit.request.headers)
        return (read_unverified(compact).issuer if compact else None) or _UNSTATED
    except InboundError:
        return _UNSTATED


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
