"""`pushkit verify`: verifies a captured request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO

import click

from pushkit.a2a import decode_update
from pushkit.bounded_json import write_json
from pushkit.captured import Circumstances, circumstances_of, read_request
from pushkit.cli.options import at_option, scheme_option
from pushkit.cli.proofs import Check, Examined, Expected, checked, examine
from pushkit.clock import utc_now
from pushkit.errors import InboundError, InvalidSignatureError, TokenError
from pushkit.keys.jwk import VerificationKey
from pushkit.keys.jwks import parse_jwks
from pushkit.net.jwks_client import load_jwks
from pushkit.signing.scheme import Scheme
from pushkit.signing.standard_webhooks import load_webhook_secrets, read_verifier
from pushkit.signing.token import hash_token, read_token, token_matches
from pushkit.terminal.options import FILE, allow_option, seconds_option
from pushkit.terminal.output import in_a_line
from pushkit.url import audience_of
from pushkit.webhook import Headers, WebhookRequest


@click.command(
    epilog="\b\nExample:\n  pushkit verify captured.http --jwks jwks.json \\\n"
    "      --issuer https://agent.example.com --audience https://client.example.com/a2a/push\n"
    "\b\nREQUEST is an HTTP/1.1 message (request line, headers, empty line, body), or JSON:\n"
    '{"method": "POST", "target": "/a2a/push", "headers": {…}, "body": "…"}.'
)
@click.argument("request_file", metavar="REQUEST", type=click.File("rb"))
@scheme_option("A signature that must be valid; may be given several times.")
@click.option("--jwks", help="The sender's JWK Set: a file or an https URL.")
@click.option(
    "--webhook-secrets-file",
    "secrets_file",
    type=FILE,
    help="For standard-webhooks: a file with a whsec_… or whpk_… per line.",
)
@click.option("--issuer", help="The expected `iss`.")
@click.option("--audience", help="The webhook's URL, which `aud` must contain.")
@click.option("--token", help="The expected token.")
@at_option
@seconds_option(
    "--tolerance",
    within=(0, 86400),
    default=300,
    help="How many seconds the time of the signature may differ.",
)
@allow_option
def verify(
    *,
    request_file: BinaryIO,
    schemes: tuple[Scheme, ...],
    jwks: str | None,
    secrets_file: Path | None,
    issuer: str | None,
    audience: str | None,
    token: str | None,
    at: datetime | None,
    tolerance: timedelta,
    allow: tuple[str, ...],
) -> None:
    """Verify a captured request, and list every check.

    REQUEST is a file, or - for standard input. The checks are of signature, body, time, issuer,
    audience and token. For options that are not given, the values that `listen --save` stored with
    a request are used. The exit status is 0 if no check fails, else 1.
    """
    request = read_request(request_file.read())
    chosen = list(dict.fromkeys(schemes))
    file = Path(getattr(request_file, "name", "-"))  # standard input may have no name
    saved = circumstances_of(file)
    if jwks is None and saved is None and set(chosen) != {Scheme.STANDARD_WEBHOOKS}:
        raise click.UsageError("--jwks: expected the sender's JWK Set: a file or an https URL")
    if saved is not None:
        at, issuer = at or saved.received_at, issuer or saved.issuer
        audience = audience or saved.audience
        says = f"answered {in_a_line(saved.answered)} when it came; time, audience and keys"
        click.echo(f"{'saved':12} {says} are from {file.with_suffix('.json').name}")
    expected = Expected(
        keys=asyncio.run(load_jwks(jwks, allow=allow)) if jwks else _saved_keys(saved),
        verifiers=[read_verifier(secret) for secret in load_webhook_secrets(secrets_file)],
        issuer=issuer,
        audience=audience_of(audience) if audience else None,
        now=at or utc_now(),
        tolerance=tolerance,
    )
    examined = [(scheme, examine(scheme, request, expected)) for scheme in chosen]
    failed: list[str] = []
    for scheme, found in examined:
        click.echo(f"{'by':12} {scheme.value}")
        failed += _list_checks(found.checks)
        if found.facts and "signature" in failed:
            click.echo(f"{'':12} the signature fails: the other results are of unproven claims")
    failed += _list_checks((_token(request.headers, token), _content(request)))
    if failed:
        count = "1 check fails" if len(failed) == 1 else f"{len(failed)} checks fail"
        raise InvalidSignatureError(f"{count}: {', '.join(failed)}")
    for scheme, found in examined:
        click.echo(f"{'proven by':12} {scheme.value}")
        _list_facts(request, found)


def _list_checks(checks: Sequence[Check]) -> list[str]:
    """Print checks; return the names of those that failed."""
    for check in checks:
        result = "not checked" if check.holds is None else "valid" if check.holds else "INVALID"
        click.echo(f"{result:12} {check.name:12} {in_a_line(check.says)}")
    return [check.name for check in checks if check.holds is False]


def _token(headers: Headers, expected: str | None) -> Check:
    if expected is None:
        return Check("token", None, "--token was not given")

    def check() -> None:
        found = read_token(headers)
        if found is None:
            raise TokenError("the request carries no token, expected one")
        if not token_matches(found, [hash_token(expected)]):
            raise TokenError("the request carries another token than the expected one")

    return checked("token", "is the expected one", check)


def _content(request: WebhookRequest) -> Check:
    try:
        update = decode_update(request.body)
    except InboundError as exc:
        return Check("content", False, str(exc))
    return Check("content", True, f"{update.kind.value} of A2A {update.origin}")


def _list_facts(request: WebhookRequest, examined: Examined) -> None:
    update = decode_update(request.body)
    facts = {
        **examined.facts,
        "task": update.task_id or examined.facts.get("task"),
        "state": update.state.value if update.state else None,
    }
    for name, value in facts.items():
        click.echo(f"{name:12} {in_a_line(value or '(not stated)')}")


def _saved_keys(saved: Circumstances | None) -> Mapping[str, VerificationKey] | None:
    return None if saved is None or saved.jwks is None else parse_jwks(write_json(saved.jwks)).keys
