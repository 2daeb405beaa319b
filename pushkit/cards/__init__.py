"""Agent cards: signed so that every SDK accepts them, and verified so that one knows what holds.

Names are loaded when they are asked for. To sign and to verify loads no library for a network; what
fetches or serves does.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pushkit.cards.forms import Canonical, CardForm, canonicalize
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
    from pushkit.cards.signing import EVERY_SDK, SignedCard, sign_card, sign_card_with
    from pushkit.cards.trust import OriginTrust, TrustedKey, TrustedKeys
    from pushkit.cards.trust_file import load_card_trust, load_public_keys
    from pushkit.cards.verdict import (
        CardVerdict,
        Coverage,
        Decision,
        FieldCoverage,
        SignatureVerdict,
    )
    from pushkit.cards.verify import FULL_COVERAGE, CardPolicy, verify_card
    from pushkit.cards.walks import Gap, Omission, Uncovered

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

_HOMES = {
    "pushkit.cards.forms": "Canonical CardForm canonicalize",
    "pushkit.cards.origins": "CardTrust",
    "pushkit.cards.publishing": "CARD_PATH LEGACY_CARD_PATH CardPublisher CardResponse",
    "pushkit.cards.registry": "CardCheck CardOutcome CardSummary card_url fetch_card verify_cards",
    "pushkit.cards.signing": "EVERY_SDK SignedCard sign_card sign_card_with",
    "pushkit.cards.trust": "OriginTrust TrustedKey TrustedKeys",
    "pushkit.cards.trust_file": "load_card_trust load_public_keys",
    "pushkit.cards.verdict": "CardVerdict Coverage Decision FieldCoverage SignatureVerdict",
    "pushkit.cards.verify": "FULL_COVERAGE CardPolicy verify_card",
    "pushkit.cards.walks": "Gap Omission Uncovered",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return found


def __dir__() -> list[str]:
    return __all__
