"""What can be said about a card: which signatures count, and what they do not protect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from pushkit.bounded_json import JsonObject
from pushkit.cards.canonical import CardForm
from pushkit.cards.projection import Uncovered, pointer
from pushkit.cards.trust import TrustedKey, TrustedKeys
from pushkit.errors import CardRefusedError
from pushkit.keys.jwk import Algorithm

__all__ = ["CardVerdict", "Coverage", "FieldCoverage", "SignatureVerdict", "coverage", "listed"]

_LISTED: Final = 10
_LISTED_CHARACTERS: Final = 80


class Coverage(StrEnum):
    """How much of a field is signed."""

    WHOLE = "whole"
    PART = "part"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldCoverage:
    """A member of the card, or a part of one that is not signed.

    Attributes:
        path: JSON Pointer.
        coverage: How much of it is signed.
        reason: Why not all of it, for people.
    """

    path: str
    coverage: Coverage
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureVerdict:
    """What became of one signature.

    Attributes:
        accepted: It holds, and counts.
        reason: Why not; empty if accepted.
        kid: The `kid` that its header names, proven or not.
        jku: The `jku` that its header names. Never fetched.
        algorithm: The `alg` that its header names.
        key: The trusted key that it holds under; None if it does not hold.
        form: The canonical form that it holds in; None if it does not hold.
        forms: Every form that it holds in: of one that states none, several may be the same bytes.
        stated: Its header states the form, which is then the only one that was tried.
        uncovered: What of the card that form leaves out.
        payload: The bytes that are signed; empty if it does not hold.
        notes: What is unusual about its header.
    """

    accepted: bool
    reason: str = ""
    kid: str | None = None
    jku: str | None = None
    algorithm: Algorithm | None = None
    key: TrustedKey | None = None
    form: CardForm | None = None
    forms: tuple[CardForm, ...] = ()
    stated: bool = False
    uncovered: tuple[Uncovered, ...] = ()
    payload: bytes = field(default=b"", repr=False)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CardVerdict:
    """What can be said about a card.

    Attributes:
        verified: At least one signature counts.
        reason: Why none does; empty if verified.
        card: The card as served, covered or not.
        signatures: Each signature, in the card's order.
        best: The signature that the verdict rests on: the one that counts and covers the most; if
            none counts, one that holds; None if none holds.
        fields: Which members `best` covers.
        warnings: What a reader should know although the card is verified.
        trusted: The keys and JWK Set URLs that the operator trusts for this card's origin.
    """

    verified: bool
    reason: str
    card: JsonObject = field(repr=False)
    signatures: tuple[SignatureVerdict, ...]
    best: SignatureVerdict | None
    fields: tuple[FieldCoverage, ...]
    warnings: tuple[str, ...]
    trusted: TrustedKeys

    @property
    def uncovered(self) -> tuple[Uncovered, ...]:
        """What of the card `best` leaves out; if nothing holds, nothing is covered at all."""
        return self.best.uncovered if self.best else ()

    @property
    def jwks_url(self) -> str | None:
        """Where the signer publishes its keys, of a verified card, if that URL is a trusted one.

        The trusted URL that the key came from; for a pinned key, the `jku` that it signed, provided
        that this is a trusted URL too. A `jku` that is not, is in `best.jku` and proves nothing.
        """
        if not self.verified or self.best is None or self.best.key is None:
            return None
        announced = self.best.jku if self.best.jku in self.trusted.jwks_urls else None
        return self.best.key.jwks_url or announced

    def require(self) -> CardVerdict:
        """Return the verdict of a verified card.

        Raises:
            CardRefusedError: The card is not verified.
        """
        if not self.verified:
            raise CardRefusedError(self.reason)
        return self


def listed(paths: Sequence[str]) -> str:
    """Return paths for a message: their names are a stranger's, and may be many and odd."""
    shown = [ascii(path)[1:-1][:_LISTED_CHARACTERS] for path in paths[:_LISTED]]
    more = len(paths) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def coverage(card: JsonObject, best: SignatureVerdict | None) -> list[FieldCoverage]:
    """Return the members of a card, and the parts of them that a signature does not protect."""
    rows: list[FieldCoverage] = []
    left = list(best.uncovered) if best else []
    for member in card:
        if member == "signatures":
            continue
        path = pointer("", member)
        inside = [entry for entry in left if entry.path == path or _is_inside(entry.path, path)]
        whole = next((entry for entry in inside if entry.path == path), None)
        if best is None or whole is not None:
            reason = whole.reason if whole else "no signature holds"
            rows.append(FieldCoverage(path=path, coverage=Coverage.NONE, reason=reason))
            continue
        rows.append(FieldCoverage(path=path, coverage=Coverage.PART if inside else Coverage.WHOLE))
        rows += [_missing(entry) for entry in inside]
    known = {row.path for row in rows}
    return rows + [_missing(entry) for entry in left if entry.path not in known]


def _is_inside(path: str, parent: str) -> bool:
    return path.startswith(f"{parent}/")


def _missing(entry: Uncovered) -> FieldCoverage:
    return FieldCoverage(path=entry.path, coverage=Coverage.NONE, reason=entry.reason)
