"""Agent cards: signed so that every SDK accepts them, and verified so that one knows what holds."""

from pushkit.cards.canonical import Canonical, CardForm, canonicalize
from pushkit.cards.projection import Gap, Uncovered
from pushkit.cards.signing import DEFAULT_FORMS, EVERY_SDK, SignedCard, sign_card
from pushkit.cards.trust import CardTrust, OriginTrust, TrustedKey, TrustedKeys
from pushkit.cards.verify import (
    STRICT,
    CardPolicy,
    CardVerdict,
    Coverage,
    FieldCoverage,
    SignatureVerdict,
    verify_card,
)

__all__ = [
    "DEFAULT_FORMS",
    "EVERY_SDK",
    "STRICT",
    "Canonical",
    "CardForm",
    "CardPolicy",
    "CardTrust",
    "CardVerdict",
    "Coverage",
    "FieldCoverage",
    "Gap",
    "OriginTrust",
    "SignatureVerdict",
    "SignedCard",
    "TrustedKey",
    "TrustedKeys",
    "Uncovered",
    "canonicalize",
    "sign_card",
    "verify_card",
]
