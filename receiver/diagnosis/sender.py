"""The examination of a sender: a webhook for each scenario, and how the sender must react to it.

The promises are those of wire profile §5 that apply to every sender of notifications. Its requests
are verified as a receiver would, and by PyJWT.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from pushkit.clock import utc_now
from pushkit.errors import ConfigError, InboundError
from pushkit.signing.notification_jwt import find_jwt
from pushkit.url import host_and_port
from receiver.diagnosis.by_itself import Expected, verify_by_itself
from receiver.diagnosis.report import CheckOutcome, Examined
from receiver.diagnosis.sink import Script, Sink, Visit, VisitConnection, sinking

# How long to wait at least for the first requests: the sender may have to be started first.
ARRIVAL_SECONDS: Final = 60

# Makes the sender under test notify each URL, by its scenario; returns once that has begun.
Drive = Callable[[Mapping[str, str]], Awaitable[None]]

LANDED: Final = "/landed"
_RETRY_AFTER: Final = 8
_EARLY: Final = 0.5  # seconds of tolerance for clocks and event loops
_AT_ONCE: Final = 0.5  # seconds
# A2A asks for time-outs of 10 to 30 s; the rest is tolerance for the network.
_LONGEST_WAIT: Final = 35.0
_MOST_TAKEN: Final = 16 * 1024 * 1024
_BODY: Final = b"OK"
_UNSENT: Final = "an agent may take configs and have no sender: /readyz of a pushkit agent says so"

Conclusion = tuple[CheckOutcome, tuple[str, ...]]
_Conclude = Callable[[Sequence[Visit], float], Conclusion]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario."""

    promise: str  # what a sender must do
    script: Script  # what the webhook does
    # Returns the outcome, from the visits (at least one), and from the seconds that they were
    # watched since the first.
    conclude: _Conclude


# --- what the webhook does ------------------------------------------------------------------------


async def accepts(connection: VisitConnection) -> None:
    """Answer 200."""
    await connection.answer("200 OK", body=_BODY)


def _answers(status: str, *fields: str) -> Script:
    return lambda connection: connection.answer(status, *fields)


def _first(script: Script) -> Script:
    """Return a script that does this once, and accepts later visits."""
    return lambda connection: (script if connection.number == 1 else accepts)(connection)


async def _drips(connection: VisitConnection) -> None:
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    await connection.drip(0.5)


async def _floods(connection: VisitConnection) -> None:
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
    await connection.flood(2 * _MOST_TAKEN)


# --- how the sender must react --------------------------------------------------------------------


def _passed_unless(*faults: str) -> Conclusion:
    found = tuple(fault for fault in faults if fault)
    return (CheckOutcome.FAILED if found else CheckOutcome.PASSED), found


def _once(visits: Sequence[Visit], _watched: float) -> Conclusion:
    return _passed_unless(_repeated(visits), _unsigned(visits[0]))


def _again(visits: Sequence[Visit], watched: float) -> Conclusion:
    """Check that the sender retries: the same bytes and id, after a pause."""
    if len(visits) == 1:
        return CheckOutcome.UNSEEN, (f"no retry within {watched:.0f} s: raise --patience",)
    first, second = visits[:2]
    apart = second.at - first.at
    return _passed_unless(
        "" if first.request.body == second.request.body else "the retry has other bytes",
        ""
        if _id(first) == _id(second)
        else f"the retry has another id: {_id(first)}, then {_id(second)}",
        "" if _id(first) else "no webhook-id, by which a receiver recognizes a retry",
        f"retried after {apart * 1000:.0f} ms, expected a pause" if apart < _AT_ONCE else "",
    )


def _waits(visits: Sequence[Visit], watched: float) -> Conclusion:
    if len(visits) == 1 and watched < _RETRY_AFTER + _EARLY:
        return CheckOutcome.UNSEEN, (f"watched for {watched:.0f} s only: raise --patience",)
    early = [visit for visit in visits[1:] if visit.at - visits[0].at < _RETRY_AFTER - _EARLY]
    apart = early[0].at - visits[0].at if early else 0
    return _passed_unless(
        f"retried after {apart:.1f} s, expected {_RETRY_AFTER} s or more" if early else ""
    )


def _never_again(visits: Sequence[Visit], _watched: float) -> Conclusion:
    more = len(visits) - 1
    return _passed_unless(f"{more} more requests after the 410, expected none" if more else "")


def _stays(visits: Sequence[Visit], _watched: float) -> Conclusion:
    landed = [visit for visit in visits if visit.request.target.startswith(LANDED)]
    return _passed_unless("it followed the redirect" if landed else "")


def _gives_up(visits: Sequence[Visit], watched: float) -> Conclusion:
    stayed = visits[0].stayed
    if stayed is None and watched < _LONGEST_WAIT:
        return CheckOutcome.UNSEEN, (f"it still waits after {watched:.0f} s: raise --patience",)
    if stayed is None or stayed > _LONGEST_WAIT:
        return _passed_unless(f"it waited for longer than {_LONGEST_WAIT:.0f} s")
    return _passed_unless()


