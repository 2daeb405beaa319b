"""Agent cards: signing them for the verifiers of every SDK, and verifying them.

Names are imported on first use. Signing and verifying import no network library; fetching and
serving do.
"""

from typing import TYPE_CHECKING

from pushkit.lazy import names_on_demand

if TYPE_CHECKING:
    from pushkit.webhook import (  # noqa: I001 - a line for each would be thrice as long
        DocumentResponse as DocumentResponse,
    )
    from pushkit.cards.forms import (
        Canonical as Canonical,
        CardForm as CardForm,
        Gap as Gap,
        Omission as Omission,
        Uncovered as Uncovered,
        canonicalize as canonicalize,
    )
    from pushkit.cards.origins import (
        CardCheck as CardCheck,
        CardOutcome as CardOutcome,
        CardSummary as CardSummary,
        CardTrust as CardTrust,
        card_url as card_url,
        fetch_card as fetch_card,
        verify_cards as verify_cards,
    )
    from pushkit.cards.publishing import (
        CARD_PATH as CARD_PATH,
        LEGACY_CARD_PATH as LEGACY_CARD_PATH,
        CardPublisher as CardPublisher,
    )
    from pushkit.cards.signing import (
        EVERY_SDK as EVERY_SDK,
        SignedCard as SignedCard,
        sign_card as sign_card,
        sign_card_with as sign_card_with,
    )
    from pushkit.cards.trust import (
        OriginTrust as OriginTrust,
        TrustedKey as TrustedKey,
        TrustedKeys as TrustedKeys,
        load_card_trust as load_card_trust,
        load_public_keys as load_public_keys,
    )
    from pushkit.cards.verify import (
        FULL_COVERAGE as FULL_COVERAGE,
        CardPolicy as CardPolicy,
        CardVerdict as CardVerdict,
        Coverage as Coverage,
        Decision as Decision,
        FieldCoverage as FieldCoverage,
        SignatureVerdict as SignatureVerdict,
        verify_card as verify_card,
    )
else:
    __all__, __getattr__, __dir__ = names_on_demand(
        __name__,
        {
            "pushkit.webhook": "DocumentResponse",
            "pushkit.cards.forms": "Canonical CardForm Gap Omission Uncovered canonicalize",
            "pushkit.cards.origins": (
                "CardCheck CardOutcome CardSummary CardTrust card_url fetch_card verify_cards"
            ),
            "pushkit.cards.publishing": "CARD_PATH LEGACY_CARD_PATH CardPublisher",
            "pushkit.cards.signing": "EVERY_SDK SignedCard sign_card sign_card_with",
            "pushkit.cards.trust": (
                "OriginTrust TrustedKey TrustedKeys load_card_trust load_public_keys"
            ),
            "pushkit.cards.verify": (
                "FULL_COVERAGE CardPolicy CardVerdict Coverage Decision FieldCoverage"
                " SignatureVerdict verify_card"
            ),
        },
    )
