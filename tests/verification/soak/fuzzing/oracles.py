"""The promises about every answer, one function each: a second opinion in a few lines.

An oracle takes a request with its answer, and returns what is wrong with the answer, if anything.
The oracles on signatures check every answer that only a proven sender may get.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterator
from typing import Final

from tests.verification.soak.fuzzing.exchange import Exchange, credentials_of, minted_for
from tests.verification.soak.fuzzing.making import (
    MARK,
    TOKEN_HEADERS,
    VERSION,
    Evidence,
    Request,
    careful_json,
    sha256,
)
from tests.verification.soak.fuzzing.parties import HTTP, JWT, TOLERANCE, WEBHOOKS, Party

__all__ = ["ORACLES", "complaints"]

SLACK = 5  # seconds between making a request and its being judged
LEEWAY = 60  # of `exp`

# Codes that only a proven sender gets, after steps 2 to 5.
PROVEN = frozenset(
    {"accepted", "duplicate", "id_conflict", "malformed_body", "unrecognised_body"}
    | {"task_not_expected"}
)

# Codes of refusals before a complete head.
BEFORE_A_HEAD = frozenset({"malformed_http", "headers_too_large"})

Oracle = Callable[[Exchange], str | None]
ORACLES: Final[dict[str, Oracle]] = {}


def promise(oracle: Oracle) -> Oracle:
    ORACLES[oracle.__name__] = oracle
    return oracle


def complaints(seen: Exchange, asked: Collection[str]) -> Iterator[tuple[str, str]]:
    """Return the findings of these oracles, and then remember what was accepted."""
    for name, oracle in ORACLES.items():
        found = oracle(seen) if name in asked else None
        if found:
            yield name, found
    if seen.accepted:
        _remember(seen)


# --- answers ------------------------------------------------------------------------------------


@promise
def answered(seen: Exchange) -> str | None:
    """Every request is answered, and never with a 5xx."""
    status = seen.answer.status
    return None if 200 <= status < 500 else f"answered {status}"


@promise
def genuine(seen: Exchange) -> str | None:
    """A genuine notification is accepted once, and its repetitions are duplicates."""
    if seen.expected in (None, seen.answer.code):
        return None
    return f"expected {seen.expected}, found {seen.answer.status} {seen.answer.code}"


@promise
def silence(seen: Exchange) -> str | None:
    """A refusal says its code and nothing else; no answer repeats a secret."""
    if seen.answer.is_problem:
        members = json.loads(seen.answer.body).keys()
        if members != {"type", "title", "status", "code"}:
            return f"the answer has members {sorted(members)}"
    elif not seen.answer.code:
        return None  # of bytes that are no HTTP, the server's own
    told = seen.answer.headers + seen.answer.body.decode("latin-1")
    return _leak(seen, told, "the answer")


@promise
def logged(seen: Exchange) -> str | None:
    """Every verdict is in the log, once, with its code."""
    answer = seen.answer
    refused = f"refused {answer.status} {answer.code} "
    wanted = refused if answer.is_problem else f"{answer.code} "
    found = [line for line in seen.log if wanted in line]
    if answer.code in BEFORE_A_HEAD and not found:
        return None  # once in an interval for each address, and none is known but the proxy's
    own = answer.is_problem or answer.code
    return None if len(found) == 1 or not own else f"{wanted!r} is {len(found)} times in the log"


@promise
def discretion(seen: Exchange) -> str | None:
    """No token, credential, claim, body or signature is in the log, and no line is two."""
    text = "\n".join(seen.log)
    if not all(line.isprintable() for one in seen.log for line in one.splitlines()):
        return "the log has what is not printable"
    # An id is to be in the log: a sender that makes an id of its token has told it.
    for name in ("webhook-id", "X-Event-Id"):
        for value in seen.request.all(name):
            text = text.replace(value, "") if value else text
    return _leak(seen, text, "the log")


# --- who, and with what -------------------------------------------------------------------------


@promise
def signature(seen: Exchange) -> str | None:
    """Nothing is accepted that no key has signed."""
    if seen.answer.code not in PROVEN:
        return None
    if seen.party is None:
        return "no sender is trusted at this path"
    signed = {one.scheme for one in seen.evidence if one.by}
    missing = set(seen.party.signs) - signed
    return f"no signature by any key: {missing}" if missing else None


@promise
def own_key(seen: Exchange) -> str | None:
    """A key is valid only for its own sender."""
    if seen.answer.code not in PROVEN or seen.party is None:
        return None
    signed = {one.scheme for one in seen.evidence if one.by}
    wrong = [one for one in seen.party.signs if one in signed and not seen.own(one)]
    return f"signed by somebody else's key: {wrong}" if wrong else None


@promise
def algorithm(seen: Exchange) -> str | None:
    """The key decides the algorithm, and the configuration which ones a sender may use."""

    def holds(one: Evidence, party: Party) -> bool:
        pinned = {key.kid: key.algorithm for key in party.keys}[one.by]
        return one.algorithm is pinned and pinned in party.may_use

    return _unless(seen, (JWT, HTTP), holds)


@promise
def one_reading(seen: Exchange) -> str | None:
    """Ambiguous encodings are refused: duplicate members, other spellings."""
    if seen.accepted and _unreadable(seen.request.body):
        return f"the body: {_unreadable(seen.request.body)}"
    return _unless(seen, (JWT, HTTP, WEBHOOKS), lambda one, _: not one.unreadable)


@promise
def body(seen: Exchange) -> str | None:
    """The body is the one that was signed, byte for byte."""
    found = {sha256(seen.request.body)}
    if seen.party is not None and seen.party.profile == "a2a-samples":
        found.add(_compact_hash(seen.request.body))
    return _unless(seen, (JWT, HTTP, WEBHOOKS), lambda one, _: bool(one.digests & found))


@promise
def window(seen: Exchange) -> str | None:
    """It was signed within the tolerance of now."""

    def holds(one: Evidence, _: Party) -> bool:
        return one.issued is not None and abs(one.issued - time.time()) <= TOLERANCE + SLACK

    return _unless(seen, (JWT, HTTP, WEBHOOKS), holds)


@promise
def expiry(seen: Exchange) -> str | None:
    """It has not expired."""

    def holds(one: Evidence, _: Party) -> bool:
        return one.expires is not None and one.expires >= time.time() - LEEWAY - SLACK

    return _unless(seen, (JWT, HTTP), holds)


@promise
def beginning(seen: Exchange) -> str | None:
    """It is valid already."""

    def holds(one: Evidence, _: Party) -> bool:
        return one.begins is not None and one.begins <= time.time() + TOLERANCE + SLACK

    return _unless(seen, (JWT,), holds)


@promise
def audience(seen: Exchange) -> str | None:
    """It was signed for this webhook and no other one."""

    def holds(one: Evidence, party: Party) -> bool:
        query = seen.request.target.partition("?")[2]
        own = {party.url, f"{party.url}?{query}"}
        if one.covers is not None:
            return one.covers.get("@target-uri") in own
        return party.profile != "standard" or any(each in own for each in one.audiences or ())

    return _unless(seen, (JWT, HTTP), holds)


@promise
def issuer(seen: Exchange) -> str | None:
    """It states the issuer of its sender."""

    def holds(one: Evidence, party: Party) -> bool:
        return party.profile != "standard" or one.issuer == party.issuer

    return _unless(seen, (JWT,), holds)


@promise
def coverage(seen: Exchange) -> str | None:
    """An HTTP message signature covers what it must, and what it covers is what arrived."""

    def holds(one: Evidence, _: Party) -> bool:
        covers, request = one.covers or {}, seen.request
        there = [name for name in (VERSION, *TOKEN_HEADERS) if request.all(name)]
        must = {"@method", "@target-uri", "content-type", "content-digest", "webhook-id", *there}
        arrived = {name: ", ".join(request.all(name)) for name in covers if name[0] != "@"}
        stands = {name: value for name, value in covers.items() if name[0] != "@"}
        return must <= covers.keys() and covers["@method"] == "POST" and arrived == stands

    return _unless(seen, (HTTP,), holds)


@promise
def ids(seen: Exchange) -> str | None:
    """All ids of the delivery in the request are the same."""
    if seen.answer.code not in PROVEN or seen.party is None:
        return None
    found = {one.delivery_id for scheme in seen.party.signs for one in seen.own(scheme)}
    found |= set(seen.request.all("webhook-id")) if found - {None} else set()
    return f"{len(found - {None})} ids" if len(found - {None}) > 1 else None


@promise
def token(seen: Exchange) -> str | None:
    """A token, if there is or must be one, is one of this sender's."""
    if seen.answer.code not in PROVEN or seen.party is None:
        return None
    handed = {seen.party.token} - {""} | {one.token for one in seen.memory.of(seen.party)}
    found = seen.tokens()
    if not found:
        required = seen.party.token or not seen.party.credentials
        return "no token" if required and not minted_for(seen) else None
    return None if len(found) == 1 and found <= handed else f"{len(found)} tokens, or a wrong one"


