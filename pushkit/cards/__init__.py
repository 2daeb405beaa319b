"""Agent cards: signed so that every SDK accepts them, and verified so that one knows what holds."""

from pushkit.cards.canonical import Canonical, CardForm, canonicalize
from pushkit.cards.projection import Gap, Uncovered
from pushkit.cards.publishing import CARD_PATH, LEGACY_CARD_PATH, CardPublisher, CardResponse
from pushkit.cards.registry import (
    CardCheck,
    CardOutcome,
    CardSummary,
    card_url,
    fetch_card,
    verify_cards,
)
from pushkit.cards.signing import EVERY_SDK, SignedCard, sign_card, sign_card_with
from pushkit.cards.trust import CardTrust, OriginTrust, TrustedKey, TrustedKeys
from pushkit.cards.trust_file import load_card_trust, load_public_keys
from pushkit.cards.verdict import CardVerdict, Coverage, FieldCoverage, SignatureVerdict
from pushkit.cards.verify import STRICT, CardPolicy, verify_card

__all__ = [
    "CARD_PATH",
    "EVERY_SDK",
    "LEGACY_CARD_PATH",
    "STRICT",
    "Canonical",
    "CardCheck",
    "CardForm",
    "CardOutcome",
    "CardPolicy",
    "CardPublisher",
    "CardResponse",
    "CardSummary",
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
    "card_url",
    "fetch_card",
    "load_card_trust",
    "load_public_keys",
    "sign_card",
    "sign_card_with",
    "verify_card",
    "verify_cards",
]
