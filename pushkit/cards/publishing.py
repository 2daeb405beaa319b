"""An agent's own card as it is served: signed with the active key, and again on rotation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from pushkit.bounded_json import JsonValue
from pushkit.cards.canonical import CardForm
from pushkit.cards.document import read_card
from pushkit.cards.signing import SignedCard, sign_card
from pushkit.keys.jwks import etag_matches
from pushkit.keys.ring import KeyRing
from pushkit.keys.source import KeySource, key_source

__all__ = ["CARD_PATH", "LEGACY_CARD_PATH", "CardPublisher", "CardResponse"]

CARD_PATH: Final = "/.well-known/agent-card.json"  # A2A 1.0 §8.2, since 0.3
LEGACY_CARD_PATH: Final = "/.well-known/agent.json"  # up to 0.2

_DEFAULT_MAX_AGE: Final = timedelta(seconds=300)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardResponse:
    """The HTTP answer that a card is served with."""

    status: int
    headers: dict[str, str]
    body: bytes


class CardPublisher:
    """Signs a card when its key changes, and answers requests for it in between.

    Args:
        card: The card, as JSON or as a mapping.
        keys: A key ring, where one comes from, or the path of a key file, which is read again when
            it changes.
        forms: The canonical forms to sign in; see `sign_card`.
        jku: Where the keys are published.
        max_age: How long the answer may be cached; never longer than a key stays published after
            it stopped signing, lest a cached card outlives its key.
        passphrase: Of the key file.

    Raises:
        MalformedCardError: The card is not JSON within the limits.
        KeyFileError: The key file cannot be read.
    """

    def __init__(
        self,
        card: bytes | Mapping[str, JsonValue],
        keys: KeyRing | KeySource | str | Path,
        *,
        forms: Iterable[CardForm | str] | None = None,
        jku: str | None = None,
        max_age: timedelta = _DEFAULT_MAX_AGE,
        passphrase: bytes | None = None,
    ) -> None:
        self._card = read_card(card)
        self._keys = key_source(keys, passphrase)
        self._forms = None if forms is None else tuple(forms)
        self._jku = jku
        self._max_age = max_age
        self._signed: SignedCard | None = None

    def signed(self, now: datetime) -> SignedCard:
        """Return the card, signed with the key that is active.

        Raises:
            CanonicalizationError: The card has no such form.
            ConfigError: No form, or an unknown one.
            NoSigningKeyError: No key is active.
        """
        return self._with(self._keys.ring(), now)

    def response(self, now: datetime, if_none_match: str | None = None) -> CardResponse:
        """Answer a GET for the card (RFC 9110 §13.1.2, RFC 9111 §5.2.2).

        Args:
            now: The present.
            if_none_match: The request's `If-None-Match`, several joined with commas.

        Raises:
            PushkitError: See `signed`.
        """
        ring = self._keys.ring()
        signed = self._with(ring, now)
        tag = self._tag(signed)
        max_age = min(self._max_age, ring.grace)
        headers = {
            "Cache-Control": f"public, max-age={int(max_age.total_seconds())}",
            "ETag": f"W/{tag}",
        }
        if if_none_match is not None and etag_matches(if_none_match, tag):
            return CardResponse(status=304, headers=headers, body=b"")
        headers["Content-Type"] = "application/json"
        return CardResponse(status=200, headers=headers, body=signed.content)

    def _with(self, ring: KeyRing, now: datetime) -> SignedCard:
        # An ECDSA signature differs every time: signed once per key, or no cache would ever match.
        if self._signed is None or self._signed.kids != (ring.signing_key(now).kid,):
            self._signed = sign_card(self._card, ring, self._forms, now=now, jku=self._jku)
        return self._signed

    def _tag(self, signed: SignedCard) -> str:
        # Weak (RFC 9110 §8.8.1), over what is signed by whom: processes of one agent agree on it,
        # although their signatures are different bytes.
        parts = (self._card, signed.kids, signed.forms, self._jku)
        return f'"{hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]}"'
