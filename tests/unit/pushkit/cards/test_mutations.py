"""One change to a signed card: refused where it is covered, reported where it is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pushkit.bounded_json import json_pointer
from pushkit.cards import CardForm, CardPolicy, CardVerdict, Gap, verify_card
from tests.long_runs import share
from tests.unit.pushkit.cards.test_vectors import FORMS
from tests.unit.pushkit.cards.vectors import NOW, TRUST, as_bytes, each, served

ADDED: dict[str, Any] = {
    "url": "https://evil.example.com/",
    "securitySchemes": {"evil": {"httpAuthSecurityScheme": {"scheme": "Basic"}}},
    "securityRequirements": [{"schemes": {"evil": {"list": []}}}],
    "security": [{"evil": []}],
    "supported_interfaces": [{"url": "https://evil.example.com/"}],
    "URL": "https://evil.example.com/",
    "documentationUrl": "https://evil.example.com/",
    "provider": {"organization": "Evil", "url": "https://evil.example.com/"},
    "xAdded": 1,
}


def changes(card: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield where and how one thing can be changed, and the card with that change."""
    for path, steps, value in places(card):
        for what, replacement in replacements(value):
            yield path, what, replaced(card, steps, replacement)
        yield path, "removed", removed(card, steps)
        if isinstance(value, dict):
            yield f"{path}/xAdded", "added", replaced(card, steps, {**value, "xAdded": 1})
        if isinstance(value, list):
            extras: tuple[Any, ...] = ("x", "", {}, None)
            for extra in extras:
                yield f"{path}/{len(value)}", "added", replaced(card, steps, [*value, extra])
    for name, value in ADDED.items():
        if name not in card:
            yield f"/{name}", "added", {**card, name: value}


def places(
    value: Any, path: str = "", steps: tuple[Any, ...] = ()
) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
    members = value.items() if isinstance(value, dict) else enumerate(value)
    for name, child in members:
        if not steps and name == "signatures":
            continue
        at = json_pointer(path, name)
        yield at, (*steps, name), child
        if isinstance(child, dict | list):
            yield from places(child, at, (*steps, name))


def replacements(value: Any) -> Iterator[tuple[str, Any]]:
    if value is not None:
        yield "null", None
    if isinstance(value, bool):
        yield "flipped", not value
    elif isinstance(value, str):
        yield "longer", value + "x"
    elif isinstance(value, int | float):
        yield "tripled", value * 3 + 1
        if value + 1 != value:  # beyond 2^53, the next double is further away
            yield "more", value + 1
    if value not in ("", {}, []):
        yield "emptied", {} if isinstance(value, dict) else [] if isinstance(value, list) else ""


def replaced(card: Any, steps: tuple[Any, ...], value: Any) -> Any:
    changed = card.copy()
    changed[steps[0]] = replaced(card[steps[0]], steps[1:], value) if steps[1:] else value
    return changed


def removed(card: Any, steps: tuple[Any, ...]) -> Any:
    changed = card.copy()
    if steps[1:]:
        changed[steps[0]] = removed(card[steps[0]], steps[1:])
    else:
        del changed[steps[0]]
    return changed


def is_reported(path: str, verdict: CardVerdict) -> bool:
    """Say whether a path is not covered: it, what it is part of, or a part of it."""
    return any(
        path == left.path or path.startswith(f"{left.path}/") or left.path.startswith(f"{path}/")
        for left in verdict.uncovered
    )


def is_absent_default(path: str, verdict: CardVerdict) -> bool:
    """A required field that is gone reads as its default, if that is what was signed."""
    return any(left.path == path and left.gap is Gap.ABSENT for left in verdict.uncovered)


@pytest.mark.parametrize(("name", "card", "wire"), each(*FORMS))
@pytest.mark.slow
def test_no_single_change_goes_unnoticed(name: str, card: str, wire: dict[str, Any]) -> None:
    # Every form at once: the hardest case, for a change may fit another form than the signer's.
    # A change is made to a card as one of the signers signed it; in a long run, as all did.
    policy = CardPolicy(admit=frozenset(CardForm))
    before = verify_card(as_bytes(wire), TRUST, now=NOW, policy=policy)
    assert before.verified
    signers = [each for each in FORMS if card in served(each)]
    for path, what, changed in share(changes(wire), signers.index(name), len(signers)):
        after = verify_card(as_bytes(changed), TRUST, now=NOW, policy=policy)
        told = f"{name} {card}: {path} {what}"
        if what == "added" or is_absent_default(path, after):
            assert not after.verified or is_reported(path, after), told
        elif not is_reported(path, before):
            assert not after.verified, told
        elif after.verified and what not in ("removed", "emptied", "null"):
            assert is_reported(path, after), told


@pytest.mark.parametrize(("name", "card", "wire"), each(*FORMS))
@pytest.mark.slow
def test_strictly_nothing_can_be_added_that_anybody_reads(
    name: str, card: str, wire: dict[str, Any]
) -> None:
    for member, value in ADDED.items():
        if member in wire:
            continue
        changed = verify_card(as_bytes({**wire, member: value}), TRUST, now=NOW)
        # What no version of A2A defines is ignored by the specification.
        assert not changed.verified or member == "xAdded", (name, card, member)


@pytest.mark.parametrize(("name", "card", "wire"), each("signed_ref_spec"))
@pytest.mark.parametrize("part", ["protected", "signature"])
@pytest.mark.slow
def test_no_character_of_a_signature_can_change(
    name: str, card: str, wire: dict[str, Any], part: str
) -> None:
    [entry] = wire["signatures"]
    nth = list(served(name)).index(card)
    for position, char in share(enumerate(entry[part]), nth, 4):
        other = "A" if char != "A" else "B"
        forged = entry[part][:position] + other + entry[part][position + 1 :]
        changed = {**wire, "signatures": [{**entry, part: forged}]}
        assert not verify_card(as_bytes(changed), TRUST, now=NOW).verified, (name, card, position)
