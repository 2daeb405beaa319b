"""`receiver verify`, which is `pushkit verify` too: a captured request, step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO

import click

from pushkit.bounded_json import JsonObject, write_json
from pushkit.captured import circumstances_of, read_request
from pushkit.clock import LONGEST_TOLERANCE, TOLERANCE, utc_now
from pushkit.errors import ConfigError, InvalidSignatureError
from pushkit.keys.jwk import VerificationKey
from pushkit.keys.jwks import parse_jwks
from pushkit.net.jwks_client import load_jwks
from pushkit.net.transport import ConnectionOptions
from pushkit.signing.scheme import Scheme
from pushkit.terminal.options import (
    allow_option,
    at_option,
    choice_option,
    egress_options,
    read_stream,
    seconds_option,
)
from pushkit.terminal.output import in_a_line, lines_of, numbered
from receiver.diagnosis.by_itself import Expected, verify_by_itself
from receiver.diagnosis.report import step_lines
from receiver.options import Schemes, scheme_options
from receiver.senders import SenderProfile
from receiver.steps import Step


@click.command(
    epilog="\b\nExample:\n  pushkit verify captured.http --jwks jwks.json \\\n"
    "      --issuer https://agent.example.com --audience https://client.example.com/a2a/push\n"
    "\b\nREQUEST is an HTTP/1.1 message (request line, headers, empty line, body), or JSON:\n"
    '{"method": "POST", "target": "/a2a/push", "headers": {…}, "body": "…"}.'
)
@click.argument("request_file", metavar="REQUEST", type=click.File("rb"))
@scheme_options
@click.option("--jwks", help="The sender's JWK Set: a file or an https URL.")
@choice_option("--profile", of=SenderProfile, help="How the sender signs.  [default: standard]")
@click.option("--issuer", help="The expected `iss`.")
@click.option("--audience", help="The webhook's URL, which `aud` must contain.")
@click.option("--token", help="The expected token.")
@at_option
@seconds_option(
    "--tolerance",
    within=(1, LONGEST_TOLERANCE // timedelta(seconds=1)),
    default=TOLERANCE // timedelta(seconds=1),
    help="How many seconds the time of the signature may differ.",
)
@allow_option
@egress_options(ConnectionOptions)
def verify(
    *,
    request_file: BinaryIO,
    schemes: Schemes,
    jwks: str | None,
    profile: SenderProfile | None,
    issuer: str | None,
    audience: str | None,
    token: str | None,
    at: datetime | None,
    tolerance: timedelta,
    allow: tuple[str, ...],
    connections: ConnectionOptions,
) -> None:
    """Verify a captured request, and list every step.

    REQUEST is a file, or - for standard input. The steps are those of a receiver; the ones behind a
    step that refuses the request are checked each by itself. What only a running receiver has is
    not checked: limits, ids, expected tasks. For options that are not given, the values that
    `listen --save` stored with a request are used. The exit status is 0 if no step fails, else 1.
    """
    request = read_request(read_stream(request_file))
    file = Path(getattr(request_file, "name", "-"))  # standard input may have no name
    saved = circumstances_of(file)
    if saved is not None:
        at, issuer = at or saved.received_at, issuer or saved.issuer
        audience = audience or saved.audience
        profile = profile or SenderProfile(saved.profile)
        says = f"answered {in_a_line(saved.answered)} when it came; time, audience and keys"
        click.echo(f"{'saved':12} {says} are from {file.with_suffix('.json').name}")
    profile = profile or SenderProfile.STANDARD
    by_key = schemes.by_key and profile.signed
    if jwks is None and saved is None and by_key:
        raise click.UsageError(
            "--jwks: expected the sender's JWK Set: a file or an https URL. Only a request of"
            " `listen --save` has its keys beside it, in the .json of the same name"
        )
    if Scheme.HTTP_MESSAGE_SIGNATURES in schemes.names and not audience:
        raise ConfigError("--audience: expected the URL of the webhook, which is signed")
    keys: Sequence[VerificationKey] | None = None
    if jwks is not None:
        keys = asyncio.run(load_jwks(jwks, allow=allow, connections=connections))
    elif saved is not None and saved.jwks is not None:
        keys = parse_jwks(write_json(saved.jwks)).keys
    expected = Expected(
        keys=keys if by_key else None,
        schemes=schemes,
        profile=profile,
        issuer=issuer if profile.signed else None,
        audience=audience if profile.signed else None,
        token=token,
        now=at or utc_now(),
        tolerance=tolerance,
    )
    verification = verify_by_itself(request, expected)
    for line in step_lines(verification.results):
        click.echo(line)
    if failed := list(dict.fromkeys(one.name for one in verification.failed)):
        if Step.SIGNATURE.word in failed:
            click.echo("the signature fails: the other results are of unproven claims")
        fail = "fails" if len(failed) == 1 else "fail"
        raise InvalidSignatureError(f"{numbered(len(failed), 'step')} {fail}: {', '.join(failed)}")
    for scheme, proven in verification.proven.items():
        is_proven = profile.signed and (scheme is not Scheme.JWT or keys is not None)
        click.echo(f"proven by {scheme}" if is_proven else "unproven: no signature was checked")
        state = proven.update.state
        shown: JsonObject = {
            "kid": proven.kid,
            "delivery": proven.delivery_id,
            "task": proven.task_id,
            "seq": proven.seq,
            "state": state.value if state else None,
        }
        click.echo(lines_of(shown))
