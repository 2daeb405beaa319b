"""One request and its answer, with everything that is known about them."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import dataclass, field
from urllib.parse import unquote

from tests.verification.soak.fuzzing.making import TOKEN_HEADERS, Evidence, Request
from tests.verification.soak.fuzzing.parties import HTTP, JWT, Party, parties

__all__ = [
    "Answer",
    "Exchange",
    "Memory",
    "Minted",
    "credentials_of",
    "exchange",
    "minted_for",
]


@dataclass(frozen=True)
class Answer:
    """The answer of a receiver."""

    status: int
    headers: str
    body: bytes

    @property
    def is_problem(self) -> bool:
        return "application/problem+json" in self.headers

    @property
    def code(self) -> str:
        if self.is_problem:
            return str(json.loads(self.body).get("code"))
        return {200: "duplicate", 202: "accepted"}.get(self.status, "")


@dataclass(kw_only=True)
class Minted:
    """A token of `expect()`: valid for one task, once that is known."""

    party: str
    token: str
    credentials: str = ""
    task: str | None = None
    withdrawn: bool = False


@dataclass
class Memory:
    """What a receiver has accepted, and the tokens that it has given out."""

    accepted: dict[tuple[str, str], str] = field(default_factory=dict)
    anonymous: int = 0
    minted: list[Minted] = field(default_factory=list)

    def of(self, party: Party) -> list[Minted]:
        return [one for one in self.minted if one.party == party.name]


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One request, its answer, what was logged meanwhile, and what was known before."""

    request: Request
    answer: Answer
    # The sender of the path, or of the key where two share a path; None for neither.
    party: Party | None
    evidence: tuple[Evidence, ...]  # all signatures in it
    log: tuple[str, ...]
    memory: Memory
    expected: str | None  # the code that a genuine request gets; None where only the oracles decide

    @property
    def accepted(self) -> bool:
        return self.answer.code == "accepted"

    def own(self, scheme: str) -> list[Evidence]:
        """Return the signatures of this kind that are by the party's own key."""
        found = [one for one in self.evidence if one.scheme == scheme]
        return [one for one in found if self.party is not None and one.by in keys_of(self.party)]

    def tokens(self) -> set[str]:
        return {value for name in TOKEN_HEADERS for value in self.request.all(name)}

    def credentials(self) -> set[str]:
        """Return what is presented beside the token, spelled alike."""
        found = [*self.request.all("Authorization")]
        found += [f"ApiKey {value}" for value in self.request.all("X-Api-Key")]
        return {credentials_of(value) for value in found}


def exchange(
    request: Request,
    answer: Answer,
    made: list[Evidence],
    *,
    log: list[str],
    memory: Memory,
    expected: str | None,
) -> Exchange:
    """Put together what is known of one request and its answer."""
    there = [party for party in parties() if party.path == unquote(request.path)]
    evidence = tuple(one for one in made if _carries(request, one))
    signers = {one.by for one in evidence}
    party = next((one for one in there if signers & keys_of(one)), there[0] if there else None)
    return Exchange(
        request=request,
        answer=answer,
        party=party,
        evidence=evidence,
        log=tuple(log),
        memory=memory,
        expected=expected,
    )


def keys_of(party: Party) -> set[str]:
    secret = party.secret if isinstance(party.secret, str | None) else party.secret.kid
    return {*party.key_ids, secret or ""} - {""}


def _carries(request: Request, evidence: Evidence) -> bool:
    if evidence.scheme == JWT:
        values = [*request.all("Authorization"), *request.all("X-A2A-Signature")]
        return any(value.split(" ")[-1] == evidence.text for value in values)
    if evidence.scheme == HTTP:
        written = ":".join(request.all("Signature")).split(":")
        return _bytes_of(evidence.text) in map(_bytes_of, written)
    words = [word for value in request.all("webhook-signature") for word in value.split(" ")]
    return evidence.text in words


def _bytes_of(base64: str) -> bytes | None:
    # Readers of structured fields are not to fail at other pad bits, or none (RFC 9651 §4.2.7).
    digits = base64.rstrip("=")
    try:
        return b64decode(digits + "=" * (-len(digits) % 4), validate=True)
    except ValueError:
        return None


def credentials_of(value: str) -> str:
    scheme, _, rest = value.partition(" ")
    return f"{scheme.lower()} {rest}" if rest else f"apikey {value}"


def minted_for(seen: Exchange) -> Minted | None:
    if seen.party is None:
        return None
    handed = seen.memory.of(seen.party)
    by_token = [one for one in handed if one.token in seen.tokens()]
    shown = seen.credentials()
    by_credentials = [one for one in handed if credentials_of(one.credentials) in shown]
    return next(iter([*by_token, *by_credentials]), None)
