"""Fetching cards, and checking a list of them: for people who keep a directory of agents."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from pushkit.cards.document import MAX_CARD_BYTES
from pushkit.cards.origins import CardTrust
from pushkit.cards.publishing import CARD_PATH
from pushkit.cards.verdict import CardVerdict
from pushkit.cards.verify import FULL_COVERAGE, CardPolicy, verify_card
from pushkit.errors import CardUnavailableError, InvalidUrlError, PushkitError
from pushkit.net.transport import Transport
from pushkit.record import record
from pushkit.url import Url

_TIMEOUT: Final = timedelta(seconds=10)
_AT_ONCE: Final = 16


class CardOutcome(StrEnum):
    """What became of one card of a list."""

    VERIFIED = "verified"  # a signature counts
    REFUSED = "refused"  # it is signed, and no signature counts
    UNSIGNED = "unsigned"
    UNTRUSTED = "untrusted"  # nothing is trusted for its origin, so nothing can be said
    FAILED = "failed"  # it could not be fetched or read, or the keys for it could not be had


@record(frozen=True, slots=True, kw_only=True)
class CardCheck:
    """One card of a list."""

    url: str  # where the card is
    outcome: CardOutcome
    verdict: CardVerdict | None = None  # None if it could not be fetched or read
    reason: str = ""  # why it is not verified; empty if it is


@record(frozen=True, slots=True, kw_only=True)
class CardSummary:
    """A list of cards, checked, in the order that was given."""

    checks: tuple[CardCheck, ...]

    @property
    def counts(self) -> dict[CardOutcome, int]:
        """How many cards came to each outcome, zeros included."""
        found = Counter(check.outcome for check in self.checks)
        return {outcome: found[outcome] for outcome in CardOutcome}

    @property
    def all_verified(self) -> bool:
        """Whether there were cards, and each one is verified."""
        return bool(self.checks) and self.counts[CardOutcome.VERIFIED] == len(self.checks)


def card_url(url: str) -> str:
    """Return the URL of an agent's card: a URL without path gets the well-known one."""
    try:
        parsed = Url.parse(url)
    except InvalidUrlError:
        return url  # the destination policy will say what is wrong with it
    return f"{parsed.scheme}://{parsed.authority}{CARD_PATH}" if parsed.target == "/" else url


async def fetch_card(transport: Transport, url: str) -> bytes:
    """Get a card over HTTP, under the transport's destination policy. No redirect is followed.

    Raises:
        DestinationRefusedError: The policy refuses the URL.
        CardUnavailableError: Another status than 200, compressed, or longer than a card may be.
        TransportError: No answer.
    """
    answer = await transport.get_document(
        url,
        "application/json",
        timeout=_TIMEOUT,
        max_body_bytes=MAX_CARD_BYTES,
        error=CardUnavailableError,
    )
    if answer.status != 200:
        hint = "; redirects are not followed" if 300 <= answer.status < 400 else ""
        raise CardUnavailableError(f"expected HTTP status 200, found {answer.status}{hint}")
    return answer.body


async def verify_cards(
    urls: Iterable[str],
    trust: CardTrust,
    *,
    transport: Transport,
    now: datetime,
    policy: CardPolicy = FULL_COVERAGE,
) -> CardSummary:
    """Fetch and verify the cards of many agents, several at a time, under a destination policy.

    What goes wrong with one of them is that one's outcome, and stops no other. The URLs are those
    of cards, or of agents; what stands there twice is checked once.
    """
    slots = asyncio.Semaphore(_AT_ONCE)

    async def check(url: str) -> CardCheck:
        try:
            async with slots:
                card = await fetch_card(transport, url)
                keys = await trust.keys_for(url, card)
                # Seconds in the worst case: not on the loop that the other fetches need.
                verdict = await asyncio.to_thread(verify_card, card, keys, now=now, policy=policy)
        except PushkitError as exc:
            return CardCheck(url=url, outcome=CardOutcome.FAILED, reason=str(exc))
        outcome = _outcome(verdict, trusted=trust.knows(url))
        return CardCheck(url=url, outcome=outcome, verdict=verdict, reason=verdict.reason)

    checks = await asyncio.gather(*(check(card_url(url)) for url in dict.fromkeys(urls)))
    return CardSummary(checks=tuple(checks))


def _outcome(verdict: CardVerdict, *, trusted: bool) -> CardOutcome:
    if verdict.verified:
        return CardOutcome.VERIFIED
    if not verdict.signatures:
        return CardOutcome.UNSIGNED
    if not trusted:
        return CardOutcome.UNTRUSTED
    return CardOutcome.FAILED if verdict.trusted.unavailable else CardOutcome.REFUSED
