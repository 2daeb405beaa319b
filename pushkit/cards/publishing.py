"""Serves an agent's own card, signed with the active key and signed again after a rotation."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from pushkit.bounded_json import JsonValue
from pushkit.cards.document import read_card
from pushkit.cards.forms import CardForm
from pushkit.cards.signing import SignedCard, sign_card_with
from pushkit.errors import SigningError
from pushkit.keys.files import KeySource, key_source
from pushkit.keys.jwk import RemoteSigner
from pushkit.keys.ring import KeyRing
from pushkit.scheduling.event_loop import LoopLock
from pushkit.scheduling.renewing import anew
from pushkit.webhook import DocumentResponse, document_response

CARD_PATH: Final = "/.well-known/agent-card.json"  # A2A 1.0 §8.2, since 0.3
LEGACY_CARD_PATH: Final = "/.well-known/agent.json"  # up to 0.2

_DEFAULT_MAX_AGE: Final = timedelta(seconds=300)
_SIGNING_SECONDS: Final = 10
_PAUSE_SECONDS: Final = 10  # after a failure

_logger = logging.getLogger(__name__)


class _Failure(NamedTuple):
    kid: str
    since: datetime  # when the attempt began
    lasted: int  # whole seconds
    error: SigningError


class CardPublisher:
    """Signs a card whenever the active key changes, and answers requests for it.

    Raises:
        MalformedCardError: The card is not JSON within the limits.
        KeyFileError: The key file cannot be read.
    """

    def __init__(
        self,
        card: bytes | Mapping[str, JsonValue],
        # A key ring, a source of one, the path of a key file (which is read again when it changes),
        # or a signer whose key is in a service.
        keys: KeyRing | KeySource | RemoteSigner | str | Path,
        *,
        forms: Iterable[CardForm | str] | None = None,  # to sign in; see `sign_card`
        jku: str | None = None,  # where the keys are published
        # How long the answer may be cached; at most as long as a key stays published after it
        # stopped signing, so that no cached card outlives its key.
        max_age: timedelta = _DEFAULT_MAX_AGE,
        passphrase: bytes | None = None,  # of the key file
    ) -> None:
        self._card = read_card(card)
        self._keys = key_source(keys, passphrase)
        self._forms = None if forms is None else tuple(forms)
        self._jku = jku
        self._max_age = max_age
        self._signed: SignedCard | None = None
        self._signing = LoopLock()
        self._failure: _Failure | None = None  # of the last attempt that failed

    async def signed(self, now: datetime) -> SignedCard:
        """Return the card, signed with the active key.

        If a service fails to sign, it is asked again after ten seconds. Meanwhile the card signed
        with the previous key is returned, as long as that key is published.

        Raises:
            SigningError: A service did not sign in time, and there is no previous card.
            CanonicalizationError: The card cannot be written in one of the forms.
            ConfigError: There is no form, or an unknown one.
            NoSigningKeyError: No key is active.
        """
        # Signed once per key: every ECDSA signature differs, so no cached copy would ever match.
        async with self._signing.here:
            ring = self._keys.ring()
            kid = ring.active_key(now).kid
            if self._signed is not None and self._signed.kids == (kid,):
                return self._signed
            failure = self._failure
            # Requests that waited for an attempt share its failure, or each would take its time.
            if (
                failure is None
                or failure.kid != kid
                or not 0 <= (now - failure.since).total_seconds() < failure.lasted + _PAUSE_SECONDS
            ):
                loop = asyncio.get_running_loop()
                began = loop.time()
                try:
                    self._signed = await self._sign(ring, now)
                except SigningError as exc:
                    failure = self._failure = _Failure(kid, now, int(loop.time() - began), exc)
                    _logger.warning("serving the card of the previous key, if any: %s", exc)
                else:
                    return self._signed
            published = {entry.kid for entry in ring.published(now)}
            if self._signed is None or not published.issuperset(self._signed.kids):
                raise anew(failure.error)
            return self._signed

    async def response(self, now: datetime, if_none_match: str | None = None) -> DocumentResponse:
        """Answer a GET for the card; several `If-None-Match` headers come joined with commas.

        Raises:
            PushkitError: See `signed`.
        """
        signed = await self.signed(now)
        # A weak tag (RFC 9110 §8.8.1) of the card, its keys and its forms: the processes of an
        # agent agree on it, although the bytes of their signatures differ.
        parts = json.dumps((self._card, signed.kids, signed.forms, self._jku), sort_keys=True)
        tag = f'W/"{hashlib.sha256(parts.encode()).hexdigest()[:32]}"'
        max_age = min(self._max_age, self._keys.ring().grace)
        return document_response(signed.content, "application/json", tag, max_age, if_none_match)

    async def _sign(self, ring: KeyRing, now: datetime) -> SignedCard:
        try:
            async with asyncio.timeout(_SIGNING_SECONDS):
                return await sign_card_with(self._card, ring, self._forms, now=now, jku=self._jku)
        except TimeoutError as exc:
            raise SigningError(f"signing the card took longer than {_SIGNING_SECONDS} s") from exc
