"""Verifies agent cards (A2A 1.0 §8.4.3); the steps are numbered in the code, in their order.

One signature that counts is enough; malformed ones beside it do no harm.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.cards.document import CardSignature, read_card, read_signatures
from pushkit.cards.forms import FORMS, Canonical, CardForm, canonicalize
from pushkit.cards.trust import TrustedKey, TrustedKeys
from pushkit.cards.verdict import CardVerdict, Decision, SignatureVerdict, coverage, listed
from pushkit.cards.walks import Gap
from pushkit.errors import CanonicalizationError, ConfigError, InvalidSignatureError
from pushkit.keys.jwk import VerificationKey, thumbprint
from pushkit.record import field, record
from pushkit.signing.jose import find_verifying_key

_MAX_TRIES: Final = 64
_THUMBPRINT: Final = re.compile(r"[\w-]{43}", re.ASCII)


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
        tried: dict[bytes, VerificationKey | None] = {}
        for canonical in forms:
            if canonical.payload not in tried:
                tried[canonical.payload] = find_verifying_key(
                    signature.jws, canonical.payload, entries
                )
        results = ((canonical, tried[canonical.payload]) for canonical in forms)
        found = [(canonical, entries[key]) for canonical, key in results if key is not None]
        if not found:
            stated = f"the form {signature.form}, which it states" if signature.form else "any form"
            detail = f"{_tried(signature, keys)}, in {stated}: {_cause(signature, keys)}"
            raise _RefusedError(Decision.DOES_NOT_HOLD, detail)
        return found

    def _canonical(self, form: CardForm) -> Canonical | None:
        if form not in self._made:
            self._made[form] = None
            with contextlib.suppress(CanonicalizationError):
                self._made[form] = canonicalize(self._card, form)
        return self._made[form]


def _tried(signature: CardSignature, keys: list[TrustedKey]) -> str:
    if signature.kid in {entry.key.kid for entry in keys}:
        return "the trusted key with its `kid`"
    tried = "every trusted key"
    return tried if signature.kid is None else f"{tried}, none of which has its `kid`"


def _cause(signature: CardSignature, keys: list[TrustedKey]) -> str:
    """Return what probably happened to a card whose signature is invalid."""
    changed, other_key = (
        "the card was changed after it was signed",
        "it was signed with another key",
    )
    if signature.kid in {entry.key.kid for entry in keys}:
        form = "" if signature.form else ", or in a form that is not known"
        return f"{changed}, or signed by another key under this `kid`{form}"
    # A key from a PEM has its thumbprint as `kid`, which the signer may have named otherwise.
    unnamed = any(entry.key.kid == thumbprint(entry.key.public_key) for entry in keys)
    if signature.kid is None or (unnamed and not _THUMBPRINT.fullmatch(signature.kid)):
        hint = "; to know, give a JWK Set, or the PEM's `kid` in a trust file" if unnamed else ""
        return f"{other_key}, or {changed}{hint}"
    return other_key


def _rank(entry: SignatureVerdict) -> tuple[bool, int, int, bool]:
    """Return a sort key for valid signatures: the first one counts and covers the most."""
    gaps = [left.gap for left in entry.uncovered]
    return not entry.accepted, gaps.count(Gap.CONTENT), len(gaps), bool(entry.doubt)
