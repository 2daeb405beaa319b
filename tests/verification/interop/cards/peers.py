"""Cards of pushkit before the verifiers of real SDK releases, and theirs before pushkit's.

python -m tests.verification.interop.cards.peers [--folder .interop/cards] [--no-install] [--json]

Installs the releases from PyPI and the npm registry into a folder, each in an environment of its
own. Needs Node.js 20 or newer for the JavaScript ones. Ends with 1 if a card is refused, on either
side, that has a signature over the very bytes that the release hashes, or if one is accepted that
has none, or that was changed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import venv
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
from tests.verification.interop.environments import NODE, cargo_program, tool
from tests.verification.interop.environments import PEERS as PROGRAMS

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

    @property
    def folder(self) -> str:
        """Where it is installed, below the peers' folder."""
        return self.package.translate(str.maketrans("@/=[]", "-----")).strip("-")


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


def install(peer: Peer, folder: Path) -> None:
    """Install a release, unless it is there."""
    if peer.shape == "rust":
        rust_program()
        return
    place = folder / peer.folder
    if (place / ".installed").exists():
        return
    if peer.shape:
        place.mkdir(parents=True, exist_ok=True)
        (place / "package.json").write_text('{"private": true, "type": "module"}')
        command = [tool("npm"), "install", "--silent", "--no-audit", "--no-fund", peer.package]
        run(command, cwd=place)
    else:
        venv.create(place, with_pip=True, clear=True)
        run([str(place / "bin" / "pip"), "install", "--quiet", peer.package, "cryptography"])
    (place / ".installed").touch()


def rust_program() -> tuple[str, ...]:
    return cargo_program(PROGRAMS / "rust" / "a2a_protocol", "agent")


def ask(peer: Peer, folder: Path, order: dict[str, Any]) -> dict[str, Any]:
    """Have a release sign and verify."""
    place = folder / peer.folder
    if peer.shape == "rust":
        command = [*rust_program(), "cards"]
    elif peer.shape:
        command = [str(NODE), str(HERE / "peer_javascript.mjs"), str(place.resolve()), peer.shape]
    else:
        command = [str(place / "bin" / "python"), str(HERE / "peer_python.py")]
    answer: dict[str, Any] = json.loads(run(command, stdin=json.dumps(order)))
    return answer


def run(command: list[str], *, stdin: str = "", cwd: Path | None = None) -> str:
    done = subprocess.run(  # noqa: S603 - our own commands
        command, input=stdin, cwd=cwd, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}: status {done.returncode}\n{done.stderr}")
    return done.stdout


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


def check(peer: Peer, folder: Path) -> dict[str, dict[str, str | None]]:
    """Return, for both directions, each card with why it is refused; None if it verifies."""
    ours = {called: signed_for(peer, forms) for called, forms in peer.signed.items()}
    answer = ask(
        peer,
        folder,
        {
            "verify": {
                f"{called}/{name}": card
                for called, cards in ours.items()
                for name, card in and_forged(
                    {n: signed.card for n, signed in cards.items()}
                ).items()
            },
            "sign": cards_of(peer),
            "public_pem": public_pem(KEY).decode(),
            "public_jwks": {"keys": [public_jwk(KEY)]},
            "private_pem": signing_key_to_pem(KEY).decode(),
        },
    )
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


def summary(peer: Peer, found: dict[str, dict[str, str | None]]) -> str:
    counts = [f"{direction}: {count(cards)}" for direction, cards in found.items()]
    return f"{peer.name:24} {'; '.join(counts)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(".interop/cards"))
    parser.add_argument("--no-install", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report, wrong = {}, []
    for peer in PEERS:
        if not options.no_install:
            install(peer, options.folder)
        found = report[peer.name] = check(peer, options.folder)
        wrong += list(unexpected(peer, found, *found))
        print(summary(peer, found), file=sys.stderr)  # noqa: T201
    if options.json:
        print(json.dumps(report, indent=1, ensure_ascii=False))  # noqa: T201
    for line in wrong:
        print(line, file=sys.stderr)  # noqa: T201
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
