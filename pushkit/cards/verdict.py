"""The result of verifying a card: which signatures count, and what they do not protect.

Decisions are codes; this module alone makes the sentences for people from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Self

from pushkit.bounded_json import JsonObject, json_pointer
from pushkit.cards.forms import FORMS, CardForm
from pushkit.cards.trust import TrustedKey, TrustedKeys
from pushkit.cards.walks import Gap, Uncovered
from pushkit.errors import CardRefusedError
from pushkit.keys.jwk import Algorithm
from pushkit.record import field, record
from pushkit.url import masked_url

_LISTED: Final = 10
_LISTED_CHARACTERS: Final = 80
_WARNED: Final = frozenset({Gap.UNKNOWN, Gap.CONTENT})


class Decision(StrEnum):
    """The decision about a signature, in the order of the verification steps."""

    sentence: str  # why the signature does not count; empty if it does

    def __new__(cls, code: str, sentence: str) -> Self:
        """Create a member with its sentence."""
        member = str.__new__(cls, code)
        member._value_, member.sentence = code, sentence
        return member

    MALFORMED = "malformed", "{detail}"
    NO_TRUSTED_KEY = "no_trusted_key", "no key is trusted for this card"
    OTHER_ALGORITHM = "other_algorithm", "no trusted key is for {algorithm}"
    KEY_NOT_VALID = "key_not_valid", "{detail}"
    TOO_MANY_KEYS = "too_many_keys", "its `kid` names no trusted key, and there are too many to try"
    DOES_NOT_HOLD = "does_not_hold", "it is invalid under {detail}"
    FORM_NOT_ADMITTED = "form_not_admitted", "it is valid in the form {form}, which is not admitted"
    NOT_COVERED = "not_covered", "it is valid in the form {form}, but does not cover {detail}"
    ACCEPTED = "accepted", ""


class Coverage(StrEnum):
    """How much of a field is signed."""

    WHOLE = "whole"
    PART = "part"
    NONE = "none"


class FieldCoverage(NamedTuple):
    """How much of a member of the card is signed; also for each part that is not signed."""

    path: str  # JSON Pointer
    coverage: Coverage
    reason: str = ""  # why it is not signed, for people


@record(frozen=True, slots=True, kw_only=True)
class SignatureVerdict:
    """The result of verifying one signature."""

    decision: Decision
    detail: str = ""  # a detail of the decision, for people
    # From its header, proven or not; `jku` is never fetched.
    kid: str | None = None
    jku: str | None = None
    algorithm: Algorithm | None = None
    key: TrustedKey | None = None  # the trusted key that it is valid under; None if invalid
    form: CardForm | None = None  # the canonical form that it is valid in; None if invalid
    # Every form that it is valid in: several may have the same bytes, if it states none.
    forms: tuple[CardForm, ...] = ()
    stated: bool = False  # its header states the form, which is then the only one that was tried
    uncovered: tuple[Uncovered, ...] = ()  # the parts of the card that `form` leaves out
    payload: bytes = field(default=b"", repr=False)  # what is signed; empty if invalid
    notes: tuple[str, ...] = ()  # unusual properties of its header

    @property
    def accepted(self) -> bool:
        """Whether it is valid and counts."""
        return self.decision is Decision.ACCEPTED

    @property
    def reason(self) -> str:
        """Why it does not count, for people; empty if accepted."""
        facts = {"detail": self.detail, "algorithm": self.algorithm, "form": self.form}
        return self.decision.sentence.format_map(facts)

    @property
    def doubt(self) -> str:
        """Which changes to the card it would not show because of its form; empty for none."""
        hidden = [FORMS[form].hides for form in self.forms if FORMS[form].hides]
        if not hidden:
            return ""
        lost = max(hidden, key=len)
        if len(self.forms) == 1:
            return f"the form {self.form} does not show whether {lost}"
        return (
            f"the signature does not state its form, and has the same bytes in"
            f" {', '.join(self.forms)}: it does not show whether {lost}"
        )


@record(frozen=True, slots=True, kw_only=True)
class CardVerdict:
    """The result of verifying a card."""

    card: JsonObject = field(repr=False)  # as served, covered or not
    signatures: tuple[SignatureVerdict, ...]  # in the card's order
    # The signature that the verdict is based on: the one that counts and covers the most; if none
    # counts, a valid one; None if none is valid.
    best: SignatureVerdict | None
    fields: tuple[FieldCoverage, ...]  # which members `best` covers
    trusted: TrustedKeys  # for this card's origin

    @property
    def verified(self) -> bool:
        """Whether at least one signature counts."""
        return self.best is not None and self.best.accepted

    @property
    def reason(self) -> str:
        """Why no signature counts, for people; empty if verified."""
        if self.verified:
            return ""
        if not self.signatures:
            return "the card is not signed"
        each = (f"signature {n}: {entry.reason}" for n, entry in enumerate(self.signatures, 1))
        return "; ".join([*each, *self._unavailable()])

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader should know although a signature is valid."""
        if self.best is None:
            return ()
        left = [entry.path for entry in self.best.uncovered if entry.gap in _WARNED]
        warnings = [f"not covered: {listed(left)}" if left else "", self.best.doubt]
        return (*self._unavailable(), *filter(None, warnings), *self.best.notes)

    @property
    def uncovered(self) -> tuple[Uncovered, ...]:
        """The parts of the card that `best` leaves out; empty without `best`, which covers none."""
        return self.best.uncovered if self.best else ()

    @property
    def jwks_url(self) -> str | None:
        """The trusted URL where the signer of a verified card publishes its keys; None for none.

        It is the URL that the key was fetched from; for a pinned key, the signed `jku` if that is
        also a trusted URL. An untrusted `jku` is only in `best.jku`, and proves nothing.
        """
        if self.best is None or not self.best.accepted or self.best.key is None:
            return None
        announced = self.best.jku if self.best.jku in self.trusted.jwks_urls else None
        return self.best.key.jwks_url or announced

    def require(self) -> CardVerdict:
        """Return this verdict if the card is verified.

        Raises:
            CardRefusedError: The card is not verified.
        """
        if not self.verified:
            raise CardRefusedError(self.reason)
        return self

    def _unavailable(self) -> list[str]:
        return [
            f"keys from {masked_url(url)} could not be fetched" for url in self.trusted.unavailable
        ]


