"""Cards of pushkit before the verifiers of real SDK releases, and theirs before pushkit's.

What is unexpected is a card that is refused, on either side, though it has a signature over the
very bytes that the release hashes; or one that is accepted and has none, or was changed.
"""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pushkit.cards import (
    EVERY_SDK,
    CardForm,
    CardPolicy,
    SignedCard,
    TrustedKeys,
    canonicalize,
    sign_card,
    verify_card,
)
from pushkit.keys.jwk import public_jwk, public_pem, signing_key_from_pem, signing_key_to_pem
from tests.verification.interop.environments import PEERS as PROGRAMS
from tests.verification.interop.environments import (
    UnavailableError,
    cargo_program,
    node,
    node_modules,
    python_of,
)

HERE = Path(__file__).resolve().parent
VECTORS = HERE.parents[2] / "vectors" / "cards"
NOW = datetime.now(UTC)
KEY = signing_key_from_pem((VECTORS / "es256_private.pem").read_bytes(), kid="key-1")
TRUST = TrustedKeys.pinned(KEY.to_verification_key())

# An integer beyond 2^53 has no RFC 8785 form, so such a card is signed for the SDKs alone, which
# read it as a double.
SDK_ALONE = {"c19_params_big_int"}


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One release of an SDK, and how cards are handed to it.

    Attributes:
        name: As it stands in the report.
        package: What is installed.
        shape: JavaScript: `json` or `instance`; `rust`: a program that is built.
        cards: Which cards it understands.
        signed: What pushkit signs for it: the forms, by what they are called; None is the default.
        form: What it signs in, and looks for.
        refuses: Cards that it refuses without the form `raw`, where its own does not tell.
        refused: Cards of its that pushkit refuses.
    """

    name: str
    package: str
    shape: str = ""
    cards: str = "cards_v10"
    signed: Mapping[str, tuple[CardForm, ...] | None] = field(
        default_factory=lambda: {
            "default": None,
            "EVERY_SDK": EVERY_SDK,
        },
        hash=False,
    )
    form: CardForm = CardForm.SDK
    refuses: frozenset[str] | None = None
    refused: frozenset[str] = frozenset()


def python(version: str, **more: Any) -> Peer:
    return Peer(name=f"a2a-sdk {version}", package=f"a2a-sdk[signing]=={version}", **more)


def rust(crate: str, version: str, **more: Any) -> Peer:
    return Peer(name=f"{crate} {version} (Rust)", package=crate, shape="rust", **more)


def javascript(version: str, shape: str, form: CardForm) -> Peer:
    name = f"@a2a-js/sdk {version} ({shape})"
    return Peer(name=name, package=f"@a2a-js/sdk@{version}", shape=shape, form=form)


PEERS = (
    python("1.0.3", form=CardForm.PYTHON_ASCII),
    python("1.3.0"),
    # Its client maps the members of 0.2 and 0.3 before it verifies.
    python(
        "1.3.0",
        cards="cards_older",
        signed={"default, older members": None, "EVERY_SDK, older members": EVERY_SDK},
        form=CardForm.PYTHON_CLIENT,
    ),
    javascript("1.0.1", "json", CardForm.SDK),
    javascript("1.0.1", "instance", CardForm.SDK_WITHOUT_SECURITY_SCHEMES),
    javascript("1.3.0", "json", CardForm.SDK),
    javascript("1.3.0", "instance", CardForm.SDK_WITHOUT_SECURITY_SCHEMES),
    rust(
        "a2a-protocol-types",
        "0.15.0",
        form=CardForm.SPEC,
        # It signs members that no version defines, too; and rounds an integer that no double is.
        refuses=frozenset({"c14_unknown_field"}),
        refused=frozenset({"c19_params_big_int"}),
    ),
    python(
        "0.3.26",
        cards="cards_v03",
        signed={"default": None},
        form=CardForm.PYTHON_0_3,
    ),
)
# A card that is changed after it was signed, and one without signatures: refused on both sides.
CHANGED, UNSIGNED = "changed", "unsigned"
FORGED = {CHANGED, UNSIGNED}
VERIFIES = "pushkit verifies"


def _command_of(peer: Peer) -> tuple[str, ...]:
    """Return the program of a release, which is installed, or built, where it is not yet."""
    folder = f"cards-{peer.package.translate(str.maketrans('@/=[]', '-----')).strip('-')}"
    if peer.shape == "rust":
        return (*cargo_program(PROGRAMS / "rust" / "a2a_protocol", "agent"), "cards")
    if peer.shape:
        modules = node_modules(folder, peer.package)
        return (node(), str(HERE / "peer_javascript.mjs"), str(modules), peer.shape)
    python = python_of(folder, peer.package, "cryptography")
    return (str(python), str(HERE / "peer_python.py"))


def ask(
    peer: Peer, *, verify: dict[str, Any] | None = None, sign: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Have a release sign and verify cards."""
    order = {
        "verify": verify or {},
        "sign": sign or {},
        "public_pem": public_pem(KEY).decode(),
        "public_jwks": {"keys": [public_jwk(KEY)]},
        "private_pem": signing_key_to_pem(KEY).decode(),
    }
    done = subprocess.run(  # noqa: S603 - our own commands
        _command_of(peer), input=json.dumps(order), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UnavailableError(f"status {done.returncode}: {done.stderr.strip()[-200:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def cards_of(peer: Peer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((VECTORS / f"{peer.cards}.json").read_bytes())
    return found


def signed_for(peer: Peer, forms: tuple[CardForm, ...] | None) -> dict[str, SignedCard]:
    """Return every card as pushkit signs it."""

    def forms_of(name: str) -> Iterable[CardForm] | None:
        if name not in SDK_ALONE:
            return forms
        strict = {CardForm.SPEC, CardForm.RAW}
        return [CardForm.SDK] if forms is None else [form for form in forms if form not in strict]

    return {
        name: sign_card(card, KEY, forms_of(name), now=NOW) for name, card in cards_of(peer).items()
    }


def is_for(peer: Peer, name: str, signed: SignedCard) -> bool:
    """Say whether one of the signatures is over the bytes that a release hashes."""
    if peer.refuses is not None:
        return name not in peer.refuses or CardForm.RAW in signed.forms
    hashed = canonicalize(signed.card, peer.form).payload
    return any(canonicalize(signed.card, form).payload == hashed for form in signed.forms)


def and_forged(cards: dict[str, Any]) -> dict[str, Any]:
    """Return cards, and two that nobody signed so."""
    card = next(iter(cards.values()))
    unsigned = {name: value for name, value in card.items() if name != "signatures"}
    return {**cards, CHANGED: {**card, "name": "Changed"}, UNSIGNED: unsigned}


@functools.cache
def check(peer: Peer) -> dict[str, dict[str, str | None]]:
    """Return, for both directions, each card with why it is refused; None if it verifies."""
    ours = {called: signed_for(peer, forms) for called, forms in peer.signed.items()}
    offered = {
        f"{called}/{name}": card
        for called, cards in ours.items()
        for name, card in and_forged({n: signed.card for n, signed in cards.items()}).items()
    }
    answer = ask(peer, verify=offered, sign=cards_of(peer))
    theirs: dict[str, str | None] = dict(answer["failed"])
    policy = CardPolicy(admit=frozenset({peer.form}))
    for name, card in and_forged(answer["signed"]).items():
        content = json.dumps(card, ensure_ascii=False).encode()
        verdict = verify_card(content, TRUST, now=NOW, policy=policy)
        theirs[name] = None if verdict.verified else verdict.reason
    found = {
        f"pushkit signs, {called}": {
            name: answer["verified"][f"{called}/{name}"] for name in (*cards, *sorted(FORGED))
        }
        for called, cards in ours.items()
    }
    return {**found, VERIFIES: theirs}


def unexpected(
    peer: Peer, found: dict[str, dict[str, str | None]], *directions: str
) -> Iterable[str]:
    """Return what is not as the forms foretell it."""
    for called, forms in peer.signed.items():
        direction = f"pushkit signs, {called}"
        signed = signed_for(peer, forms)
        for name, reason in found[direction].items() if direction in directions else ():
            good = name not in FORGED and is_for(peer, name, signed[name])
            if (reason is None) is not good:
                yield f"{peer.name}: {direction}: {name}: {reason or 'verifies all the same'}"
    for name, reason in found[VERIFIES].items() if VERIFIES in directions else ():
        if (reason is None) is (name in {*FORGED, *peer.refused}):
            yield f"{peer.name}: {VERIFIES}: {name}: {reason or 'verifies all the same'}"


def count(cards: dict[str, str | None]) -> str:
    return f"{sum(reason is None for reason in cards.values())} of {len(cards) - len(FORGED)}"
