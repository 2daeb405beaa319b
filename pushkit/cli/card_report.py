"""How `pushkit card` tells what it found: for people in colour, for programs in JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.cards.document import CardSignature, read_signatures
from pushkit.cards.forms import Canonical, CardForm, canonicalize
from pushkit.cards.registry import CardOutcome, CardSummary
from pushkit.cards.verdict import CardVerdict, Coverage, SignatureVerdict
from pushkit.cards.walks import Uncovered
from pushkit.errors import CanonicalizationError, InvalidSignatureError
from pushkit.terminal.command import painted
from pushkit.terminal.output import in_a_line, table

_COVERAGE: Final = {Coverage.WHOLE: "yes", Coverage.PART: "in part", Coverage.NONE: "NO"}
_SHOWN_CHARACTERS: Final = 100


def verdict_lines(verdict: CardVerdict) -> list[str]:
    """Return the report on one card."""
    lines = [_headline(verdict)]
    lines += [f"  {n}. {_signature_line(entry)}" for n, entry in enumerate(verdict.signatures, 1)]
    lines += [
        painted(f"warning: {_shown(warning, 1000)}", "yellow") for warning in verdict.warnings
    ]
    if verdict.best is not None and verdict.fields:
        rows = [
            (_shown(field.path), _COVERAGE[field.coverage], field.reason)
            for field in verdict.fields
        ]
        heading, *body = table(("FIELD", "COVERED", ""), *rows).splitlines()
        lines += ["", heading]
        lines += [
            painted(line, "red") if field.coverage is Coverage.NONE else line
            for line, field in zip(body, verdict.fields, strict=True)
        ]
    return lines


def verdict_document(verdict: CardVerdict) -> JsonObject:
    """Return the verdict on one card, for programs."""
    fields: list[JsonValue] = [
        {"path": field.path, "covered": field.coverage.value, "reason": field.reason}
        for field in verdict.fields
    ]
    return {
        "verified": verdict.verified,
        "reason": verdict.reason,
        "name": verdict.card.get("name"),
        "signatures": [_signature_document(entry) for entry in verdict.signatures],
        "fields": fields,
        "uncovered": [_uncovered_document(entry) for entry in verdict.uncovered],
        "warnings": list(verdict.warnings),
    }


def summary_lines(summary: CardSummary) -> list[str]:
    """Return the report on many cards."""
    rows = [(check.outcome.value, check.url, _shown(check.reason)) for check in summary.checks]
    heading, *body = table(("OUTCOME", "CARD", ""), *rows).splitlines()
    lines = [heading]
    for line, check in zip(body, summary.checks, strict=True):
        lines.append(painted(line, "green" if check.outcome is CardOutcome.VERIFIED else "red"))
    counts = ", ".join(f"{count} {outcome}" for outcome, count in summary.counts.items() if count)
    return [*lines, "", f"{len(summary.checks)} cards: {counts}"]


def summary_document(summary: CardSummary) -> JsonObject:
    """Return the summary of many cards, for programs."""
    cards: list[JsonValue] = [
        {
            "url": check.url,
            "outcome": check.outcome.value,
            "reason": check.reason,
            "verdict": None if check.verdict is None else verdict_document(check.verdict),
        }
        for check in summary.checks
    ]
    counts: JsonObject = {outcome.value: count for outcome, count in summary.counts.items()}
    return {"counts": counts, "cards": cards}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What a card says about itself, and what could be signed of it. Nothing is verified."""

    card: JsonObject
    signatures: tuple[CardSignature | InvalidSignatureError, ...]
    forms: dict[CardForm, Canonical | CanonicalizationError]

    @classmethod
    def of(cls, card: JsonObject) -> Inspection:
        """Look at a card.

        Raises:
            MalformedCardError: Its signatures are no list.
        """
        return cls(
            card=card,
            signatures=tuple(read_signatures(card)),
            forms={form: _form(card, form) for form in CardForm},
        )


