"""Runs in an environment of its own, with one release of a2a-sdk: signs and verifies as it does.

Reads `{"verify": {id: card}, "sign": {id: card}, "public_pem": …, "private_pem": …}` from standard
input, and writes `{"verified": {id: null or why not}, "signed": {id: card}, "failed": {id: why}}`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any

# Two generations of one package: neither's types fit the other.
types: Any = import_module("a2a.types")
signing: Any = import_module("a2a.utils.signing")
MODERN = not version("a2a-sdk").startswith("0.")


def parse(card: dict[str, Any]) -> Any:
    """Read a card as the SDK's client does."""
    if not MODERN:
        return types.AgentCard.model_validate(card)
    resolver: Any = import_module("a2a.client.card_resolver")
    return resolver.parse_agent_card(card)


def serve(card: Any) -> Any:
    """Write a card as the SDK's server does."""
    if not MODERN:
        return card.model_dump(mode="json", by_alias=True, exclude_none=True)
    helpers: Any = import_module("a2a.server.request_handlers.response_helpers")
    return helpers.agent_card_to_dict(card)


def attempt(function: Callable[[Any], Any], card: Any) -> tuple[Any, str | None]:
    try:
        return function(card), None
    except Exception as exc:  # noqa: BLE001 - whatever a peer raises is its answer
        return None, f"{type(exc).__name__}: {exc}"


def main() -> None:
    order = json.load(sys.stdin)
    header = {"alg": "ES256", "kid": "key-1", "typ": "JOSE"}
    signer = signing.create_agent_card_signer(order["private_pem"], header)
    verifier = signing.create_signature_verifier(lambda *_: order["public_pem"], ["ES256"])
    answer: dict[str, dict[str, Any]] = {"verified": {}, "signed": {}, "failed": {}}
    for name, card in order["verify"].items():
        _, answer["verified"][name] = attempt(lambda found: verifier(parse(found)), card)
    for name, card in order["sign"].items():
        signed, error = attempt(lambda found: serve(signer(parse(found))), card)
        answer["signed" if error is None else "failed"][name] = error or signed
    json.dump(answer, sys.stdout)


main()
