"""Verifying an agent card (A2A 1.0 §8.4.3), strictly unless the operator admits weaker forms.

1. The card is JSON within limits, without duplicate members.
2. Its signatures are a list; each one on its own:
3. has a header that is understood (RFC 7515 §4.1.11), and says how it was signed;
4. is held against the keys that the operator trusts, `kid` and `jku` being hints,
5. whose own algorithm it names,
6. which are neither expired nor revoked,
7. in the canonical form that it states, or if it states none, as SDKs do, in every one;
8. and counts if that form is admitted, or leaves out nothing that matters.

One signature that counts is enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.cards.canonical import Canonical, CardForm, canonicalize
from pushkit.cards.document import CardSignature, read_card, read_signatures
from pushkit.cards.projection import Gap
from pushkit.cards.trust import TrustedKey, TrustedKeys
from pushkit.cards.verdict import CardVerdict, SignatureVerdict, coverage, listed
from pushkit.errors import CanonicalizationError, InvalidSignatureError
from pushkit.keys.jwk import VerificationKey
from pushkit.signing.jose import holding_key

__all__ = ["STRICT", "CardPolicy", "verify_card"]

# What each form may leave out and still count without being admitted. The specification itself has
# unknown members ignored (§8.4.1); the other forms leave out more than it says, and get no such
# benefit.
_TOLERATED: Final[Mapping[CardForm, frozenset[Gap]]] = {
    CardForm.SPEC: frozenset({Gap.EMPTY, Gap.UNKNOWN}),
    CardForm.SPEC_WITH_DEFAULTS: frozenset({Gap.EMPTY, Gap.ABSENT, Gap.UNKNOWN}),
    CardForm.RAW: frozenset(),
    CardForm.SDK: frozenset({Gap.EMPTY}),
}
_WARNED: Final = frozenset({Gap.UNKNOWN, Gap.CONTENT})
_MAX_TRIES: Final = 64
_SPECIFIED: Final = frozenset({CardForm.SPEC, CardForm.SPEC_WITH_DEFAULTS, CardForm.RAW})


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPolicy:
    """Which signatures count.

    Attributes:
        admit: Forms that count whatever they leave out. Without any: `spec` and `raw`, and `sdk`
            where it covers everything that is not empty.
    """

    admit: frozenset[CardForm] = frozenset()

    def objection(self, canonical: Canonical) -> str | None:
        """Return why a form does not count for a card; None if it does."""
        if canonical.form in self.admit:
            return None
        tolerated = _TOLERATED.get(canonical.form)
        if tolerated is None:
            return f"it holds in the form {canonical.form}, which is not admitted"
        left = [entry.path for entry in canonical.uncovered if entry.gap not in tolerated]
        if left:
            return f"it holds in the form {canonical.form}, and does not cover {listed(left)}"
        return None


STRICT: Final = CardPolicy()


def verify_card(
    card: bytes | Mapping[str, JsonValue],
    trust: TrustedKeys,
    *,
    now: datetime,
    policy: CardPolicy = STRICT,
) -> CardVerdict:
    """Verify a card against the keys that are trusted for its origin.

    Args:
        card: The card as served; bytes, so that duplicate members are seen.
        trust: The operator's keys for the card's origin; see `CardTrust.keys_for`.
        now: The present, aware.
        policy: Which signatures count.

    Raises:
        MalformedCardError: The card is not JSON within the limits, or its signatures are no list.
    """
    document = read_card(card)
    verifier = _Verifier(document, trust, now, policy)
    signatures = tuple(map(verifier.verdict, read_signatures(document)))
    best = _best(signatures)
    verified = best is not None and best.accepted
    return CardVerdict(
        verified=verified,
        reason="" if verified else _refusal(signatures, trust),
        card=document,
        signatures=signatures,
        best=best,
        fields=tuple(coverage(document, best)),
        warnings=tuple(verifier.warnings(best)),
        trusted=trust,
    )


class _Verifier:
    """One card; each canonical form is made once, and only when a signature needs it."""

    def __init__(
        self, card: JsonObject, trust: TrustedKeys, now: datetime, policy: CardPolicy
    ) -> None:
        self._card = card
        self._trust = trust
        self._now = now
        self._policy = policy
        self._forms: list[Canonical] | None = None
        self._tries = 0

    def verdict(self, signature: CardSignature | InvalidSignatureError) -> SignatureVerdict:
        if isinstance(signature, InvalidSignatureError):
            return SignatureVerdict(accepted=False, reason=str(signature))
        try:
            return self._judge(signature, self._usable_keys(signature))
        except InvalidSignatureError as exc:
            return _refused(signature, str(exc))

    def _usable_keys(self, signature: CardSignature) -> list[TrustedKey]:
        candidates = self._trust.candidates(signature.kid, signature.jku)
        if not candidates:
            raise InvalidSignatureError("no key is trusted for this card")
        # RFC 8725 §3.1: the key says which algorithm it is for; the header only may agree.
        fitting = [entry for entry in candidates if entry.key.algorithm is signature.algorithm]
        if not fitting:
            raise InvalidSignatureError(f"no trusted key is for {signature.algorithm}")
        objections = [entry.objection(self._now) for entry in fitting]
        usable = [e for e, objection in zip(fitting, objections, strict=True) if objection is None]
        if not usable:
            raise InvalidSignatureError("; ".join(filter(None, objections)))
        if len(usable) > 1:
            self._spend(len(usable))
        return usable

    def _spend(self, tries: int) -> None:
        # Signatures that name no known key, times keys, times forms: hostile cards make it a lot.
        self._tries += tries
        if self._tries > _MAX_TRIES:
            raise InvalidSignatureError("its `kid` names no trusted key, and there are too many")

    def _judge(self, signature: CardSignature, keys: list[TrustedKey]) -> SignatureVerdict:
        found = self._held(signature, keys)
        if not found:
            forms = f"the form {signature.form}, which it states" if signature.form else "any form"
            return _refused(signature, f"it does not hold under any trusted key, in {forms}")
        objections = [self._policy.objection(canonical) for canonical, _ in found]
        chosen = objections.index(None) if None in objections else 0
        canonical, key = found[chosen]
        return SignatureVerdict(
            accepted=objections[chosen] is None,
            reason=objections[chosen] or "",
            kid=signature.kid,
            jku=signature.jku,
            algorithm=signature.algorithm,
            key=key,
            form=canonical.form,
            forms=tuple(canonical.form for canonical, _ in found),
            stated=signature.form is not None,
            uncovered=canonical.uncovered,
            payload=canonical.payload,
            notes=(*signature.notes, *self._jku_notes(signature)),
        )

    def _held(
        self, signature: CardSignature, keys: list[TrustedKey]
    ) -> list[tuple[Canonical, TrustedKey]]:
        """Return the forms in which a signature holds; several may be the same bytes."""
        entries = {entry.key: entry for entry in keys}
        tried: dict[bytes, VerificationKey | None] = {}
        # Never in another form than it states: the same bytes may be a weaker card in that one.
        forms = [c for c in self._canonical() if signature.form in (None, c.form)]
        for canonical in forms:
            if canonical.payload not in tried:
                tried[canonical.payload] = holding_key(signature.jws, canonical.payload, entries)
        held = ((canonical, tried[canonical.payload]) for canonical in forms)
        return [(canonical, entries[key]) for canonical, key in held if key is not None]

    def _canonical(self) -> list[Canonical]:
        if self._forms is None:
            found = (_canonical_or_none(self._card, form) for form in CardForm)
            self._forms = [canonical for canonical in found if canonical is not None]
        return self._forms

    def _jku_notes(self, signature: CardSignature) -> list[str]:
        if signature.jku is None or signature.jku in self._trust.jwks_urls:
            return []
        return ["its `jku` is not a trusted URL; it was not fetched, and had no say"]

    def warnings(self, best: SignatureVerdict | None) -> list[str]:
        if best is None:
            return []
        found = [f"keys from {url} could not be had" for url in self._trust.unavailable]
        if left := [entry.path for entry in best.uncovered if entry.gap in _WARNED]:
            found.append(f"not covered: {listed(left)}")
        if doubt := _doubt(best):
            found.append(doubt)
        return [*found, *best.notes]


def _canonical_or_none(card: JsonObject, form: CardForm) -> Canonical | None:
    try:
        return canonicalize(card, form)
    except CanonicalizationError:
        return None


def _refused(signature: CardSignature, reason: str) -> SignatureVerdict:
    return SignatureVerdict(
        accepted=False,
        reason=reason,
        kid=signature.kid,
        jku=signature.jku,
        algorithm=signature.algorithm,
        notes=signature.notes,
    )


def _doubt(best: SignatureVerdict) -> str | None:
    """Return what a signature cannot show that holds in a form which leaves out more."""
    weak = [form for form in best.forms if form not in _SPECIFIED]
    if not weak:
        return None
    lost = "empty values were added or taken away, among them security requirements without scopes"
    if CardForm.SDK_WITHOUT_SECURITY_SCHEMES in weak:
        lost += ", or security schemes"
    if len(best.forms) == 1:
        return f"the form {best.form} does not show whether {lost}"
    return (
        f"the signature does not state its form, and has the same bytes in {', '.join(best.forms)}:"
        f" it does not show whether {lost}"
    )


def _best(signatures: tuple[SignatureVerdict, ...]) -> SignatureVerdict | None:
    holding = [entry for entry in signatures if entry.form is not None]
    return min(
        holding, key=lambda e: (not e.accepted, _open(e), _doubt(e) is not None), default=None
    )


def _open(entry: SignatureVerdict) -> tuple[int, int]:
    gaps = [left.gap for left in entry.uncovered]
    return gaps.count(Gap.CONTENT), len(gaps)


def _refusal(signatures: tuple[SignatureVerdict, ...], trust: TrustedKeys) -> str:
    if not signatures:
        return "the card is not signed"
    lost = "".join(f"; keys from {url} could not be had" for url in trust.unavailable)
    return "; ".join(f"signature {n}: {e.reason}" for n, e in enumerate(signatures, 1)) + lost
