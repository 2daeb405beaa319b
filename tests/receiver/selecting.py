"""Step 2 alone: which of the trusted senders a request is from."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pushkit.errors import KeysUnavailableError
from pushkit.keys.jwk import VerificationKey
from pushkit.webhook import Headers
from receiver.selection import Selected, at_hand, keys_to_ask_for, select
from receiver.trust import Trust, TrustSnapshot, keys_of


class UnreachableKeys:
    """The keys of a sender whose JWK Set was never fetched."""

    async def find(self, kid: str) -> VerificationKey | None:
        raise KeysUnavailableError(f"no keys yet, and no {kid}")

    async def keys(self) -> Mapping[str, VerificationKey]:
        raise KeysUnavailableError("no keys yet")

    def at_hand(self, kids: Collection[str]) -> None:
        """None are."""

    def missing(self) -> str:
        return "no keys yet"

    async def close(self) -> None:
        """Nothing is under way."""


def selected_of(trust: TrustSnapshot, path: str, headers: Headers) -> Selected:
    asked = keys_to_ask_for(trust.at(path), headers)
    held = at_hand(asked)
    assert held is not None
    return select(trust.at(path), asked, held)


async def selected_by(trust: Trust, path: str, headers: Headers) -> Selected:
    """Do the same with keys that are fetched where that is due."""
    asked = keys_to_ask_for(trust.at(path), headers)
    return select(trust.at(path), asked, await keys_of(asked))
