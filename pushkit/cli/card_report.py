"""The reports of `pushkit card`: lines for people, JSON documents for programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.cards.document import CardSignature, read_signatures
from pushkit.cards.forms import Canonical, CardForm, canonicalize
from pushkit.cards.registry import CardOutcome, CardSummary
from pushkit.cards.verdict import CardVerdict, Coverage, SignatureVerdict
from pushkit.errors import CanonicalizationError, InvalidSignatureError
from pushkit.terminal.command import painted
from pushkit.terminal.output import document, in_a_line, table

_COVERAGE: Final = {Coverage.WHOLE: "yes", Coverage.PART: "in part", Coverage.NONE: "NO"}
_SHOWN_CHARACTERS: Final = 100


def verdict_lines(verdict: CardVerdict) -> list[str]:
    """Return the report on one card."""
    lines = [_headline(verdict)]
    lines += [f"  {n}. {_signature_line(entry)}" for n, entry in enumerate(verdict.signatures, 1)]
    lines += [painted(f"warning: {_shown(each, 1000)}", "yellow") for each in verdict.warnings]
    if verdict.best is not None and verdict.fields:
        fields = verdict.fields
        rows = [(_shown(each.path), _COVERAGE[each.coverage], each.reason) for each in fields]
        heading, *body = table(("FIELD", "COVERED", ""), *rows).splitlines()
        colours = ["red" if each.coverage is Coverage.NONE else None for each in fields]
        lines += ["", heading, *map(painted, body, colours)]
    return lines


def verdict_document(verdict: CardVerdict) -> JsonObject:
    """Return the verdict on one card, for programs."""
    return {
        "verified": verdict.verified,
        "reason": verdict.reason,
        "name": verdict.card.get("name"),
        "signatures": [_signature_document(entry) for entry in verdict.signatures],
        "fields": [
            {"path": each.path, "covered": each.coverage, "reason": each.reason}
            for each in verdict.fields
        ],
        "uncovered": [document(each, "path gap reason") for each in verdict.uncovered],
        "warnings": list(verdict.warnings),
    }


def summary_lines(summary: CardSummary) -> list[str]:
    """Return the report on many cards."""
    rows = [(check.outcome.value, check.url, _shown(check.reason)) for check in summary.checks]
    heading, *body = table(("OUTCOME", "CARD", ""), *rows).splitlines()
    verified = [check.outcome is CardOutcome.VERIFIED for check in summary.checks]
    lines = [heading, *map(painted, body, ("green" if each else "red" for each in verified))]
    counts = ", ".join(f"{count} {outcome}" for outcome, count in summary.counts.items() if count)
    return [*lines, "", f"{len(summary.checks)} cards: {counts}"]


def summary_document(summary: CardSummary) -> JsonObject:
    """Return the summary of many cards, for programs."""
    cards: list[JsonValue] = [
        {
            **document(check, "url outcome reason"),
            "verdict": None if check.verdict is None else verdict_document(check.verdict),
        }
        for check in summary.checks
    ]
    counts: JsonObject = {outcome.value: count for outcome, count in summary.counts.items()}
    return {"counts": counts, "cards": cards}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The unverified claims of a card, and its canonical forms."""

    card: JsonObject
    signatures: tuple[CardSignature | InvalidSignatureError, ...]
    forms: dict[CardForm, Canonical | CanonicalizationError]

    @classmethod
    def of(cls, card: JsonObject) -> Inspection:
        """Inspect a card. Raises MalformedCardError: `signatures` is not a list."""
        return cls(
            card=card,
            signatures=tuple(read_signatures(card)),
            forms={form: _form(card, form) for form in CardForm},
        )


def inspection_lines(found: Inspection) -> list[str]:
    """Return the report on a card that is not verified."""
    name, version = (_shown(str(found.card.get(member, "-"))) for member in ("name", "version"))
    lines = [f"card         {name}, version {version}; not verified"]
    lines += [f"signature {n}  {_claims(entry)}" for n, entry in enumerate(found.signatures, 1)]
    if not found.signatures:
        lines.append("signatures   none")
    rows = [(form.value, *_form_row(entry)) for form, entry in found.forms.items()]
    return [*lines, "", *table(("FORM", "BYTES", "LEAVES OUT"), *rows).splitlines()]


def inspection_document(found: Inspection) -> JsonObject:
    """Return the inspection of a card, for programs."""
    return {
        "name": found.card.get("name"),
        "version": found.card.get("version"),
        "signatures": [_claims_document(entry) for entry in found.signatures],
        "forms": {form.value: _form_document(entry) for form, entry in found.forms.items()},
    }


def _form(card: JsonObject, form: CardForm) -> Canonical | CanonicalizationError:
    try:
        return canonicalize(card, form)
    except CanonicalizationError as exc:
        return exc


def _claims(entry: CardSignature | InvalidSignatureError) -> str:
    if isinstance(entry, InvalidSignatureError):
        return f"malformed: {_shown(str(entry))}"
    facts = {"alg": entry.algorithm, **document(entry, "kid typ jku form")}
    claims = ", ".join(
        f"{name} {_shown(str(fact))}" for name, fact in facts.items() if fact is not None
    )
    return "; ".join((claims, *entry.notes))


def _claims_document(entry: CardSignature | InvalidSignatureError) -> JsonObject:
    if isinstance(entry, InvalidSignatureError):
        return {"malformed": str(entry)}
    return {"alg": entry.algorithm, **document(entry, "kid jku typ form notes")}


def _form_row(entry: Canonical | CanonicalizationError) -> tuple[str, str]:
    if isinstance(entry, CanonicalizationError):
        return "-", _shown(str(entry))
    return str(len(entry.payload)), _shown(", ".join(left.path for left in entry.uncovered)) or "-"


def _form_document(entry: Canonical | CanonicalizationError) -> JsonObject:
    if isinstance(entry, CanonicalizationError):
        return {"error": str(entry)}
    return {
        "bytes": len(entry.payload),
        "uncovered": [document(each, "path gap reason") for each in entry.uncovered],
    }


def _headline(verdict: CardVerdict) -> str:
    name = _shown(str(verdict.card.get("name", "(no name)")))
    if verdict.verified:
        return painted(f"verified     {name}", "green")
    return painted(f"REFUSED      {name}: {_shown(verdict.reason, 1000)}", "red")


def _signature_line(entry: SignatureVerdict) -> str:
    key = f"{entry.algorithm or '-'} kid {_shown(entry.kid or '-')}"
    if entry.accepted and entry.key is not None:
        source = entry.key.jwks_url or "a pinned key"
        stated = "" if entry.stated else ", which it does not state"
        return f"{key}: valid in the form {entry.form}{stated}, under {source}"
    return f"{key}: {_shown(entry.reason, 1000)}"


def _signature_document(entry: SignatureVerdict) -> JsonObject:
    return {
        **document(entry, "accepted decision reason"),
        "alg": entry.algorithm,
        **document(entry, "kid jku"),
        "key": entry.key.key.kid if entry.key else None,
        "jwks_url": entry.key.jwks_url if entry.key else None,
        **document(entry, "form forms stated notes"),
    }


def _shown(text: str, characters: int = _SHOWN_CHARACTERS) -> str:
    """Return untrusted text on one line, without control characters, and shortened."""
    plain = in_a_line(text).replace("\t", " ")
    return plain if len(plain) <= characters else plain[: characters - 1] + "…"
