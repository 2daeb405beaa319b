"""The scenarios of a sender's examination: what the webhook does, and how the sender must react.

The promises are those of wire profile §5 that apply to every sender of notifications.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pushkit.errors import InboundError
from pushkit.signing.notification_jwt import find_jwt
from receiver.diagnosis.report import Outcome
from receiver.diagnosis.sink import Connection, Script, Visit

LANDED: Final = "/landed"
_RETRY_AFTER: Final = 8
_EARLY: Final = 0.5  # seconds of tolerance for clocks and event loops
_AT_ONCE: Final = 0.5  # seconds
# A2A asks for time-outs of 10 to 30 s; the rest is tolerance for the network.
_LONGEST_WAIT: Final = 35.0
_MOST_TAKEN: Final = 16 * 1024 * 1024
_BODY: Final = b"OK"

Judgement = tuple[Outcome, tuple[str, ...]]
_Judge = Callable[[Sequence[Visit], float], Judgement]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario."""

    promise: str  # what a sender must do
    script: Script  # what the webhook does
    # Returns the outcome, from the visits (at least one), and from the seconds that they were
    # watched since the first.
    judge: _Judge


# --- what the webhook does ------------------------------------------------------------------------


async def accepts(connection: Connection) -> None:
    """Answer 200."""
    await connection.answer("200 OK", body=_BODY)


def _answers(status: str, *fields: str) -> Script:
    return lambda connection: connection.answer(status, *fields)


async def _babbles(connection: Connection) -> None:
    await connection.send(b"this is not HTTP\r\n\r\n")


def _first(script: Script) -> Script:
    """Return a script that does this once, and accepts later visits."""
    return lambda connection: (script if connection.number == 1 else accepts)(connection)


async def _drips(connection: Connection) -> None:
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    await connection.drip(0.5)


async def _floods(connection: Connection) -> None:
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
    await connection.flood(2 * _MOST_TAKEN)


# --- how the sender must react --------------------------------------------------------------------


def _passed_unless(*faults: str) -> Judgement:
    found = tuple(fault for fault in faults if fault)
    return (Outcome.FAILED if found else Outcome.PASSED), found


def _once(visits: Sequence[Visit], _watched: float) -> Judgement:
    return _passed_unless(_repeated(visits), _unsigned(visits[0]))


def _again(visits: Sequence[Visit], watched: float) -> Judgement:
    """Check that the sender retries: the same bytes and id, after a pause."""
    if len(visits) == 1:
        return Outcome.UNSEEN, (f"no retry within {watched:.0f} s: raise --patience",)
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


def _waits(visits: Sequence[Visit], watched: float) -> Judgement:
    if len(visits) == 1 and watched < _RETRY_AFTER + _EARLY:
        return Outcome.UNSEEN, (f"watched for {watched:.0f} s only: raise --patience",)
    early = [visit for visit in visits[1:] if visit.at - visits[0].at < _RETRY_AFTER - _EARLY]
    apart = early[0].at - visits[0].at if early else 0
    return _passed_unless(
        f"retried after {apart:.1f} s, expected {_RETRY_AFTER} s or more" if early else ""
    )


def _never_again(visits: Sequence[Visit], _watched: float) -> Judgement:
    more = len(visits) - 1
    return _passed_unless(f"{more} more requests after the 410, expected none" if more else "")


def _stays(visits: Sequence[Visit], _watched: float) -> Judgement:
    landed = [visit for visit in visits if visit.request.target.startswith(LANDED)]
    return _passed_unless("it followed the redirect" if landed else "")


def _gives_up(visits: Sequence[Visit], watched: float) -> Judgement:
    stayed = visits[0].stayed
    if stayed is None and watched < _LONGEST_WAIT:
        return Outcome.UNSEEN, (f"it still waits after {watched:.0f} s: raise --patience",)
    if stayed is None or stayed > _LONGEST_WAIT:
        return _passed_unless(f"it waited for longer than {_LONGEST_WAIT:.0f} s")
    return _passed_unless()


def _lets_go(visits: Sequence[Visit], watched: float) -> Judgement:
    """Check that the sender closes the connection soon, and counts the 2xx as an acceptance."""
    judged, details = _gives_up(visits, watched)
    if judged is not Outcome.PASSED:
        return judged, details
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
    "accepted": Scenario("An update is signed, and is not sent again after a 2xx.", accepts, _once),
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
        _first(Connection.reset),
        _again,
    ),
    "no_http": Scenario(
        "After an answer that is not HTTP, the same bytes are sent again.",
        _first(_babbles),
        _again,
    ),
    "slow": Scenario(
        "An attempt that gets no answer ends within about 30 s.", _first(Connection.left), _gives_up
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
