"""Changes of what accompanies a signature: tokens, credentials, bodies, fields, raw bytes."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tests.verification.soak.fuzzing.changes_before import ODD
from tests.verification.soak.fuzzing.making import TOKEN_HEADERS, Draft, Request
from tests.verification.soak.fuzzing.parties import HTTP, parties

# Any octet but line ends, as latin-1: what an HTTP parser may hand on, or refuse.
OCTETS = "".join(chr(code) for code in range(256) if code not in (0, 10, 13))


# --- tokens and credentials ---------------------------------------------------------------------


def another_token(draft: Draft, chance: Random) -> None:
    others = [party.token for party in parties() if party.token and party is not draft.party]
    token = chance.choice([*others, draft.token[:-1], f"{draft.token}x", draft.token.upper(), "é"])
    for name in TOKEN_HEADERS[: chance.randint(1, 3)]:
        draft.put(name, token)


def no_token(draft: Draft, chance: Random) -> None:
    for name in TOKEN_HEADERS:
        draft.put(name, *chance.choice([[], [], [""]]))


def two_tokens(draft: Draft, chance: Random) -> None:
    others = ["", draft.token[:-1], f"{draft.token},{draft.token}"]
    draft.put(chance.choice(TOKEN_HEADERS), draft.token, chance.choice(others))


def one_spelling_of_the_token(draft: Draft, chance: Random) -> None:
    one = chance.choice(TOKEN_HEADERS)
    for name in TOKEN_HEADERS:
        draft.put(name, *([f" {draft.token}\t"] if name == one and draft.token else []))


def other_credentials(draft: Draft, chance: Random) -> None:
    others = [value for party in parties() for value in party.credentials]
    odd = ["Bearer", "Basic eDp5", "Bearer a.b.c", draft.credentials[:-1] or "Bearer x"]
    value = chance.choice([*others, *odd])
    if draft.party.credentials or draft.party.minted:
        draft.put("Authorization")
        draft.put("X-Api-Key", *chance.choice([[], ["static-api-key-2"], [""]]))
        draft.fields += [("Authorization", value)] if chance.random() < 0.7 else []


# --- bodies and fields --------------------------------------------------------------------------


def another_body_signed(draft: Draft, chance: Random) -> None:
    """Sign a body of any kind: of another version, of none, or no JSON."""
    task = draft.task
    status = {"state": chance.choice(["working", "completed", "TASK_STATE_WORKING", "x", 5])}
    shapes: list[Any] = [
        {"id": task, "contextId": "c", "kind": "task", "status": status},
        {"taskId": task, "state": "WORKING", "timestamp": "2026-01-01T00:00:00Z"},
        {"task": {"id": task, "contextId": "c", "status": status}},
        {"statusUpdate": {"taskId": task, "status": status}, "task": {"id": task}},
        {"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "t"}]}},
        {"artifactUpdate": {"taskId": task, "artifact": chance.choice(ODD)}},
        {"laterUpdate": {"taskId": task, "generation": chance.choice(ODD)}},
        {"laterUpdate": {"taskId": chance.choice(ODD)}, "x": chance.choice(ODD)},
        {"kind": "later", "taskId": task, "x": chance.choice(ODD)},
        {chance.choice(["kind", "task", "status"]): chance.choice(ODD)},
        chance.choice(ODD),
    ]
    written = json.dumps(chance.choice(shapes)).encode()
    raw = [b"", b"{", b"[" * 500, b'{"a": NaN}', b"\xff", b'{"task": {}, "task": {}}', b"0" * 70000]
    draft.body = written if chance.random() < 0.8 else chance.choice(raw)


def another_body_sent(draft: Draft, chance: Random) -> None:
    def change(request: Request) -> None:
        at, octet = chance.randrange(len(request.body) or 1), bytes([chance.randrange(256)])
        same_json = request.body.replace(b": ", b":")
        one_octet = request.body[:at] + octet + request.body[at + 1 :]
        request.body = chance.choice([one_octet, same_json, request.body + b" ", b"", b"{}"])

    draft.after.append(change)


FIELDS = [
    *(*TOKEN_HEADERS, "Authorization", "X-A2A-Signature", "X-Api-Key", "X-Event-Id"),
    *("webhook-id", "webhook-timestamp", "webhook-signature", "Signature", "Signature-Input"),
    *("Content-Digest", "Content-Type", "Content-Encoding", "Host", "Forwarded", "A2A-Version"),
]


def a_later_kind(draft: Draft, _: Random) -> None:
    if not (draft.party.id_field or "").startswith("/"):  # else its id is in the body
        draft.body = draft.body.replace(b'"statusUpdate"', b'"laterUpdate"', 1)


def another_version_stated(draft: Draft, chance: Random) -> None:
    draft.put(
        "A2A-Version", *chance.choice([[], ["0.1"], ["0.3"], ["1.1"], ["agentvault-0.2"], ["?"]])
    )


def any_field(draft: Draft, chance: Random) -> None:
    """Set, add or leave out a field, with any octets."""
    name, how = chance.choice(FIELDS), chance.choice(["put", "add", "drop"])
    length = chance.choice([0, 1, 8, 60, 60, 300])
    odd = "".join(chance.choices(OCTETS, k=length))
    value = chance.choice([odd, odd, "Bearer a.b.c", f"{draft.token},{draft.token}", "gzip", "1"])

    def change(request: Request) -> None:
        if how != "add":
            request.drop(name)
        if how != "drop":
            request.fields.append((name, value))

    draft.after.append(change)


def one_character(draft: Draft, chance: Random) -> None:
    """Change one character of a signature, or of what stands beside it."""

    def change(request: Request) -> None:
        index = chance.randrange(len(request.fields))
        name, value = request.fields[index]
        at, other = chance.randrange(len(value) or 1), chance.choice(OCTETS + "ABCabc019-_=. " * 5)
        request.fields[index] = (name, f"{value[:at]}{other}{value[at + 1 :]}")

    draft.after.append(change)


def to_another_target(draft: Draft, chance: Random) -> None:
    odd = ["/", "/nowhere", "/%00", "//", "/../", f"{draft.target}/", draft.target.upper(), "/é"]
    encoded = f"/%{ord(draft.target[1]):02x}{draft.target[2:]}"
    target = chance.choice([*odd, encoded, chance.choice(parties()).path])
    draft.after.append(lambda request: setattr(request, "target", target))


def harmless_fields(draft: Draft, chance: Random) -> None:
    kind = chance.choice(["application/json; charset=utf-8", "Application/JSON", None])
    draft.fields.append(("X-Anything", "é".encode("latin-1").decode("latin-1")))
    if HTTP not in draft.party.signs or kind:
        draft.put("Content-Type", *[kind] if kind else [])

    def change(request: Request) -> None:
        upper = chance.random() < 0.5
        request.fields = [(k.upper() if upper else k, v) for k, v in request.fields]
        chance.shuffle(request.fields)
        request.chunked = chance.random() < 0.5

    draft.after.append(change)


def no_http(draft: Draft, chance: Random) -> None:
    """Break the head, secrets and all; the body may go with it."""

    def wire(raw: bytes) -> bytes:
        # No colon: with one in its name a field is another one, and all of it is HTTP.
        at, octet = chance.randrange(len(raw)), bytes([chance.choice(b"\0\r\n \x7f\xff")])
        lines = raw.split(b"\r\n")
        place = chance.randrange(min(len(lines), 6))
        lines[place] = chance.choice([lines[place].replace(b":", b" "), b" " + lines[place]])
        return chance.choice([raw[:at] + octet + raw[at:], b"\r\n".join(lines)])

    draft.after.append(lambda request: setattr(request, "wire", wire))