def inspection_lines(found: Inspection) -> list[str]:
    """Return the report on a card that is not verified."""
    name, version = (_shown(str(found.card.get(member, "-"))) for member in ("name", "version"))
    lines = [f"card         {name}, version {version}; nothing of this is verified"]
    lines += [f"signature {n}  {_claims(entry)}" for n, entry in enumerate(found.signatures, 1)]
    if not found.signatures:
        lines.append("signatures   none")
    rows = [(form.value, *_form_row(entry)) for form, entry in found.forms.items()]
    return [*lines, "", *table(("FORM", "BYTES", "LEAVES OUT"), *rows).splitlines()]


def inspection_document(found: Inspection) -> JsonObject:
    """Return what a card says about itself, for programs."""
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
    facts = {
        "alg": entry.algorithm.value,
        "kid": entry.kid,
        "typ": entry.typ,
        "jku": entry.jku,
        "form": entry.form,
    }
    told = ", ".join(f"{name} {_shown(fact)}" for name, fact in facts.items() if fact is not None)
    return "; ".join((told, *entry.notes))


def _claims_document(entry: CardSignature | InvalidSignatureError) -> JsonObject:
    if isinstance(entry, InvalidSignatureError):
        return {"malformed": str(entry)}
    return {
        "alg": entry.algorithm.value,
        "kid": entry.kid,
        "jku": entry.jku,
        "typ": entry.typ,
        "form": entry.form.value if entry.form else None,
        "notes": list(entry.notes),
    }


def _form_row(entry: Canonical | CanonicalizationError) -> tuple[str, str]:
    if isinstance(entry, CanonicalizationError):
        return "-", _shown(str(entry))
    return str(len(entry.payload)), _shown(", ".join(left.path for left in entry.uncovered)) or "-"


def _form_document(entry: Canonical | CanonicalizationError) -> JsonObject:
    if isinstance(entry, CanonicalizationError):
        return {"error": str(entry)}
    return {
        "bytes": len(entry.payload),
        "uncovered": [_uncovered_document(left) for left in entry.uncovered],
    }


def _headline(verdict: CardVerdict) -> str:
    name = _shown(str(verdict.card.get("name", "(no name)")))
    if verdict.verified:
        return painted(f"verified     {name}", "green")
    return painted(f"REFUSED      {name}: {_shown(verdict.reason, 1000)}", "red")


def _signature_line(entry: SignatureVerdict) -> str:
    who = f"{entry.algorithm or '-'} kid {_shown(entry.kid or '-')}"
    if entry.accepted and entry.key is not None:
        source = entry.key.jwks_url or "a pinned key"
        stated = "" if entry.stated else ", which it does not state"
        return f"{who}: holds in the form {entry.form}{stated}, under {source}"
    return f"{who}: {_shown(entry.reason, 1000)}"


def _signature_document(entry: SignatureVerdict) -> JsonObject:
    return {
        "accepted": entry.accepted,
        "reason": entry.reason,
        "alg": entry.algorithm.value if entry.algorithm else None,
        "kid": entry.kid,
        "jku": entry.jku,
        "key": entry.key.key.kid if entry.key else None,
        "jwks_url": entry.key.jwks_url if entry.key else None,
        "form": entry.form.value if entry.form else None,
        "forms": [form.value for form in entry.forms],
        "stated": entry.stated,
        "notes": list(entry.notes),
    }


def _uncovered_document(entry: Uncovered) -> JsonObject:
    return {"path": entry.path, "gap": entry.gap.value, "reason": entry.reason}


def _shown(text: str, characters: int = _SHOWN_CHARACTERS) -> str:
    """Return what a stranger wrote so that it moves no cursor, and stays on its line."""
    plain = in_a_line(text).replace("\t", " ")
    return plain if len(plain) <= characters else plain[: characters - 1] + "…"
