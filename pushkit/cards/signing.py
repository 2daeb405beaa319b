"""Signs agent cards (A2A 1.0 §8.4.2), in several forms, since verifiers expect different ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import datetime
from pathlib import PurePath
from typing import Final

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.cards.document import FORM, MAX_SIGNATURES, read_card, read_signatures
from pushkit.cards.forms import Canonical, CardForm, Gap, Omission, canonicalize
from pushkit.cards.older import is_older
from pushkit.cards.schema import CARD_1_0_AND_0_3, find_misfit
from pushkit.cards.verify import FULL_COVERAGE, Decision, listed
from pushkit.errors import (
    CanonicalizationError,
    ConfigError,
    InvalidSignatureError,
    InvalidUrlError,
    MalformedCardError,
)
from pushkit.keys.jwk import RemoteKey, RemoteSigner, SigningKey
from pushkit.keys.ring import KeyRing, RingKey
from pushkit.options import check_list, read_member
from pushkit.record import field, record
from pushkit.signing.jose import at_once, sign_detached
from pushkit.url import Url

# The verifiers of 1.x. a2a-go verifies the card as it is served, a2a-sdk's client after it mapped
# members of 0.2 and 0.3. The JavaScript SDK drops the security schemes before it verifies, and the
# first Python releases used Python's JSON: signatures for these two cover less, and no other
# verifier needs them.
EVERY_SDK: Final = (
    CardForm.SPEC,
    CardForm.RAW,
    CardForm.SDK,
    CardForm.PYTHON_CLIENT,
    CardForm.SDK_WITHOUT_SECURITY_SCHEMES,
    CardForm.PYTHON_ASCII,
)

# Members that no form of 1.0 has.
_NOT_1_0: Final = frozenset({Omission.OF_OTHER_VERSIONS, Omission.NOT_COPIED})


@record(frozen=True, slots=True, kw_only=True)
class SignedCard:
    """A signed card."""

    card: JsonObject = field(repr=False)  # signatures included
    forms: tuple[CardForm, ...]  # those signed; forms with the same bytes share one signature
    kids: tuple[str, ...]  # of the keys that signed
    warnings: tuple[str, ...] = ()  # parts of the card that a form does not cover, and the like

    @property
    def content(self) -> bytes:
        """The card as JSON, to be served."""
        return json.dumps(self.card, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def sign_card(
    card: bytes | Mapping[str, JsonValue],
    keys: KeyRing | SigningKey | Sequence[SigningKey],
    forms: Iterable[CardForm | str] | None = None,
    *,
    now: datetime,
    jku: str | None = None,
) -> SignedCard:
    """Sign a card with one signature per key and form; forms with the same bytes share one.

    Each signature states its form in its protected header (for a shared one, the strongest), which
    SDKs ignore. Signatures that the card already has of these keys are replaced, and with a ring
    also those of its former keys. Signatures of other keys stay.

    Args:
        card: The card, signed or not.
        keys: A ring signs with the key that is active now; of several keys, each one signs.
        forms: The canonical forms, see `docs/cards.md`. None: for a card of A2A 0.3 `raw`, and what
            a2a-sdk 0.3 and a2a-sdk's client of 1.x read; for others `spec`, `raw` if that is needed
            to cover everything, and what the SDKs read if all that it leaves out beyond `spec` are
            values that mean the same as their absence.
        now: The current time, in UTC.
        jku: Where the keys are published, for verifiers that trust this URL.

    Raises:
        MalformedCardError: The card is not JSON within the limits, has no `name`, or has a member
            of a wrong type, which the message names.
        CanonicalizationError: The card cannot be written in one of the forms; the message says why.
        ConfigError: No form, an unknown one, a `jku` that is no URL, or more signatures than a
            verifier reads; or a path in place of keys.
        NoSigningKeyError: The ring has no active key, or the key is in a service, which needs
            `sign_card_with`.
    """
    if isinstance(keys, KeyRing):
        return at_once(_signed(card, [keys.signing_key(now)], keys.keys, forms, jku))
    if isinstance(keys, str | bytes | PurePath):
        found = type(keys).__name__
        raise ConfigError(f"keys: found {found}, expected a KeyRing (load_key_ring) or SigningKeys")
    signers = [keys] if isinstance(keys, SigningKey) else list(keys)
    return at_once(_signed(card, signers, signers, forms, jku))


async def sign_card_with(
    card: bytes | Mapping[str, JsonValue],
    keys: KeyRing | SigningKey | RemoteKey | RemoteSigner,
    forms: Iterable[CardForm | str] | None = None,
    *,
    now: datetime,
    jku: str | None = None,
) -> SignedCard:
    """Sign a card as `sign_card` does, with a local key or one in a service (KMS, HSM).

    Raises:
        PushkitError: As `sign_card`.
        SigningError: The service did not sign, or its signature does not verify.
    """
    if isinstance(keys, KeyRing):
        return await _signed(card, [keys.active_key(now)], keys.keys, forms, jku)
    key = keys if isinstance(keys, SigningKey | RemoteKey) else RemoteKey.of(keys)
    return await _signed(card, [key], [key], forms, jku)


async def _signed(
    given: bytes | Mapping[str, JsonValue],
    signers: Sequence[SigningKey | RemoteKey],
    own_keys: Iterable[RingKey | SigningKey | RemoteKey],
    forms: Iterable[CardForm | str] | None,
    jku: str | None,
) -> SignedCard:
    card, warnings = read_card(given), list[str]()
    if "name" not in card:
        found = listed(sorted(card)) or "nothing"
        raise MalformedCardError(f"expected an agent card, which has a `name`; found {found}")
    if misfit := find_misfit(card, CARD_1_0_AND_0_3):
        raise MalformedCardError(f"the card: {misfit}")
    if forms is None:
        canonical, warnings = _default_forms(card)
    else:
        if isinstance(forms, str):  # each letter would be a form
            check_list("forms", forms)
        asked = dict.fromkeys(read_member("card form", form, CardForm) for form in forms)
        canonical = [_canonical(card, form) for form in asked]
    header: JsonObject = {"typ": "JOSE"}
    if jku is not None:
        try:
            Url.parse(jku)
        except InvalidUrlError as exc:
            raise ConfigError(f"sign_card: jku: {exc}") from exc
        header["jku"] = jku
    signatures: list[JsonValue] = []
    for key in signers:
        for payload, form in _strongest_forms(canonical).items():
            jws = await sign_detached(payload, {**header, FORM: form.value}, key)
            signatures.append({"protected": jws.protected, "signature": jws.signature})
    if not signatures:
        raise ConfigError("sign_card: expected at least one form and one key")
    entries = _kept_signatures(card, {key.kid for key in own_keys}) + signatures
    if len(entries) > MAX_SIGNATURES:
        raise ConfigError(f"sign_card: {len(entries)} signatures, expected up to {MAX_SIGNATURES}")
    return SignedCard(
        card={**card, "signatures": entries},
        forms=tuple(entry.form for entry in canonical),
        kids=tuple(key.kid for key in signers),
        warnings=(*warnings, *_warnings(card, canonical)),
    )


def _default_forms(card: JsonObject) -> tuple[list[Canonical], list[str]]:
    """Return the card in the default forms, and warnings about SDKs for which it has none."""
    if is_older(card):
        found = [_canonical(card, CardForm.RAW), _canonical(card, CardForm.PYTHON_0_3)]
        asked = [CardForm.PYTHON_CLIENT]
    else:
        found = [_canonical(card, CardForm.SPEC)]
        if not _counts(found[0]):
            found.append(_canonical(card, CardForm.RAW))
        asked = [CardForm.SDK, CardForm.PYTHON_CLIENT]
    made, warnings = dict[bytes, Canonical](), []
    for form in asked:
        try:
            entry = _canonical(card, form)
        except CanonicalizationError as exc:
            warnings.append(f"not signed for a2a-sdk: {exc}")
        else:
            made.setdefault(entry.payload, entry)
    for entry in made.values():
        # An attacker who strips the other signatures leaves this one. It may cover less by values
        # that mean the same as their absence, but not by, say, a security requirement.
        lost = [e.path for e in entry.uncovered if e.gap is Gap.CONTENT and e.why not in _NOT_1_0]
        if lost:
            sdks = "a2a-sdk" if entry.form is CardForm.PYTHON_CLIENT else "a2a-sdk and @a2a-js/sdk"
            warnings.append(
                f"not signed in the form {entry.form}, which would leave out {listed(lost)}: {sdks}"
                f" refuse the card; change these values, or ask for the form {entry.form} too"
            )
        else:
            found.append(entry)
    return found, warnings


def _counts(canonical: Canonical) -> bool:
    """Return whether a signature in a form covers all that matters, for verifiers like pushkit."""
    return FULL_COVERAGE.decide(canonical)[0] is Decision.ACCEPTED


def _strongest_forms(canonical: Sequence[Canonical]) -> dict[bytes, CardForm]:
    """Return the payloads to sign, each with the strongest of the forms that have these bytes."""
    forms = {entry.form: entry.payload for entry in canonical}
    stated: dict[bytes, CardForm] = {}
    for form in CardForm:
        if form in forms:
            stated.setdefault(forms[form], form)
    return stated


def _canonical(card: JsonObject, form: CardForm) -> Canonical:
    try:
        return canonicalize(card, form)
    except CanonicalizationError as exc:
        raise CanonicalizationError(f"form {form}: {exc}") from exc


def _kept_signatures(card: JsonObject, own_kids: Set[str]) -> list[JsonValue]:
    """Return the card's signatures of other keys, including those that cannot be read."""
    entries = card.get("signatures")
    if not isinstance(entries, list):
        return []
    pairs = zip(entries, read_signatures(card), strict=True)
    return [e for e, r in pairs if isinstance(r, InvalidSignatureError) or r.kid not in own_kids]


def _warnings(card: JsonObject, canonical: list[Canonical]) -> list[str]:
    parts: dict[tuple[CardForm, str], list[str]] = {}
    for entry in canonical:
        for left in entry.uncovered:
            if left.gap in (Gap.UNKNOWN, Gap.CONTENT):
                parts.setdefault((entry.form, left.reason), []).append(left.path)
    warnings = [
        f"{form} does not cover {listed(paths)}: {why}" for (form, why), paths in parts.items()
    ]
    if not any(map(_counts, canonical)):
        advice = "add the form raw"
        try:
            _canonical(card, CardForm.RAW)
        except CanonicalizationError as exc:
            advice = str(exc)
        warnings.append(
            "no form that it is signed in covers everything: pushkit and other strict verifiers"
            f" refuse it; {advice}"
        )
    if not is_older(card) and any(entry.form is CardForm.SPEC for entry in canonical):
        filled = canonicalize(card, CardForm.SPEC_WITH_DEFAULTS).uncovered
        if absent := [left.path for left in filled if left.gap is Gap.ABSENT]:
            warnings.append(
                f"required, but absent from the card: {listed(absent)}; add them, because some"
                " verifiers fill in a default, and then refuse the signature"
            )
    return warnings
