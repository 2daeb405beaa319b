"""A refusal is attributed to the step where it happened, wherever it is shown.

Every field of a genuine request is forged in turn, for each way of proving a sender. The log, the
event, the metric, `listen`, `verify` and the dashboard have to name the same step: the one of the
tables here. What a request never came to is nowhere shown as passed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pushkit.bounded_json import JsonValue
from pushkit.events import Event, NotificationRefused
from pushkit.keys.jwk import Algorithm, generate_key
from pushkit.signing.http_message_signatures import content_digest
from pushkit.signing.jose import b64url_decode
from receiver import Answer, Limits, RateLimit, SenderProfile, TaskPolicy, TrustedSender
from receiver.dashboard.app import steps_of_refused
from receiver.diagnosis.by_itself import Expected, verify_by_itself
from receiver.listening.handler import AcceptedSignatures, Arrival, ListeningHandler, Trusting
from receiver.options import Schemes
from receiver.refusals import REFUSALS
from receiver.request import BrokenBodyError, ConsumedBodyError, Request
from receiver.steps import CheckResult, Result, Step
from receiver.testing import Draft
from tests.clock import START
from tests.emitted import emitted
from tests.metrics_page import MetricsRead
from tests.unit.receiver.drafts import (
    BASE,
    HTTP,
    JWT,
    PATH,
    SECRET,
    WEBHOOKS,
    adding,
    claiming,
    sending,
    trusted,
    with_jwt,
)  # fmt: skip

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory

Change = Callable[[Draft], Draft]
STRANGER = generate_key(Algorithm.ES256)
TOKEN = "the-notification-token-is-private"
OTHER_TOKEN = "another-token-that-is-private"
ISSUER = "https://agent.example.com"


class Way(NamedTuple):
    """A way of proving a sender, and the steps that a genuine request comes to, in order."""

    settings: dict[str, Any]  # of its sender
    schemes: Schemes
    order: str

    @property
    def profile(self) -> SenderProfile:
        profile: SenderProfile = self.settings.get("profile", SenderProfile.STANDARD)
        return profile


_THEN = "rate content replay task stored"
WAYS = {
    "jwt": Way(
        trusted(JWT),
        Schemes(),
        f"request sender signature time issuer audience ids token size body {_THEN}",
    ),
    "http": Way(
        trusted(HTTP),
        Schemes(names=(HTTP,)),
        f"request sender signature time audience ids token size body {_THEN}",
    ),
    # Its signature is over the body, too: the step is passed once the body is proven.
    "webhooks": Way(
        trusted(WEBHOOKS),
        Schemes(names=(WEBHOOKS,), webhook_secrets=(SECRET,)),
        f"request sender time ids token size body signature {_THEN}",
    ),
    "both": Way(
        trusted(JWT, WEBHOOKS),
        Schemes(names=(JWT, WEBHOOKS), webhook_secrets=(SECRET,)),
        f"request sender signature time issuer audience ids token size body {_THEN}",
    ),
    "unsigned": Way(
        {"profile": SenderProfile.UNSIGNED_SECRET_ONLY, "issuer": None, "keys": None},
        Schemes(),
        f"request sender ids token size {_THEN}",
    ),
}
UNREAD = ("request", "signature")  # a signature that cannot be read may be of any sender


@dataclass
class Surroundings:
    """What a forgery may change beside the request: the receiver, and how the body arrives."""

    options: dict[str, Any] = field(default_factory=dict)
    sender: dict[str, Any] = field(default_factory=dict)
    accepted_before: int = 0  # genuine notifications, from the first one on
    number: int = 1  # of the forged one
    body_fails: Exception | None = None  # raised in place of its body
    states_length: bool = False  # whether it has a Content-Length
    sql: str = ""  # run before it arrives


@dataclass
class Seen:
    """What the receiver says of one request in each place."""

    answer: Answer
    code: str
    log: str | None  # the member `step` of its record
    event: tuple[str, ...]  # `steps`
    metric: set[str]  # the label `step`
    listen: dict[str, bool | None]  # whether each step holds
    reasons: list[str]  # what `listen` says of those that do not
    verify: list[CheckResult]  # of the request by itself, as it is recorded
    dashboard: dict[str, str]  # the result of each step


# --- the forgeries -------------------------------------------------------------------------------


def missing(name: str) -> Change:
    return lambda draft: sending(draft, name)


def changed(name: str, value: str) -> Change:
    return lambda draft: sending(draft, name, value)


def added(name: str, *values: str) -> Change:
    return lambda draft: reduce(lambda draft, value: adding(draft, name, value), values, draft)


def repeated(name: str) -> Change:
    """Send a field twice, with the same value."""
    return lambda draft: sending(draft, name, *[dict(draft.request().headers)[name]] * 2)


def claim(name: str, value: JsonValue) -> Change:
    """Sign another value of a claim, or leave it out if None."""
    return lambda draft: claiming(draft, **{name: value})


def signed_at(seconds: float) -> Change:
    return signing(issued_at=START + timedelta(seconds=seconds))


def signing(**members: Any) -> Change:
    """Sign another request."""
    return lambda draft: replace(draft, **members)


def tampered_jwt(draft: Draft) -> Draft:
    start, _, signature = draft.jwt().rpartition(".")
    first = "A" if signature[0] != "A" else "B"
    return with_jwt(draft, f"{start}.{first}{signature[1:]}")


def tampered_signature(draft: Draft) -> Draft:
    value = dict(draft.request().headers)["Signature"]
    label, _, rest = value.partition("=:")
    return sending(draft, "Signature", f"{label}=:{'A' if rest[0] != 'A' else 'B'}{rest[1:]}")


def without_component(draft: Draft) -> Draft:
    value = dict(draft.request().headers)["Signature-Input"]
    return sending(draft, "Signature-Input", value.replace('"@method" ', ""))


def body(content: bytes) -> Change:
    """Sign another body."""
    return signing(body=content)


def sent(content: bytes) -> Change:
    """Send another body than the signed one."""
    return signing(body_sent=content)


def genuine(draft: Draft) -> Draft:
    """Change nothing."""
    return draft


def another_body(draft: Draft) -> Draft:
    return replace(draft, body=draft.body + b" ")


Refused = tuple[str, str] | None  # the step that refuses, and the code; None if it is accepted
UNSIGNED: Refused = ("signature", "invalid_signature")
UNREADABLE: Refused = ("signature", "malformed_request")
NO_TOKEN: Refused = ("token", "invalid_token")
NO_ID: Refused = ("ids", "malformed_request")


class Field(NamedTuple):
    """What becomes of a request that lacks a field, has it twice, or has another one."""

    other: str | Change  # that one's value, or what changes it
    missing: Refused
    repeated: Refused
    changed: Refused

    def forged(self, name: str) -> Iterator[tuple[str, Change, Refused]]:
        """Yield what is done to it, how, and what becomes of that."""
        yield "missing", missing(name), self.missing
        yield "repeated", repeated(name), self.repeated
        other = changed(name, self.other) if isinstance(self.other, str) else self.other
        yield "changed", other, self.changed


TYPE: Refused = ("request", "unsupported_media_type")
OF_EVERYBODY = {
    "Content-Type": Field("text/plain", None, ("request", "malformed_request"), TYPE),
    "A2A-Version": Field("0.3", None, ("content", "malformed_request"), None),  # the shape decides
    # There is another spelling with the same value.
    "X-A2A-Token": Field(OTHER_TOKEN, None, None, NO_TOKEN),
    "X-A2A-Notification-Token": Field(OTHER_TOKEN, None, None, NO_TOKEN),
    "webhook-id": Field("another", None, NO_ID, None),
    "webhook-timestamp": Field("1", None, None, None),
}
# By the way of proving.
FIELDS: dict[str, dict[str, Field]] = {
    "jwt": {
        **OF_EVERYBODY,
        "webhook-id": Field("another", None, NO_ID, NO_ID),
        "Authorization": Field(tampered_jwt, UNSIGNED, UNREADABLE, UNSIGNED),
    },
    "http": {
        **OF_EVERYBODY,
        # All that is signed: without it, or with another one, the signature is of another request.
        "Content-Type": OF_EVERYBODY["Content-Type"]._replace(missing=UNSIGNED),
        "A2A-Version": Field(OTHER_TOKEN, UNSIGNED, UNSIGNED, UNSIGNED),
        "X-A2A-Token": Field(OTHER_TOKEN, UNSIGNED, UNSIGNED, UNSIGNED),
        "X-A2A-Notification-Token": Field(OTHER_TOKEN, UNSIGNED, UNSIGNED, UNSIGNED),
        "webhook-id": Field("another", UNSIGNED, UNREADABLE, UNSIGNED),
        "Content-Digest": Field(content_digest(b""), UNSIGNED, UNREADABLE, UNSIGNED),
        "Signature-Input": Field(without_component, UNSIGNED, UNREADABLE, UNSIGNED),
        "Signature": Field(tampered_signature, UNSIGNED, UNREADABLE, UNSIGNED),
    },
    "webhooks": {
        **OF_EVERYBODY,
        "webhook-id": Field("another", UNSIGNED, UNREADABLE, ("body", "invalid_signature")),
        "webhook-timestamp": Field("1", UNSIGNED, UNREADABLE, ("time", "stale_timestamp")),
        "webhook-signature": Field(
            f"v1,{'A' * 43}=", UNSIGNED, UNREADABLE, ("body", "invalid_signature")
        ),
    },
    "unsigned": OF_EVERYBODY,
}
# Each claim, what is signed in its place (None: nothing), and what becomes of that.
CLAIMS: list[tuple[str, JsonValue, Refused]] = [
    ("iss", None, ("sender", "unknown_sender")),
    ("iss", "https://evil.example.com", ("sender", "unknown_sender")),
    ("aud", None, ("audience", "wrong_audience")),
    ("aud", "https://evil.example.com/", ("audience", "wrong_audience")),
    ("taskId", None, None),
    ("taskId", "task-2", ("content", "malformed_request")),
    ("taskId", "t" * 513, NO_ID),
    ("configId", None, None),
    ("configId", "config-2", None),
    ("configId", "c\0", NO_ID),
    ("iat", None, UNSIGNED),
    ("iat", 1, ("time", "stale_timestamp")),
    ("exp", None, ("time", "invalid_claims")),
    ("exp", 1, ("time", "stale_timestamp")),
    ("nbf", 4_000_000_000, ("time", "stale_timestamp")),
    ("jti", None, ("ids", "invalid_claims")),
    ("jti", "another", NO_ID),
    ("jti", "a.b", ("ids", "invalid_claims")),
    ("seq", None, None),
    ("seq", 2, None),
    ("seq", "1", UNSIGNED),
    ("request_body_sha256", None, UNSIGNED),
    ("request_body_sha256", "0" * 64, ("body", "digest_mismatch")),
]


class Forgery(NamedTuple):
    """One forged request, and what has to be said of it."""

    way: str
    change: Change
    refusing: str | None  # the step; None if it is accepted
    code: str
    begun: tuple[str, ...] | None = None  # the steps, if they are not those of its way
    around: Callable[[], Surroundings] = Surroundings


def _of_fields() -> Iterator[Any]:
    for way, table in FIELDS.items():
        for name, field_ in table.items():
            for how, change, refused in field_.forged(name):
                step, code = refused or (None, "accepted")
                begun: tuple[str, ...] | None = UNREAD if _is_unread(way, name, how) else None
                if way == "webhooks" and step == "signature":
                    begun = ("request", "sender", "signature")
                forgery = Forgery(way, change, step, code, begun)
                yield pytest.param(forgery, id=f"{way} {name} {how}")
    for name, value, refused in CLAIMS:
        step, code = refused or (None, "accepted")
        forgery = Forgery("jwt", claim(name, value), step, code)
        yield pytest.param(forgery, id=f"claim {name} {value!s:.20}")


def _is_unread(way: str, name: str, how: str) -> bool:
    """Return whether the signature cannot even be read: the sender is not known then."""
    return (way, name, how) in {
        ("jwt", "Authorization", "repeated"),
        ("http", "Signature-Input", "repeated"),
        ("http", "Signature", "repeated"),
        ("http", "Signature", "missing"),
    }


def _limited(**limits: Any) -> Callable[[], Surroundings]:
    return lambda: Surroundings(options={"limits": Limits(**limits)})


def _after(number: int = 1, **changes: Any) -> Callable[[], Surroundings]:
    """Return the surroundings in which the genuine request is already accepted."""
    return lambda: Surroundings(accepted_before=1, number=number, **changes)


def _without_keys() -> Surroundings:
    """Return a receiver that cannot fetch the keys of its sender."""
    sender = {"keys": None, "jwks_url": "http://127.0.0.1:1/jwks.json"}
    return Surroundings(options={"allow": ["127.0.0.1:*"]}, sender=sender)


def _without_keys_of_two() -> Surroundings:
    """Return one of two senders, which are distinguished by keys that it cannot fetch."""
    around = _without_keys()
    around.sender |= {"profile": SenderProfile.A2A_SAMPLES, "issuer": None}
    around.options["more_senders"] = [TrustedSender(name="other", **around.sender)]
    return around


def _of_the_rest() -> Iterator[Any]:
    one = RateLimit(per_second=0.001, burst=1)
    stored = {"limits": Limits(sender_rate=one)}
    rows: list[tuple[str, Change, str, str, Callable[[], Surroundings]]] = [
        ("Content-Encoding", added("Content-Encoding", "gzip"),
         "request", "unsupported_media_type", Surroundings),
        ("a long head", added("X-Padding", "x" * 20_000),
         "request", "headers_too_large", Surroundings),
        ("a long body that is declared", genuine,
         "request", "body_too_large", lambda: Surroundings(
             options={"limits": Limits(max_body_bytes=100)}, states_length=True)),
        ("over the rate of its address", genuine,
         "request", "rate_limited", _after(2, options={"limits": Limits(peer_rate=one)})),
        ("X-Api-Key repeated", added("X-Api-Key", "a", "a"),
         "token", "malformed_request", Surroundings),
        ("no token", signing(token=""), "token", "invalid_token", Surroundings),
        ("another token", signing(token=OTHER_TOKEN), "token", "invalid_token", Surroundings),
        ("a long body", genuine, "size", "body_too_large", _limited(max_body_bytes=100)),
        ("a longer body than this sender may send", genuine,
         "size", "body_too_large", lambda: Surroundings(sender={"max_body_bytes": 100})),
        ("a body that breaks off", genuine,
         "size", "incomplete_body", lambda: Surroundings(body_fails=BrokenBodyError())),
        ("a body that comes too slowly", genuine,
         "size", "body_timeout", lambda: Surroundings(body_fails=TimeoutError())),
        ("a body that a middleware has read", genuine,
         "size", "body_consumed", lambda: Surroundings(body_fails=ConsumedBodyError.of(0, 1))),
        ("over the rate of the sender", genuine, "rate", "rate_limited", _after(2, options=stored)),
        ("no JSON", body(b"{"), "content", "malformed_body", Surroundings),
        ("no update", body(b"{}"), "content", "unrecognised_body", Surroundings),
        ("an id that is used again", another_body, "replay", "id_conflict", _after()),
        ("no storage for tokens", signing(token=OTHER_TOKEN),
         "token", "storage", lambda: Surroundings(
             sql="ALTER TABLE pushkit_expected RENAME TO elsewhere")),
        ("no storage for ids", genuine, "replay", "storage", lambda: Surroundings(
            sql="ALTER TABLE pushkit_forgotten RENAME TO elsewhere")),
        ("no storage for notifications", genuine, "stored", "storage", lambda: Surroundings(
            sql="CREATE TRIGGER full BEFORE INSERT ON pushkit_inbox"
            " BEGIN SELECT no_such_function(); END")),
        ("a task that is not expected", genuine, "task", "task_not_expected", lambda: Surroundings(
            sender={"tasks": TaskPolicy.REGISTERED})),
        ("a full backlog", genuine, "stored", "backlog_full", _after(
            2, options={"limits": Limits(max_backlog_per_sender=1)})),
        ("a full inbox", genuine, "stored", "inbox_full", _after(
            2, options={"limits": Limits(max_backlog=1)})),
    ]  # fmt: skip
    for way in WAYS:
        for name, change, step, code, around in rows:
            yield pytest.param(Forgery(way, change, step, code, around=around), id=f"{way} {name}")
    long_id = body(b'{"task":{"id":"' + b"t" * 513 + b'","status":{"state":"TASK_STATE_WORKING"}}}')
    # Where `Authorization` has no signature, it is looked at with the other credentials.
    two = added("Authorization", "Bearer a", "Bearer a")
    for way in ("http", "webhooks", "unsigned"):
        yield pytest.param(
            Forgery(way, two, "token", "malformed_request"), id=f"{way} Authorization repeated"
        )
        yield pytest.param(
            Forgery(way, long_id, "content", "malformed_request"), id=f"{way} a long task"
        )
    of_another = (
        ("jwt", sent(b"{}"), "body", "digest_mismatch"),
        ("http", sent(b"{}"), "body", "digest_mismatch"),
        ("webhooks", sent(b"{}"), "body", "invalid_signature"),
        ("both", sent(b"{}"), "body", "digest_mismatch"),
        ("both", changed("webhook-signature", f"v1,{'A' * 43}="), "body", "invalid_signature"),
        ("both", missing("webhook-signature"), "signature", "invalid_signature"),
        ("both", changed("webhook-timestamp", "1"), "time", "stale_timestamp"),
        ("both", claim("aud", None), "audience", "wrong_audience"),
        ("both", claim("jti", "another"), "ids", "malformed_request"),
        ("jwt", signed_at(-301), "time", "stale_timestamp"),
        ("http", signed_at(-301), "time", "stale_timestamp"),
        ("webhooks", signed_at(301), "time", "stale_timestamp"),
        ("http", signing(audience="https://evil.example.com/"), "signature", "invalid_signature"),
        ("http", signing(key=STRANGER), "signature", "invalid_signature"),
        ("jwt", signing(key=STRANGER), "signature", "invalid_signature"),
        *((way, added("X-A2A-Token", OTHER_TOKEN), "token", "invalid_token")
          for way in ("jwt", "webhooks", "both", "unsigned")),
    )  # fmt: skip
    for number, (way, change, step, code) in enumerate(of_another):
        yield pytest.param(Forgery(way, change, step, code), id=f"{way} {step} {number}")
    yield from (
        pytest.param(
            Forgery("jwt", genuine, step, "keys_unavailable", around=around), id=f"no keys {step}"
        )
        for step, around in (("signature", _without_keys), ("sender", _without_keys_of_two))
    )
    unread = changed("Authorization", "Bearer a.b.c")
    yield pytest.param(
        Forgery("jwt", unread, "signature", "invalid_signature", UNREAD), id="jwt that is none"
    )


FORGED = [*_of_fields(), *_of_the_rest()]


# --- what is seen of them ------------------------------------------------------------------------


async def seen(
    make_world: WorldFactory, caplog: pytest.LogCaptureFixture, forgery: Forgery
) -> Seen:
    """Post a forged request to a listening receiver; return what is said of it."""
    events: list[Event] = []
    way, around = WAYS[forgery.way], forgery.around()
    options = {**around.options, "on_event": events.append, "drain": timedelta(0)}
    world = make_world(options, **way.settings, **around.sender)
    receiver = await world.start()
    assert receiver.metrics
    receiver.wind_down()  # the backlog stays as it is
    arrivals: list[Arrival] = []

    async def show(arrival: Arrival) -> None:
        arrivals.append(arrival)

    source = AcceptedSignatures(profile=way.profile, issuer=ISSUER, schemes=way.schemes)
    trusting = Trusting(source, PATH, TOKEN, STRANGER.to_verification_key())
    edge = ListeningHandler(receiver, trusting, show)
    for number in range(1, around.accepted_before + 1):
        assert (
            await _posted(edge, _draft(world, forgery.way, number), Surroundings())
        ).status == 202
    if around.sql:
        world.execute(around.sql)
    draft = forgery.change(_draft(world, forgery.way, around.number))
    caplog.clear()
    answer = await _posted(edge, draft, around)

    records = [each for each in caplog.records if each.getMessage().startswith("refused ")]
    refused = emitted(events, NotificationRefused)
    page = MetricsRead.of((await receiver.metrics.page()).body)
    return Seen(
        answer=answer,
        code=arrivals[-1].code,
        log=getattr(records[0], "step", None) if records else None,
        event=refused[0].steps if refused else (),
        metric=page.labels("receiver_refusals_total", "step"),
        verify=verified(world, draft, way),
        listen={each.name: each.result.holds for each in arrivals[-1].steps},
        reasons=[each.found for each in arrivals[-1].steps if each.result.holds is False],
        dashboard={
            each.name: each.result.value for event in refused for each in steps_of_refused(event)
        },
    )


def verified(world: World, draft: Draft, way: Way) -> list[CheckResult]:
    """Return what `verify` says of the request, with all that its sender is configured with."""
    signed = way.profile.signed
    expected = Expected(
        keys=[*world.sender.keys] if world.sender.keys else None,
        schemes=way.schemes,
        profile=way.profile,
        issuer=ISSUER if signed else None,
        audience=f"{BASE}{PATH}" if signed else None,
        token=TOKEN,
        now=world.clock(),
    )
    return verify_by_itself(draft.request(), expected).results


def _draft(world: World, way: str, number: int = 1) -> Draft:
    return replace(world.draft(number), signed=way != "unsigned")


async def _posted(edge: ListeningHandler, draft: Draft, around: Surroundings) -> Answer:
    request = draft.request()
    fields = list(request.headers)
    if around.states_length:
        fields.append(("Content-Length", str(len(request.body))))

    async def read(limit: int) -> bytes | None:
        if around.body_fails is not None:
            raise around.body_fails
        return request.body if len(request.body) <= limit else None

    return await edge.handle(
        Request(
            method="POST",
            path=PATH,
            target=request.target,
            headers=type(request.headers)(fields),
            peer="192.0.2.1",
            read=read,
        )
    )


# All that a refusal says over HTTP.
IN_A_PROBLEM = {"type", "title", "status", "code"}
# What no single request to a receiver can show.
UNFORGED = {
    ("wrong_issuer", "issuer"),  # such a request is of no sender: the issuer selects it
    ("malformed_json", "content"),  # `decode_update` says `malformed_body`
    ("storage", "task"),  # what this step reads was read in the one before
    ("being_stored", "stored"),  # needs two processes at the same moment
}


# The steps that a recorded request can be refused by.
OF_A_REQUEST = {
    *("sender", "signature", "time", "issuer", "audience", "ids", "token", "body", "content"),
}


def of_verify(found: Seen, result: Result) -> set[str]:
    return {one.name for one in found.verify if one.result is result}


# --- the tests -----------------------------------------------------------------------------------


@pytest.mark.parametrize("forgery", FORGED)
async def test_a_refusal_is_attributed_to_one_step_wherever_it_is_shown(
    make_world: WorldFactory, caplog: pytest.LogCaptureFixture, forgery: Forgery
) -> None:
    caplog.set_level(logging.INFO)
    found = await seen(make_world, caplog, forgery)

    assert found.code == forgery.code
    assert not found.answer.body or set(json.loads(found.answer.body)) == IN_A_PROBLEM
    if forgery.refusing is None:
        assert found.answer.status == 202
        assert (found.log, found.event, found.metric) == (None, (), set())
        assert False not in found.listen.values()
        assert of_verify(found, Result.REFUSED) == set()
        return
    order = tuple(WAYS[forgery.way].order.split())
    begun = forgery.begun or order[: order.index(forgery.refusing) + 1]
    places = [step.word for step in Step]
    later = places[places.index(forgery.refusing) + 1 :]

    assert found.event == begun
    assert (found.log, found.metric) == (forgery.refusing, {forgery.refusing})
    assert [name for name, holds in found.listen.items() if holds is False] == [forgery.refusing]
    assert not {"", found.code}.intersection(found.reasons)
    if forgery.refusing in OF_A_REQUEST and forgery.around is Surroundings:
        assert of_verify(found, Result.REFUSED) == {forgery.refusing}
        assert of_verify(found, Result.PASSED) <= {*begun}
        assert not of_verify(found, Result.PASSED).intersection(later)
    else:  # only a running receiver refuses it there
        assert of_verify(found, Result.REFUSED) <= {forgery.refusing, *later}
    refused = [name for name, result in found.dashboard.items() if result == "refused"]
    assert refused == [forgery.refusing]
    assert {name for name, result in found.dashboard.items() if result == "passed"} == set(
        begun[:-1]
    )
    shown = {name for name, holds in found.listen.items() if holds}
    # `listen` says of an unsigned sender that its ids are not proven.
    assert shown == set(begun[:-1]) - ({"ids"} if forgery.way == "unsigned" else set())
    assert not shown.intersection(later)
    assert {found.dashboard[name] for name in later} <= {"not_reached"}
    assert forgery.refusing in {step.word for step in REFUSALS[found.code].steps}


@pytest.mark.parametrize("way", FIELDS)
async def test_every_field_of_a_genuine_request_is_forged(
    make_world: WorldFactory, way: str
) -> None:
    world = make_world(**WAYS[way].settings)
    names = dict(_draft(world, way).request().headers).keys() - {"User-Agent"}  # nobody reads it
    assert names == set(FIELDS[way])


def test_every_step_that_a_row_allows_is_the_one_of_a_forgery() -> None:
    allowed = {(code, step.word) for code, row in REFUSALS.items() for step in row.steps}
    forged = {(each.code, each.refusing) for case in FORGED for each in case.values}
    assert allowed - forged == UNFORGED


def test_every_claim_of_a_genuine_request_is_forged(world: World) -> None:
    for name in json.loads(b64url_decode(world.draft().jwt().split(".")[1], "claims")):
        assert {value is None for claimed, value, _ in CLAIMS if claimed == name} == {True, False}


@pytest.mark.parametrize("way", WAYS)
async def test_every_step_of_a_genuine_request_is_passed(
    make_world: WorldFactory, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    found = await seen(make_world, caplog, Forgery(way, genuine, None, "accepted"))
    passed = {name for name, holds in found.listen.items() if holds}
    ids = {"ids"} if way == "unsigned" else set()
    assert passed == set(WAYS[way].order.split()) - ids
    by_itself = OF_A_REQUEST.intersection(WAYS[way].order.split()) - ids
    # Without an issuer, any sender with these keys or secrets is taken.
    assert of_verify(found, Result.PASSED) | {"sender"} == by_itself
