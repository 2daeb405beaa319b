"""`pushkit card`: canonicalize, sign, verify and inspect agent cards."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.cards.document import (
    MAX_CARD_BYTES,
    CardSignature,
    is_card,
    read_card,
    read_signatures,
)
from pushkit.cards.forms import CardForm, canonicalize
from pushkit.cards.origins import (
    CardOutcome,
    CardSummary,
    CardTrust,
    card_url,
    fetch_card,
    verify_cards,
)
from pushkit.cards.signing import EVERY_SDK, sign_card
from pushkit.cards.trust import NamedTrust
from pushkit.cards.verify import CardPolicy, CardVerdict, Coverage, SignatureVerdict, verify_card
from pushkit.cli.options import KeyFile, key_file_options
from pushkit.clock import utc_now
from pushkit.errors import CanonicalizationError, ConfigError, InvalidSignatureError
from pushkit.files import unmarked
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import ConnectionOptions, Transport, closing
from pushkit.terminal.command import json_option, painted
from pushkit.terminal.options import (
    allow_option,
    at_option,
    card_trust_options,
    choice_option,
    egress_options,
    gathered,
    out_options,
)
from pushkit.terminal.output import FileKind, OutFile, example, in_a_line, table
from pushkit.url import Url, is_http_url
from pushkit.webui.api import json_object

_T = TypeVar("_T")

# Stands for the unknown origin of a card in a file, for which --key and --jwks apply as well.
_ANYWHERE: Final = "https://card.invalid"
_COVERAGE: Final = {Coverage.WHOLE: "yes", Coverage.PART: "in part", Coverage.NONE: "NO"}
_SHOWN_CHARACTERS: Final = 100


def _client(*, allow: tuple[str, ...], connections: ConnectionOptions) -> Transport:
    return Transport(DestinationPolicy(allow, loopback=True), connections)


_client_options = gathered(
    "client", _client, allow=allow_option, connections=egress_options(ConnectionOptions)
)


@click.group(
    epilog=example(
        "pushkit card sign card.json --out agent-card.json",
        "pushkit card verify agent-card.json --key agent.pem",
        "pushkit card verify https://agent.example.com \\",
        "    --jwks https://agent.example.com/.well-known/jwks.json",
        "pushkit card inspect https://agent.example.com",
    )
)
def card() -> None:
    """Sign, verify and inspect agent cards (A2A 1.0 §8.4).

    A card is a file, - for standard input, or an https URL. A URL without a path gets the
    well-known path.
    """


@card.command("canonicalize", epilog=example("pushkit card canonicalize card.json | sha256sum"))
@click.argument("target", metavar="FILE_OR_URL")
@choice_option("--form", of=CardForm, default="spec", help="The canonical form.")
@_client_options
def canonicalize_(target: str, form: CardForm, client: Transport) -> None:
    """Write the bytes that a signature covers, without a newline."""
    found = canonicalize(read_card(_read(target, client)), form)
    click.echo(found.payload, nl=False)


@card.command(epilog=example("pushkit card sign card.json --keys keys.json --out agent-card.json"))
@click.argument("target", metavar="FILE_OR_URL")
@key_file_options()
@choice_option(
    "--form",
    "forms",
    of=CardForm,
    multiple=True,
    help="A canonical form to sign; may be given several times.  [default: spec, and sdk if that"
    " leaves out nothing that matters; for a card of A2A 0.3, raw and python-0.3]",
)
@click.option(
    "--every-sdk",
    is_flag=True,
    help="Sign all forms that the verifiers of a2a-sdk 1.x, @a2a-js/sdk 1.x and a2a-go expect.",
)
@click.option("--jku", metavar="URL", help="Where the public keys are published.")
@out_options()
@_client_options
def sign(
    *,
    target: str,
    key_file: KeyFile,
    forms: tuple[CardForm, ...],
    every_sdk: bool,
    jku: str | None,
    out: OutFile,
    client: Transport,
) -> None:
    """Sign a card with the active key of a key file.

    Existing signatures of that file's keys are replaced; signatures of other keys stay.
    """
    if every_sdk and forms:
        raise click.UsageError("expected either --every-sdk or --form")
    wanted = EVERY_SDK if every_sdk else forms or None
    given = _read(target, client)
    signed = sign_card(given, key_file.ring(), wanted, now=utc_now(), jku=jku)
    for warning in signed.warnings:
        click.echo(f"warning: {warning}", err=True)
    content = json.dumps(signed.card, ensure_ascii=False, indent=2).encode("utf-8") + b"\n"
    # The card that was signed may be replaced even if it lacks what makes others a card.
    kind = FileKind("an agent card", lambda found: found == given or is_card(found))
    out.write(content, kind)
    if out.path is not None:
        click.echo(f"signed with {', '.join(signed.kids)} in {', '.join(signed.forms)}: {out.path}")


@card.command(
    epilog=example(
        "pushkit card verify agent-card.json --key agent.pem",
        "pushkit card verify https://agent.example.com --trust cards.toml --json",
    )
)
@click.argument("targets", metavar="FILE_OR_URL…", nargs=-1, required=True)
@card_trust_options(NamedTrust)
@click.option("--origin", metavar="URL", help="With --trust: the origin of a card in a file.")
@choice_option(
    "--admit", of=CardForm, multiple=True, help="Count this form whatever it leaves out."
)
@at_option
@_client_options
@json_option
def verify(
    *,
    targets: tuple[str, ...],
    trusted: NamedTrust,
    origin: str | None,
    admit: tuple[CardForm, ...],
    at: datetime | None,
    client: Transport,
    as_json: bool,
) -> None:
    """Verify cards with keys that you trust.

    The report shows which fields are signed. A signature counts only if it covers everything that
    matters. `kid` and `jku` in a card only select among the keys that you trust; no URL in a card
    is fetched. The exit status is 0 if every card is verified, else 1.
    """
    _check_targets(targets, trusted.trust_file, origin)
    urls = filter(is_http_url, targets)
    origins = trusted.load(*(Url.parse(card_url(each)).origin for each in urls), _ANYWHERE)
    now, policy = at or utc_now(), CardPolicy(admit=frozenset(admit))

    async def check() -> CardVerdict | CardSummary:
        trust = CardTrust(origins, transport=client)
        if len(targets) > 1:
            return await verify_cards(targets, trust, now=now, policy=policy)
        [target] = targets
        where = card_url(target) if is_http_url(target) else origin or _ANYWHERE
        if not trust.knows(where):
            found = f"no keys are trusted for {Url.parse(where).origin}, only for"
            named = ", ".join(origins) or "no origin"
            click.echo(f"{trusted.trust_file}: {found} {named}", err=True)
        keys = await trust.keys_for(where)
        return verify_card(await _load(target, client), keys, now=now, policy=policy)

    result = _run(check(), client)
    if isinstance(result, CardSummary):
        _print(_summary_document(result), _summary_lines(result), as_json=as_json)
        sys.exit(0 if result.all_verified else 1)
    _print(_verdict_document(result), _verdict_lines(result), as_json=as_json)
    sys.exit(0 if result.verified else 1)


def _check_targets(targets: tuple[str, ...], trust_file: Path | None, origin: str | None) -> None:
    files = not all(map(is_http_url, targets))
    if trust_file is not None and origin is None and files:
        raise click.UsageError("--trust: a card in a file needs --origin")
    if origin is not None and (trust_file is None or not files):
        raise click.UsageError("--origin is only for --trust and a card in a file")
    if len(targets) > 1 and files:
        raise click.UsageError("several cards: expected URLs only, found a file")


@card.command(epilog=example("pushkit card inspect https://agent.example.com"))
@click.argument("target", metavar="FILE_OR_URL")
@_client_options
@json_option
def inspect(target: str, client: Transport, as_json: bool) -> None:
    """Show the signatures and forms of a card, unverified.

    For each form, the table shows which parts of the card it leaves out.
    """
    found = _inspection_document(read_card(_read(target, client)))
    _print(found, _inspection_lines(found), as_json=as_json)


def _print(document: JsonObject, lines: list[str], *, as_json: bool) -> None:
    click.echo(json.dumps(document, indent=2) if as_json else "\n".join(lines))


# --- loading cards -----------------------------------------------------------------------------


def _read(target: str, client: Transport) -> bytes:
    return _run(_load(target, client), client)


async def _load(target: str, client: Transport) -> bytes:
    if is_http_url(target):
        return await fetch_card(client, card_url(target))
    # One byte above the limit is enough for the card to be refused for its size.
    try:
        with click.open_file(target, "rb") as file:
            return unmarked(file.read(MAX_CARD_BYTES + 1))
    except OSError as exc:
        raise ConfigError(f"{target}: {exc.strerror or 'cannot be read'}") from exc


def _run(work: Awaitable[_T], client: Transport) -> _T:
    async def run() -> _T:
        async with closing(client):
            return await work

    return asyncio.run(run())


# --- reports: lines for people, JSON documents for programs --------------------------------------


def _verdict_lines(verdict: CardVerdict) -> list[str]:
    name, reason = _shown(str(verdict.card.get("name", "(no name)"))), _shown(verdict.reason, 1000)
    head = painted(f"REFUSED      {name}: {reason}", "red")
    lines = [painted(f"verified     {name}", "green") if verdict.verified else head]
    lines += [f"  {n}. {_signature_line(entry)}" for n, entry in enumerate(verdict.signatures, 1)]
    lines += [painted(f"warning: {_shown(each, 1000)}", "yellow") for each in verdict.warnings]
    if verdict.best is not None and verdict.fields:
        fields = verdict.fields
        rows = [(_shown(each.path), _COVERAGE[each.coverage], each.reason) for each in fields]
        heading, *body = table(("FIELD", "COVERED", ""), *rows).splitlines()
        colours = ["red" if each.coverage is Coverage.NONE else None for each in fields]
        lines += ["", heading, *map(painted, body, colours)]
    return lines


def _verdict_document(verdict: CardVerdict) -> JsonObject:
    return {
        "verified": verdict.verified,
        "reason": verdict.reason,
        "name": verdict.card.get("name"),
        "signatures": [_signature_document(entry) for entry in verdict.signatures],
        "fields": [
            {"path": each.path, "covered": each.coverage, "reason": each.reason}
            for each in verdict.fields
        ],
        "uncovered": [json_object(each, "path gap reason") for each in verdict.uncovered],
        "warnings": list(verdict.warnings),
    }


def _summary_lines(summary: CardSummary) -> list[str]:
    rows = [(check.outcome.value, check.url, _shown(check.reason)) for check in summary.checks]
    heading, *body = table(("OUTCOME", "CARD", ""), *rows).splitlines()
    verified = [check.outcome is CardOutcome.VERIFIED for check in summary.checks]
    lines = [heading, *map(painted, body, ("green" if each else "red" for each in verified))]
    counts = ", ".join(f"{count} {outcome}" for outcome, count in summary.counts.items() if count)
    return [*lines, "", f"{len(summary.checks)} cards: {counts}"]


def _summary_document(summary: CardSummary) -> JsonObject:
    cards: list[JsonValue] = [
        {
            **json_object(check, "url outcome reason"),
            "verdict": None if check.verdict is None else _verdict_document(check.verdict),
        }
        for check in summary.checks
    ]
    counts: JsonObject = {outcome.value: count for outcome, count in summary.counts.items()}
    return {"counts": counts, "cards": cards}


def _inspection_document(card: JsonObject) -> JsonObject:
    """Return the unverified claims of a card, and its canonical forms, for programs.

    Raises MalformedCardError: `signatures` is not a list.
    """
    return {
        "name": card.get("name"),
        "version": card.get("version"),
        "signatures": [_claims(entry) for entry in read_signatures(card)],
        "forms": {form.value: _form(card, form) for form in CardForm},
    }


def _inspection_lines(found: Mapping[str, Any]) -> list[str]:
    name, version = (
        _shown("-" if found[each] is None else str(found[each])) for each in ("name", "version")
    )
    lines = [f"card         {name}, version {version}; not verified"]
    lines += [
        f"signature {n}  {_claims_line(each)}" for n, each in enumerate(found["signatures"], 1)
    ]
    if not found["signatures"]:
        lines.append("signatures   none")
    rows = [(form, *_form_cells(each)) for form, each in found["forms"].items()]
    return [*lines, "", *table(("FORM", "BYTES", "LEAVES OUT"), *rows).splitlines()]


def _claims(entry: CardSignature | InvalidSignatureError) -> JsonObject:
    if isinstance(entry, InvalidSignatureError):
        return {"malformed": str(entry)}
    return {"alg": entry.algorithm, **json_object(entry, "kid jku typ form notes")}


def _claims_line(claims: Mapping[str, Any]) -> str:
    if "malformed" in claims:
        return f"malformed: {_shown(claims['malformed'])}"
    names = ("alg", "kid", "typ", "jku", "form")
    facts = (f"{n} {_shown(str(claims[n]))}" for n in names if claims[n] is not None)
    return "; ".join((", ".join(facts), *claims["notes"]))


def _form(card: JsonObject, form: CardForm) -> JsonObject:
    try:
        found = canonicalize(card, form)
    except CanonicalizationError as exc:
        return {"error": str(exc)}
    return {
        "bytes": len(found.payload),
        "uncovered": [json_object(each, "path gap reason") for each in found.uncovered],
    }


def _form_cells(form: Mapping[str, Any]) -> tuple[str, str]:
    if "error" in form:
        return "-", _shown(form["error"])
    return str(form["bytes"]), _shown(", ".join(each["path"] for each in form["uncovered"])) or "-"


def _signature_line(entry: SignatureVerdict) -> str:
    key = f"{entry.algorithm or '-'} kid {_shown(entry.kid or '-')}"
    if entry.accepted and entry.key is not None:
        source = entry.key.jwks_url or "a pinned key"
        stated = "" if entry.stated else ", which it does not state"
        return f"{key}: valid in the form {entry.form}{stated}, under {source}"
    return f"{key}: {_shown(entry.reason, 1000)}"


def _signature_document(entry: SignatureVerdict) -> JsonObject:
    return {
        **json_object(entry, "accepted decision reason kid jku form forms stated notes"),
        "alg": entry.algorithm,
        "key": entry.key.key.kid if entry.key else None,
        "jwks_url": entry.key.jwks_url if entry.key else None,
    }


def _shown(text: str, characters: int = _SHOWN_CHARACTERS) -> str:
    """Return untrusted text on one line, without control characters, and shortened."""
    plain = in_a_line(text).replace("\t", " ")
    return plain if len(plain) <= characters else plain[: characters - 1] + "…"