@promise
def credentials(seen: Exchange) -> str | None:
    """A sender with credentials presents them."""
    party = seen.party
    if seen.answer.code not in PROVEN or party is None:
        return None
    given = {credentials_of(value) for value in party.credentials}
    given |= {credentials_of(one.credentials) for one in seen.memory.of(party) if one.credentials}
    return "no credentials, or wrong ones" if given and not given & seen.credentials() else None


# --- once, and about which task -----------------------------------------------------------------


@promise
def once(seen: Exchange) -> str | None:
    """A delivery is accepted once; it is a duplicate only of what was accepted."""
    key = _key(seen)
    if key is None:
        return None
    known = key in seen.memory.accepted
    if seen.accepted and known:
        return "accepted twice"
    return "a duplicate of nothing" if seen.answer.code == "duplicate" and not known else None


@promise
def conflict(seen: Exchange) -> str | None:
    """The same id with another body is neither accepted nor called a duplicate."""
    key = _key(seen)
    if key is None or seen.answer.code not in ("accepted", "duplicate"):
        return None
    before = seen.memory.accepted.get(key, sha256(seen.request.body))
    return "another body under the same id" if before != sha256(seen.request.body) else None


@promise
def task(seen: Exchange) -> str | None:
    """A token of `expect()` is valid for its own task, until it is withdrawn."""
    minted = minted_for(seen)
    if not seen.accepted or minted is None:
        return None
    if minted.withdrawn:
        return "accepted under a token that was withdrawn"
    about = _task_of(seen)
    return f"accepted for {about}" if about and minted.task not in (None, about) else None


