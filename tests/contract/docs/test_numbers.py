"""The lifetimes that pages state are those of the code, and fit together."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pushkit import SenderOptions
from pushkit.clock import JWKS_MAX_AGE, TOKEN_LIFETIME, TOLERANCE
from pushkit.scheduling.retry import MAX_AGE
from receiver import InboxRetention, TrustedSender
from receiver.callbacks.dispatcher import CALLBACK_TIMEOUT
from receiver.settings.tables import SenderSettings
from tests.contract.docs.blocks import ROOT

LIFETIME = TOKEN_LIFETIME // timedelta(seconds=1)
APART = TOLERANCE // timedelta(seconds=1)
IDS = InboxRetention().ids // timedelta(hours=1)
TRIED = MAX_AGE // timedelta(hours=1)
FIVE = timedelta(minutes=5)


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("wire.md", f"`exp` {LIFETIME} s later"),
        ("wire.md", f"`iat` within ±{APART} s, `nbf` (if stated) at most {APART} s ahead"),
        ("wire.md", f"the body's hash for {IDS} hours"),
        ("wire.md", f"is given up {TRIED} h after"),
        ("receiving.md", f"remembered for {IDS} hours"),
        ("sending.md", f"no answer within {SenderOptions().timeout // timedelta(seconds=1)} s"),
        ("sending.md", f"up to {TRIED} h after"),
        ("sending.md", f"does not take within {TRIED} hours"),
    ],
)
def test_a_page_states_the_number_of_the_code(page: str, says: str) -> None:
    assert says in " ".join((ROOT / "docs" / page).read_text("utf-8").split())


@pytest.mark.parametrize(
    ("page", "says", "value"),
    [
        ("sending.md", "it lives five minutes", TOKEN_LIFETIME),
        ("keys.md", "`--max-age`, five minutes", JWKS_MAX_AGE),
        ("receiving.md", "longer than five minutes (`callback_timeout`)", CALLBACK_TIMEOUT),
    ],
)
def test_a_page_states_five_minutes_in_words(page: str, says: str, value: timedelta) -> None:
    assert says in " ".join((ROOT / "docs" / page).read_text("utf-8").split())
    assert value == FIVE


def test_ids_are_remembered_until_no_retry_can_come() -> None:
    assert InboxRetention().ids > MAX_AGE + SenderOptions().timeout + TOLERANCE


def test_a_sender_is_tolerated_alike_in_code_and_file() -> None:
    in_code = TrustedSender(name="a", issuer="i", keys=[]).tolerance
    in_file = SenderSettings.defaults()["tolerance_seconds"]
    assert in_code == TOLERANCE
    assert in_file == TOLERANCE // timedelta(seconds=1)