def listed(paths: Sequence[str]) -> str:
    """Return paths for a message, bounded and escaped, since they come from the card."""
    shown = [ascii(path)[1:-1][:_LISTED_CHARACTERS] for path in paths[:_LISTED]]
    more = len(paths) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def coverage(card: JsonObject, best: SignatureVerdict | None) -> list[FieldCoverage]:
    """Return the coverage of each member of a card, and of the parts that are not signed."""
    left = {entry.path: _coverage_of(entry) for entry in best.uncovered} if best else {}
    rows: dict[str, FieldCoverage] = {}
    for path in (json_pointer("", member) for member in card if member != "signatures"):
        if best is None:
            rows[path] = FieldCoverage(path, Coverage.NONE, "no signature is valid")
        elif path not in left:
            inside = {part: row for part, row in left.items() if part.startswith(f"{path}/")}
            is_whole = all(row.coverage is Coverage.WHOLE for row in inside.values())
            rows[path] = FieldCoverage(path, Coverage.WHOLE if is_whole else Coverage.PART)
            rows |= inside
        else:
            rows[path] = left[path]
    return list((rows | left).values())


def _coverage_of(left: Uncovered) -> FieldCoverage:
    # What repeats signed members cannot be changed without breaking the signature or the equality.
    coverage = Coverage.WHOLE if left.gap is Gap.COPIED else Coverage.NONE
    return FieldCoverage(left.path, coverage, left.reason)