def _remember(seen: Exchange) -> None:
    key, minted = _key(seen), minted_for(seen)
    if key is None:
        seen.memory.anonymous += 1
    else:
        seen.memory.accepted.setdefault(key, sha256(seen.request.body))
    if minted is not None and seen.party is not None and seen.party.tasks == "bind":
        minted.task = minted.task or _task_of(seen)


# --- within -------------------------------------------------------------------------------------


def _unless(
    seen: Exchange, schemes: tuple[str, ...], holds: Callable[[Evidence, Party], bool]
) -> str | None:
    """Complain about a proven request without an own signature that meets a condition."""
    if seen.answer.code not in PROVEN or seen.party is None:
        return None
    for scheme in schemes:
        own = seen.own(scheme) if scheme in seen.party.signs else []
        if own and not any(holds(one, seen.party) for one in own):
            return f"{seen.answer.code} by {scheme} {[one.unreadable for one in own]}"
    return None


def _key(seen: Exchange) -> tuple[str, str] | None:
    """Return what identifies repetitions of a proven request; None if nothing does."""
    if seen.answer.code not in PROVEN or seen.party is None:
        return None
    own = [one for scheme in seen.party.signs for one in seen.own(scheme)]
    if own:
        named = [one.delivery_id for one in own if one.delivery_id]
        return seen.party.name, named[0] if named else own[0].text.rpartition(".")[0]
    field = seen.party.id_field or "webhook-id"
    if field.startswith("/"):
        found = _member(seen.request.body, field)
    else:
        if seen.request.wire is not Request.wire:
            return None  # an octet more in the id is another id
        found = next(iter(seen.request.all(field)), None)
    return (seen.party.name, found) if found else None


def _task_of(seen: Exchange) -> str | None:
    places = ("/statusUpdate/taskId", "/laterUpdate/taskId")
    return next(filter(None, (_member(seen.request.body, place) for place in places)), None)


def _member(data: bytes, pointer: str) -> str | None:
    try:
        value = careful_json(data)
    except ValueError:
        return None
    for name in pointer.split("/")[1:]:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None


def _unreadable(data: bytes) -> str:
    try:
        careful_json(data)
    except ValueError as exc:
        return str(exc) or "no JSON"
    return ""


def _compact_hash(data: bytes) -> str:
    try:
        compact = json.dumps(json.loads(data), ensure_ascii=False, separators=(",", ":"))
        return sha256(compact.encode())
    except (ValueError, RecursionError):
        return ""


_WORD = re.compile(r"[A-Za-z0-9+/=_~-]{17,}")


def _leak(seen: Exchange, text: str, where: str) -> str | None:
    party = seen.party
    private = {MARK, *seen.tokens(), *(party.credentials if party else ())}
    private |= {one.token for one in seen.memory.minted}
    for one in seen.evidence:
        private.update(one.text.split(".")[1:] if one.scheme == JWT else _WORD.findall(one.text))
    found = [value for value in private if len(value) > 16 and value in text]
    return f"{len(found)} secrets are in {where}" if found else None