def _lets_go(visits: Sequence[Visit], watched: float) -> Conclusion:
    """Check that the sender closes the connection soon, and counts the 2xx as an acceptance."""
    outcome, details = _gives_up(visits, watched)
    if outcome is not CheckOutcome.PASSED:
        return outcome, details
    taken = visits[0].taken
    return _passed_unless(
        _repeated(visits),
        f"it read {taken} bytes of the answer, expected at most {_MOST_TAKEN}"
        if taken > _MOST_TAKEN
        else "",
    )


def _repeated(visits: Sequence[Visit]) -> str:
    ids = [_id(visit) for visit in visits]
    repeated = sum(ids.count(each) - 1 for each in set(ids))
    return f"sent {repeated} more times after a 2xx, expected never again" if repeated else ""


def _unsigned(visit: Visit) -> str:
    try:
        signed = find_jwt(visit.request.headers) or visit.request.headers.all("Signature")
    except InboundError as exc:
        return str(exc)
    signed = signed or visit.request.headers.all("webhook-signature")
    return "" if signed else "not signed: anybody could have sent it"


def _id(visit: Visit) -> str:
    return ", ".join(visit.request.headers.all("webhook-id"))


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "accepted": Scenario(
        # Whether it is valid is seen with the sender's keys alone: `fault`.
        "An update has a signature, and is not sent again after a 2xx.",
        accepts,
        _once,
    ),
    "server_error": Scenario(
        "After a 500, the same bytes are sent again with the same id, after a pause.",
        _first(_answers("500 Internal Server Error")),
        _again,
    ),
    "retry_after": Scenario(
        f"After a 429 with Retry-After: {_RETRY_AFTER}, nothing is sent for {_RETRY_AFTER} s.",
        _first(_answers("429 Too Many Requests", f"Retry-After: {_RETRY_AFTER}")),
        _waits,
    ),
    "gone": Scenario("After a 410, nothing more is sent.", _answers("410 Gone"), _never_again),
    "redirect": Scenario(
        "A redirect is not followed: an update for one URL is sent to no other.",
        _answers("307 Temporary Redirect", f"Location: {LANDED}"),
        _stays,
    ),
    "reset": Scenario(
        "After a connection was reset, the same bytes are sent again.",
        _first(VisitConnection.reset),
        _again,
    ),
    "no_http": Scenario(
        "After an answer that is not HTTP, the same bytes are sent again.",
        _first(lambda connection: connection.send(b"this is not HTTP\r\n\r\n")),
        _again,
    ),
    "slow": Scenario(
        "An attempt that gets no answer ends within about 30 s.",
        _first(VisitConnection.left),
        _gives_up,
    ),
    "dripped_body": Scenario(
        "After a 2xx whose body is slow, the connection is closed, and nothing is sent again.",
        _drips,
        _lets_go,
    ),
    "endless_body": Scenario(
        "After a 2xx whose body is endless, the connection is closed, and nothing is sent again.",
        _floods,
        _lets_go,
    ),
}


# --- the examination -----------------------------------------------------------------------------


def fault(visits: Sequence[Visit], expected: Expected, *, url: str, opened: datetime) -> str:
    """Return why a receiver would refuse one of the visits; empty if it would accept all.

    Args:
        visits: The requests.
        expected: The sender's keys, secrets and schemes.
        url: The base URL that was visited.
        opened: When the sink was opened, from which visits count their seconds.
    """
    for number, visit in enumerate(visits, 1):
        audience = f"{url}{visit.request.target.partition('?')[0]}"
        now = opened + timedelta(seconds=visit.at)
        verification = verify_by_itself(
            visit.request, replace(expected, audience=audience, now=now)
        )
        for one in verification.failed:
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
    # Returns what signatures are verified against; it is called late, for until then the sender may
    # not run. None to check only whether there is a signature.
    expected: Callable[[], Awaitable[Expected]] | None = None,
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
        held = await expected() if expected else None
        for name, url in urls.items():
            result = _concluded(name, sink, driven=driven)
            visits = sink.visits.get(f"/{name}", ())
            base = url.removesuffix(f"/{name}")
            if held and (wrong := fault(visits, held, url=base, opened=opened)):
                details = (*result.details, wrong)
                result = replace(result, outcome=CheckOutcome.FAILED, details=details)
            yield result


def _concluded(name: str, sink: Sink, *, driven: bool) -> Examined:
    scenario = SCENARIOS[name]
    visits = [*sink.visits.get(f"/{name}", ())]
    if name == "redirect":
        visits += sink.visits.get(LANDED, ())
    if not visits:
        outcome = CheckOutcome.FAILED if driven else CheckOutcome.UNSEEN
        details: tuple[str, ...] = (f"no request arrived within {sink.elapsed():.0f} s", _UNSENT)
    else:
        outcome, details = scenario.conclude(visits, sink.elapsed() - visits[0].at)
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
