"""Agent cards: signed so that every SDK accepts them, and verified so that one knows what holds.

To sign and to verify needs no network, and loads no library for one: what fetches or serves is
loaded when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from pushkit.cards.forms import Canonical, CardForm, canonicalize
from pushkit.cards.signing import EVERY_SDK, SignedCard, sign_card, sign_card_with
from pushkit.cards.trust import OriginTrust, TrustedKey, TrustedKeys
from pushkit.cards.trust_file import load_card_trust, load_public_keys
from pushkit.cards.verdict import CardVerdict, Coverage, Decision, FieldCoverage, SignatureVerdict
from pushkit.cards.verify import FULL_COVERAGE, CardPolicy, verify_card
from pushkit.cards.walks import Gap, Omission, Uncovered

if TYPE_CHECKING:
    from pushkit.cards.origins import CardTrust
    from pushkit.cards.publishing import CARD_PATH, LEGACY_CARD_PATH, CardPublisher, CardResponse
    from pushkit.cards.registry import (
        CardCheck,
        CardOutcome,
        CardSummary,
        card_url,
        fetch_card,
        verify_cards,
    )

__all__ = [
    "CARD_PATH",
    "EVERY_SDK",
    "FULL_COVERAGE",
    "LEGACY_CARD_PATH",
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
    "Decision",
    "FieldCoverage",
    "Gap",
    "Omission",
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

_LOADED_LATER = {
    "CARD_PATH": "publishing",
    "LEGACY_CARD_PATH": "publishing",
    "CardPublisher": "publishing",
    "CardResponse": "publishing",
    "CardTrust": "origins",
    "CardCheck": "registry",
    "CardOutcome": "registry",
    "CardSummary": "registry",
    "card_url": "registry",
    "fetch_card": "registry",
    "verify_cards": "registry",
}


def __getattr__(name: str) -> object:
    if name not in _LOADED_LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"{__name__}.{_LOADED_LATER[name]}")
    found = globals()[name] = getattr(home, name)
    return found
