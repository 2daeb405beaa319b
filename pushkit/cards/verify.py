"""Verifies agent cards (A2A 1.0 §8.4.3); the steps are numbered in the code, in their order.

One signature that counts is enough; malformed ones beside it do no harm. Decisions are codes; only
the verdicts make the sentences for people from them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple, Self

from pushkit.bounded_json import JsonObject, JsonValue, json_pointer
from pushkit.cards.document import CardSignature, read_card, read_signatures
from pushkit.cards.forms import FORMS, Canonical, CardForm, Gap, Uncovered, canonicalize
from pushkit.cards.trust import TrustedKey, TrustedKeys
from pushkit.errors import (
    CanonicalizationError,
    CardRefusedError,
    ConfigError,
    InvalidSignatureError,
)
from pushkit.keys.jwk import Algorithm, thumbprint
from pushkit.record import field, record
from pushkit.signing.jose import find_verifying_key
from pushkit.url import masked_url

_MAX_TRIES: Final = 64
_THUMBPRINT: Final = re.compile(r"[\w-]{43}", re.ASCII)
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
    left: dict[str, FieldCoverage] = {}
    for entry in best.uncovered if best else ():
        # What repeats signed members cannot be changed without breaking signature or equality.
        found = Coverage.WHOLE if entry.gap is Gap.COPIED else Coverage.NONE
        left[entry.path] = FieldCoverage(entry.path, found, entry.reason)
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


class CardPolicy(NamedTuple):
    """Which signatures count."""

    # Forms that count whatever they leave out. Other forms count only if all that they leave out is
    # tolerated (see `Form.tolerates`).
    admit: frozenset[CardForm] = frozenset()

    def decide(self, canonical: Canonical) -> tuple[Decision, str]:
        """Return the decision about a signature that is valid in a form, and its detail."""
        if canonical.form in self.admit:
            return Decision.ACCEPTED, ""
        tolerated = FORMS[canonical.form].tolerates
        if tolerated is None:
            return Decision.FORM_NOT_ADMITTED, ""
        left = [entry.path for entry in canonical.uncovered if entry.gap not in tolerated]
        return (Decision.NOT_COVERED, listed(left)) if left else (Decision.ACCEPTED, "")


# A signature in any form, including those of SDKs, counts if it covers all that matters.
FULL_COVERAGE: Final = CardPolicy()


def verify_card(
    card: bytes | Mapping[str, JsonValue],
    trust: TrustedKeys,
    *,
    now: datetime,
    policy: CardPolicy = FULL_COVERAGE,
) -> CardVerdict:
    """Verify a card with the keys that are trusted for its origin, see `CardTrust.keys_for`.

    Pass the card as it was served, in bytes, so that duplicate members are detected.

    Raises:
        MalformedCardError: The card is not JSON within the limits, or `signatures` is not a list of
            at most 16 entries.
        ConfigError: `now` has no time zone.
    """
    # Otherwise it would fail only once a key has a date, at its revocation for example.
    if now.utcoffset() is None:
        raise ConfigError(f"verify_card: now is {now.isoformat()}, expected a time with a zone")
    # 1. The card is JSON within limits, without duplicate members.
    document = read_card(card)
    # 2. Its signatures are a list of at most 16; each is judged on its own.
    entries = read_signatures(document)
    verifier = _Verifier(document, trust, now, policy)
    signatures = tuple(map(verifier.verdict, entries))
    holding = [entry for entry in signatures if entry.form is not None]
    best = min(holding, key=_rank, default=None)
    return CardVerdict(
        card=document,
        signatures=signatures,
        best=best,
        fields=tuple(coverage(document, best)),
        trusted=trust,
    )


class _RefusedError(Exception):
    """A signature fails a step. The arguments are the decision and its detail."""


@record(frozen=False, slots=True)
class _Verifier:
    """Verifies the signatures of one card; makes each canonical form once, when it is needed."""

    _card: JsonObject
    _trust: TrustedKeys
    _now: datetime
    _policy: CardPolicy
    _tries: int = 0
    _made: dict[CardForm, Canonical | None] = field(default_factory=dict)

    def verdict(self, signature: CardSignature | InvalidSignatureError) -> SignatureVerdict:
        # 3. The header is understood (RFC 7515 §4.1.11) and names an algorithm.
        if isinstance(signature, InvalidSignatureError):
            return SignatureVerdict(decision=Decision.MALFORMED, detail=str(signature))
        verdict = partial(
            SignatureVerdict, kid=signature.kid, jku=signature.jku, algorithm=signature.algorithm
        )
        try:
            found = self._valid_forms(signature, self._usable_keys(signature))
        except _RefusedError as refusal:
            decision, detail = refusal.args
            return verdict(decision=decision, detail=detail, notes=signature.notes)
        except InvalidSignatureError as exc:
            return verdict(decision=Decision.MALFORMED, detail=str(exc), notes=signature.notes)
        # 8. The form is admitted, or leaves out nothing that matters.
        decided = [(*self._policy.decide(canonical), canonical, key) for canonical, key in found]
        accepted = (entry for entry in decided if entry[0] is Decision.ACCEPTED)
        decision, detail, canonical, key = next(accepted, decided[0])
        notes = list(signature.notes)
        if signature.jku not in (None, *self._trust.jwks_urls):
            notes.append("its `jku` is not a trusted URL; it was ignored and not fetched")
        return verdict(
            decision=decision,
            detail=detail,
            key=key,
            form=canonical.form,
            forms=tuple(canonical.form for canonical, _ in found),
            stated=signature.form is not None,
            uncovered=canonical.uncovered,
            payload=canonical.payload,
            notes=tuple(notes),
        )

    def _usable_keys(self, signature: CardSignature) -> list[TrustedKey]:
        # 4. It is by a key that the operator trusts; `kid` and `jku` are hints.
        candidates = self._trust.candidates(signature.kid, signature.jku)
        if not candidates:
            raise _RefusedError(Decision.NO_TRUSTED_KEY, "")
        # 5. Its header names the algorithm of the key (RFC 8725 §3.1), which alone decides.
        fitting = [entry for entry in candidates if entry.key.algorithm is signature.algorithm]
        if not fitting:
            raise _RefusedError(Decision.OTHER_ALGORITHM, "")
        # 6. The key is neither expired nor revoked.
        objections = [entry.objection(self._now) for entry in fitting]
        usable = [e for e, objection in zip(fitting, objections, strict=True) if objection is None]
        if not usable:
            raise _RefusedError(Decision.KEY_NOT_VALID, "; ".join(filter(None, objections)))
        # Bounds the work for a hostile card: signatures without a known `kid`, each tried with
        # every key in every form.
        self._tries += len(usable) if len(usable) > 1 else 0
        if self._tries > _MAX_TRIES and len(usable) > 1:
            raise _RefusedError(Decision.TOO_MANY_KEYS, "")
        return usable

    def _valid_forms(
        self, signature: CardSignature, keys: list[TrustedKey]
    ) -> list[tuple[Canonical, TrustedKey]]:
        """Return the forms in which a signature is valid; several may have the same bytes."""
        # 7. It is valid in the form that it states, or in any form if it states none, as with SDKs.
        # No form but the stated one is tried: in another, the same bytes may be a weaker card.
        named = CardForm if signature.form is None else [signature.form]
        forms = [made for form in named if (made := self._canonical(form)) is not None]
        entries = {entry.key: entry for entry in keys}
        payloads = {canonical.payload for canonical in forms}
        signers = {data: find_verifying_key(signature.jws, data, entries) for data in payloads}
        found = [(form, entries[key]) for form in forms if (key := signers[form.payload])]
        if not found:
            raise _RefusedError(Decision.DOES_NOT_HOLD, _why_invalid(signature, keys))
        return found

    def _canonical(self, form: CardForm) -> Canonical | None:
        if form not in self._made:
            self._made[form] = None
            with contextlib.suppress(CanonicalizationError):
                self._made[form] = canonicalize(self._card, form)
        return self._made[form]


def _why_invalid(signature: CardSignature, keys: list[TrustedKey]) -> str:
    """Return the keys and forms that were tried, and what probably happened to the card."""
    forms = f"the form {signature.form}, which it states" if signature.form else "any form"
    changed = "the card was changed after it was signed"
    other_key = "it was signed with another key"
    if signature.kid in {entry.key.kid for entry in keys}:
        form = "" if signature.form else ", or in a form that is not known"
        return (
            f"the trusted key with its `kid`, in {forms}: {changed}, or signed by another key under"
            f" this `kid`{form}"
        )
    tried = "every trusted key"
    if signature.kid is not None:
        tried += ", none of which has its `kid`"
    # A key from a PEM has its thumbprint as `kid`, which the signer may have named otherwise.
    unnamed = any(entry.key.kid == thumbprint(entry.key.public_key) for entry in keys)
    if signature.kid is None or (unnamed and not _THUMBPRINT.fullmatch(signature.kid)):
        hint = "; to know, give a JWK Set, or the PEM's `kid` in a trust file" if unnamed else ""
        return f"{tried}, in {forms}: {other_key}, or {changed}{hint}"
    return f"{tried}, in {forms}: {other_key}"


def _rank(entry: SignatureVerdict) -> tuple[bool, int, int, bool]:
    """Return a sort key for valid signatures: the first one counts and covers the most."""
    gaps = [left.gap for left in entry.uncovered]
    return not entry.accepted, gaps.count(Gap.CONTENT), len(gaps), bool(entry.doubt)
