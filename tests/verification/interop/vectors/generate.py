"""Writes docs/vectors: python -m tests.verification.interop.vectors.generate."""

from __future__ import annotations

import json
from typing import Any

from tests.verification.interop.vectors import crypto
from tests.verification.interop.vectors.genuine import genuine
from tests.verification.interop.vectors.hostile import hostile
from tests.verification.interop.vectors.requests import KEYS, NOW, SENDERS

__all__ = ["document", "published"]


def document() -> dict[str, Any]:
    """Return `notifications.json`."""
    return {
        "now": NOW,
        "senders": SENDERS,
        "vectors": [vector.as_json() for vector in (*genuine(), *hostile())],
    }


def published() -> dict[str, Any]:
    """Return `jwks.json`: what the agent publishes."""
    keys = [crypto.public_jwk(jwk) for kid, jwk in KEYS.items() if kid != "attacker"]
    shared = {"kid": "shared"}  # one `kid` for two algorithms (RFC 7517 §4.5)
    return {"keys": [*keys, *(crypto.public_jwk(KEYS[kid]) | shared for kid in ("rs256", "ps256"))]}


def main() -> None:
    for name, value in (("notifications", document()), ("jwks", published())):
        text = json.dumps(value, ensure_ascii=False, indent=1)
        (crypto.FOLDER / f"{name}.json").write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    main()
