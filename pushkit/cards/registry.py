"""Fetches cards, and checks lists of them, for operators of a directory of agents."""

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
from pushkit.net.connection import unexpected_status
from pushkit.net.transport import Transport
from pushkit.record import record
from pushkit.url import Url

_TIMEOUT: Final = timedelta(seconds=10)
_AT_ONCE: Final = 16


class CardOutcome(StrEnum):
    """The result of checking one card of a list."""

    VERIFIED = "verified"  # a signature counts
    REFUSED = "refused"  # the card is signed, but no signature counts
    UNSIGNED = "unsigned"
    UNTRUSTED = "untrusted"  # no key is trusted for its origin
    FAILED = "failed"  # the card or the keys for it could not be fetched, or the card not read


@record(frozen=True, slots=True, kw_only=True)
class CardCheck:
    """The check of one card of a list."""

    url: str  # of the card
    outcome: CardOutcome
    verdict: CardVerdict | None = None  # None if it could not be fetched or read
    reason: str = ""  # why it is not verified; empty if it is


@record(frozen=True, slots=True, kw_only=True)
class CardSummary:
    """The checks of a list of cards, in the order given."""

    checks: tuple[CardCheck, ...]

    @property
    def counts(self) -> dict[CardOutcome, int]:
        """The number of cards with each outcome, including zeros."""
        found = Counter(check.outcome for check in self.checks)
        return {outcome: found[outcome] for outcome in CardOutcome}

    @property
    def all_verified(self) -> bool:
        """Whether there is at least one card, and all of them are verified."""
        return bool(self.checks) and self.counts[CardOutcome.VERIFIED] == len(self.checks)


def card_url(url: str) -> str:
    """Return the URL of an agent's card; a URL without a path gets the well-known path."""
    try:
        parsed = Url.parse(url)
    except InvalidUrlError:
        return url  # the destination policy reports what is wrong with it
    return f"{parsed.scheme}://{parsed.authority}{CARD_PATH}" if parsed.target == "/" else url


async def fetch_card(transport: Transport, url: str) -> bytes:
    """Fetch a card over HTTP, under the transport's destination policy, without redirects.

    Raises:
        DestinationRefusedError: The policy refuses the URL.
        CardUnavailableError: The status is not 200, or the body is compressed or too long.
        TransportError: There was no answer.
    """
    answer = await transport.get_document(
        url,
        "application/json",
        timeout=_TIMEOUT,
        max_body_bytes=MAX_CARD_BYTES,
        error=CardUnavailableError,
    )
    if answer.status != 200:
        raise CardUnavailableError(unexpected_status(answer.status))
    return answer.body


async def verify_cards(
    urls: Iterable[str],
    trust: CardTrust,
    *,
    now: datetime,
    policy: CardPolicy = FULL_COVERAGE,
) -> CardSummary:
    """Fetch and verify many cards, 16 at a time, with the transport of `trust`.

    An error with one card becomes the outcome of that card, and the others are still checked. The
    URLs are those of cards or of agents; duplicates are checked once.

    Raises:
        ConfigError: The trust has no transport.
    """
    transport = trust.transport
    slots = asyncio.Semaphore(_AT_ONCE)

    async def check(url: str) -> CardCheck:
        try:
            async with slots:
                card = await fetch_card(transport, url)
                keys = await trust.keys_for(url, card)
                # Verification may take seconds, so it must not block the other fetches.
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
