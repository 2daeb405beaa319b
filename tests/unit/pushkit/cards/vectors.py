"""The cards that real SDKs signed, and the key that they signed with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from pushkit.cards import TrustedKeys
from pushkit.keys.jwk import SigningKey, signing_key_from_pem, verification_key_from_pem
from pushkit.signing.jose import at_once, protected_header, sign_detached

FOLDER = Path(__file__).resolve().parents[3] / "vectors" / "cards"
NOW = datetime(2026, 6, 1, tzinfo=UTC)
SIGNING_KEY = signing_key_from_pem((FOLDER / "es256_private.pem").read_bytes(), kid="key-1")
KEY = verification_key_from_pem((FOLDER / "es256_public.pem").read_bytes(), kid="key-1")
TRUST = TrustedKeys.pinned(KEY)


@cache
def load(name: str) -> dict[str, Any]:
    """Return a file of vectors by card id."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_bytes())
    return found


def served(name: str) -> dict[str, dict[str, Any]]:
    """Return the signed cards of a file as their SDK serves them, by card id."""
    return {card: entry["wire"] for card, entry in load(name).items() if "wire" in entry}


def each(*names: str) -> list[ParameterSet]:
    """Return every signed card of some files as a test's parameters: file, card id, card."""
    return [
        pytest.param(name, card, wire, id=f"{name}-{card}")
        for name in names
        for card, wire in served(name).items()
    ]


def signature(
    payload: bytes, header: Mapping[str, Any], key: SigningKey = SIGNING_KEY
) -> dict[str, Any]:
    """Return an entry of `signatures` over a payload, with a header of the test's making."""
    jws = at_once(sign_detached(payload, header, key))
    return {"protected": jws.protected, "signature": jws.signature}


def headers(card: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the protected headers of a card's signatures."""
    return [protected_header(entry["protected"]) for entry in card["signatures"]]


def unsigned(card: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in card.items() if name != "signatures"}


def as_bytes(card: Any) -> bytes:
    return json.dumps(card, ensure_ascii=False).encode("utf-8")
