"""`pushkit verify`: hold a captured request against a sender's keys."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import click

from pushkit.a2a import decode_update
from pushkit.bounded_json import read_json_object
from pushkit.cli.proofs import Expected, Proof, prove
from pushkit.cli.signing import read_webhook_secrets, scheme_option
from pushkit.errors import ConfigError, MalformedJsonError, MalformedRequestError, TokenError
from pushkit.keys.jwk import VerificationKey
from pushkit.keys.jwks import parse_jwks
from pushkit.net.destination import DestinationPolicy
from pushkit.net.jwks_client import fetch_jwks
from pushkit.net.transport import Transport
from pushkit.signing.audience import audience_of
from pushkit.signing.scheme import Scheme
from pushkit.signing.standard_webhooks import read_verifier
from pushkit.signing.token import hash_token, read_token, token_matches
from pushkit.webhook import Headers, WebhookRequest

__all__ = ["verify"]


@click.command(
    epilog="\b\nExample:\n  pushkit verify captured.http --jwks jwks.json \\\n"
    "      --issuer https://agent.example.com --audience https://client.example.com/a2a/push\n"
    "\b\nREQUEST is an HTTP/1.1 message as on the wire (request line, headers, empty line, body),\n"
    'or JSON: {"method": "POST", "target": "/a2a/push", "headers": {…}, "body": "…"}.'
)
@click.argument("request_file", metavar="REQUEST", type=click.File("rb"))
@scheme_option("A signature that must hold; may stand several times.")
@click.option("--jwks", help="The sender's JWK Set: a file or an https URL.")
@click.option(
    "--webhook-secrets-file",
    "secrets_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="For standard-webhooks: a file with a whsec_… or whpk_… per line.",
)
@click.option("--issuer", help="The `iss` to expect.")
@click.option("--audience", help="The webhook's URL, to be found in `aud`.")
@click.option("--token", help="The token to expect.")
@click.option(
    "--at",
    type=click.DateTime(["%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S%z"]),
    help="The moment to verify for, in UTC: when it was received.  [default: now]",
)
@click.option(
    "--tolerance", type=click.IntRange(0, 86400), default=300, show_default=True, help="Seconds."
)
@click.option("--allow", multiple=True, help="For --jwks: a host named for development.")
def verify(
    *,
    request_file: BinaryIO,
    schemes: tuple[str, ...],
    jwks: str | None,
    secrets_file: Path | None,
    issuer: str | None,
    audience: str | None,
    token: str | None,
    at: datetime | None,
    tolerance: int,
    allow: tuple[str, ...],
) -> None:
    """Verify a captured REQUEST (a file, or -): signature, body, time, issuer, audience, token.

    Exit status 0 if everything that was asked for holds, 1 if not.
    """
    request = _read_request(request_file.read())
    now = datetime.now(UTC) if at is None else at.replace(tzinfo=at.tzinfo or UTC)
    chosen = [Scheme(name) for name in dict.fromkeys(schemes)]
    if jwks is None and set(chosen) != {Scheme.STANDARD_WEBHOOKS}:
        raise click.UsageError("--jwks: expected the sender's JWK Set: a file or an https URL")
    expected = Expected(
        keys=_load_keys(jwks, allow) if jwks else {},
        verifiers=[read_verifier(secret) for secret in read_webhook_secrets(secrets_file)],
        issuer=issuer,
        audience=audience_of(audience) if audience else None,
        now=now,
        tolerance=timedelta(seconds=tolerance),
    )
    proofs = [(scheme, prove(scheme, request, expected)) for scheme in chosen]
    if token is not None:
        _check_token(request.headers, token)
    for scheme, proof in proofs:
        _report(request, scheme, proof, now)
    for name, given in (("--issuer", issuer), ("--audience", audience), ("--token", token)):
        if given is None:
            click.echo(f"not checked  {name} was not given")


def _check_token(headers: Headers, expected: str) -> None:
    found = read_token(headers)
    if found is None or not token_matches(found, [hash_token(expected)]):
        raise TokenError("the request does not carry the token that was expected")


def _report(request: WebhookRequest, scheme: Scheme, proof: Proof, now: datetime) -> None:
    update = decode_update(request.body)
    facts = {
        "verified": f"{update.kind.value} of A2A {update.origin}",
        "by": scheme.value,
        "kid": proof.kid or "(not stated)",
        "issuer": proof.issuer or "(not stated)",
        "audience": proof.audience or "(not stated)",
        "issued": f"{proof.issued_at:%Y-%m-%dT%H:%M:%SZ} ({_age(now - proof.issued_at)})",
        "delivery": proof.delivery_id or "(not stated)",
        "task": update.task_id or proof.task_id or "(not stated)",
        "state": update.state.value if update.state else "-",
        "seq": str(proof.seq or "-"),
    }
    for name, value in facts.items():
        click.echo(f"{name:12} {value}")


def _age(age: timedelta) -> str:
    seconds = int(age.total_seconds())
    return f"{seconds} s ago" if seconds >= 0 else f"{-seconds} s ahead"


def _load_keys(jwks: str, allow: tuple[str, ...]) -> Mapping[str, VerificationKey]:
    if jwks.startswith(("https://", "http://")):
        return parse_jwks(asyncio.run(_fetch(jwks, allow))).keys
    try:
        return parse_jwks(Path(jwks).read_bytes()).keys
    except OSError as exc:
        raise ConfigError(f"--jwks: {jwks}: {exc.strerror}") from exc


async def _fetch(url: str, allow: tuple[str, ...]) -> bytes:
    transport = Transport(DestinationPolicy(allow))
    try:
        answer = await fetch_jwks(transport, url)
    finally:
        await transport.close()
    if answer.status != 200:
        raise ConfigError(f"--jwks: found status {answer.status}, expected 200")
    return answer.body


def _read_request(data: bytes) -> WebhookRequest:
    return _read_json_request(data) if data.lstrip()[:1] == b"{" else _read_http_request(data)


def _read_http_request(data: bytes) -> WebhookRequest:
    head, separator, body = data.partition(b"\r\n\r\n")
    if not separator:
        head, separator, body = data.partition(b"\n\n")
    lines = head.decode("latin-1").splitlines()
    words = lines[0].split() if lines else []
    if not separator or len(words) != 3 or not words[2].startswith("HTTP/"):
        raise MalformedRequestError(
            "found no HTTP/1.1 request: expected `POST /path HTTP/1.1`, headers, an empty line"
        )
    fields = [tuple(line.split(":", 1)) for line in lines[1:] if ":" in line]
    headers = Headers([(field[0].strip(), field[1].strip()) for field in fields])
    return WebhookRequest(method=words[0], target=_target(words[1]), headers=headers, body=body)


def _read_json_request(data: bytes) -> WebhookRequest:
    try:
        document = read_json_object(data)
    except MalformedJsonError as exc:
        raise MalformedRequestError(f"the request file: {exc}") from exc
    headers, body = document.get("headers"), document.get("body")
    if not isinstance(headers, dict) or not isinstance(body, str):
        raise MalformedRequestError("the request file: expected members `headers` and `body`")
    return WebhookRequest(
        method=str(document.get("method", "POST")),
        target=_target(str(document.get("target", "/"))),
        headers=Headers({name: str(value) for name, value in headers.items()}),
        body=body.encode("utf-8"),
    )


def _target(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError as exc:
        raise MalformedRequestError("the request file: the target is no URL") from exc
    return f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
