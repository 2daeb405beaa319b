"""`pushkit verify`: verifies a captured request.

Unlike a receiver, it does not stop at the first failure, and reports what was found and expected,
except tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO, TypeAlias

import click

from pushkit.a2a import decode_update
from pushkit.bounded_json import write_json
from pushkit.captured import Circumstances, circumstances_of, read_request
from pushkit.cli.options import at_option, scheme_option
from pushkit.clock import utc_now
from pushkit.errors import ConfigError, InboundError, InvalidSignatureError, TokenError
from pushkit.keys.jwk import VerificationKey
from pushkit.keys.jwks import KeysByKid, key_for, keys_by_kid, parse_jwks
from pushkit.lifetimes import LONGEST_TOLERANCE, TOLERANCE
from pushkit.net.jwks_client import load_jwks
from pushkit.net.transport import ConnectionOptions
from pushkit.signing.http_message_signatures import (
    TAG,
    check_content_digest,
    read_content_digest,
    read_unverified_signatures,
    verify_http_signature,
)
from pushkit.signing.notification_jwt import (
    SIGNATURE_HEADER,
    UnverifiedJwt,
    body_sha256,
    check_audience,
    check_body,
    check_issuer,
    check_webhook_id,
    find_jwt,
    read_unverified,
    read_unverified_claims,
    verify_signature,
)
from pushkit.signing.scheme import Scheme
from pushkit.signing.second_opinion import ask_pyjwt
from pushkit.signing.standard_webhooks import (
    WebhookVerifier,
    check_webhook_signature,
    load_webhook_secrets,
    read_unverified_webhook,
    read_verifier,
)
from pushkit.signing.times import check_expiry, check_not_before, check_timestamp
from pushkit.signing.token import hash_token, read_token
from pushkit.terminal.options import FILE, allow_option, egress_options, read_stream, seconds_option
from pushkit.terminal.output import in_a_line
from pushkit.url import audience_of, audience_with_query
from pushkit.webhook import WebhookRequest

_Facts: TypeAlias = dict[str, str | None]
"""The claims of a request by name; proven only if its signature was checked, and no check fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expected:
    """What a request is checked against."""

    keys: KeysByKid | None  # the sender's; None if not given
    verifiers: Sequence[WebhookVerifier]  # the secrets of Standard Webhooks
    issuer: str | None  # the `iss`; None for any
    audience: str | None  # the webhook's URL, normalised; None for any
    now: datetime  # when the request was received
    tolerance: timedelta  # how far its time may be from `now`


@dataclass(slots=True)
class _Report:
    """Prints the result of each check."""

    failed: list[str] = field(default_factory=list)  # the names of the checks that failed

    def add(self, name: str, holds: bool | None, says: str) -> None:
        """Add a result, None if it was not checked; `says` what was found, or also expected."""
        result = "not checked" if holds is None else "valid" if holds else "INVALID"
        click.echo(f"{result:12} {name:12} {in_a_line(says)}")
        if holds is False:
            self.failed.append(name)

    def check(
        self,
        name: str,
        says: str,
        check: Callable[[], object],  # raises InboundError if it does not hold
        *,
        found: str = "",  # added to the error
        instead: str = "",  # replaces the error
    ) -> None:
        """Run a check, and add its result."""
        try:
            check()
        except InboundError as exc:
            self.add(name, False, instead or (f"{exc}: {found}" if found else str(exc)))
        else:
            self.add(name, True, says)

    def unreadable(self, refusal: InboundError, *others: str) -> _Facts:
        """Add the results without a readable signature: the other checks are skipped."""
        self.add("signature", False, str(refusal))
        for name in others:
            self.add(name, None, "there is nothing to check")
        return {}


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
    within=(0, LONGEST_TOLERANCE // timedelta(seconds=1)),
    default=TOLERANCE // timedelta(seconds=1),
    help="How many seconds the time of the signature may differ.",
)
@allow_option
@egress_options(ConnectionOptions)
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
    connections: ConnectionOptions,
) -> None:
    """Verify a captured request, and list every check.

    REQUEST is a file, or - for standard input. The checks are of signature, body, time, issuer,
    audience and token. For options that are not given, the values that `listen --save` stored with
    a request are used. The exit status is 0 if no check fails, else 1.
    """
    request = read_request(read_stream(request_file))
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
    verifiers = [read_verifier(secret) for secret in load_webhook_secrets(secrets_file)]
    if Scheme.HTTP_MESSAGE_SIGNATURES in chosen and not audience:
        raise ConfigError("--audience: expected the URL of the webhook, which is signed")
    if Scheme.STANDARD_WEBHOOKS in chosen and not verifiers:
        raise ConfigError(
            f"--webhook-secrets-file: expected the secrets of {Scheme.STANDARD_WEBHOOKS}"
        )
    if jwks is None:
        keys = _saved_keys(saved)
    else:
        keys = keys_by_kid(asyncio.run(load_jwks(jwks, allow=allow, connections=connections)))
    expected = _Expected(
        keys=keys,
        verifiers=verifiers,
        issuer=issuer,
        audience=audience_of(audience) if audience else None,
        now=at or utc_now(),
        tolerance=tolerance,
    )
    report, examined = _Report(), list[_Facts]()
    for scheme in chosen:
        click.echo(f"{'by':12} {scheme.value}")
        examined.append(_EXAMINE[scheme](request, expected, report))
        if examined[-1] and "signature" in report.failed:
            click.echo(f"{'':12} the signature fails: the other results are of unproven claims")
    _check_token(request, token, report)
    _check_content(request, report)
    if report.failed:
        count = "1 check fails" if len(report.failed) == 1 else f"{len(report.failed)} checks fail"
        raise InvalidSignatureError(f"{count}: {', '.join(report.failed)}")
    for scheme, facts in zip(chosen, examined, strict=True):
        is_proven = scheme is not Scheme.JWT or expected.keys is not None
        says = f"{'proven by':12} {scheme.value}"
        click.echo(says if is_proven else f"{'unproven':12} the signature was not checked")
        _list_facts(request, facts)


def _check_token(request: WebhookRequest, expected: str | None, report: _Report) -> None:
    if expected is None:
        report.add("token", None, "--token was not given")
        return

    def check() -> None:
        found = read_token(request.headers)
        if found is None:
            raise TokenError("the request carries no token, expected one")
        if hash_token(found) != hash_token(expected):
            raise TokenError("the request carries another token than the expected one")

    report.check("token", "is the expected one", check)


def _check_content(request: WebhookRequest, report: _Report) -> None:
    try:
        update = decode_update(request.body)
    except InboundError as exc:
        report.add("content", False, str(exc))
    else:
        report.add("content", True, update.summary)


def _list_facts(request: WebhookRequest, facts: _Facts) -> None:
    update = decode_update(request.body)
    facts["task"] = update.task_id or facts.get("task")
    facts["state"] = update.state.value if update.state else None
    for name, value in facts.items():
        click.echo(f"{name:12} {in_a_line(value or '(not stated)')}")


def _saved_keys(saved: Circumstances | None) -> KeysByKid | None:
    if saved is None or saved.jwks is None:
        return None
    return keys_by_kid(parse_jwks(write_json(saved.jwks)).keys)


# --- the checks of each scheme -------------------------------------------------------------------


def _by_jwt(request: WebhookRequest, expected: _Expected, report: _Report) -> _Facts:
    try:
        token = find_jwt(request.headers)
        if token is None:
            raise InvalidSignatureError(f"no JWT in {SIGNATURE_HEADER} or Authorization")
        unverified = read_unverified(token)
        claims = read_unverified_claims(unverified)
    except InboundError as exc:
        others = ("body", "time", "expiry", "issuer", "audience", "webhook-id")
        return report.unreadable(exc, *others)
    _check_jwt_signature(unverified, expected.keys, report)
    signed, received = claims.body_sha256, body_sha256(request.body)
    report.check(
        "body",
        f"sha256 {signed}",
        lambda: check_body(claims, received, len(request.body)),
        found=f"signed {signed}, received {received}",
    )
    _check_times(claims.issued_at, claims.expires_at, expected, report)
    not_before = claims.not_before
    if not_before is not None:  # few senders state it
        found = _moment(not_before, expected.now)
        report.check(
            "not before",
            found,
            lambda: check_not_before(not_before, expected.now, expected.tolerance),
            found=found,
        )
    issuer, found_issuer = expected.issuer, claims.issuer or "none"
    if issuer is None:
        report.add("issuer", None, f"--issuer was not given; found {found_issuer}")
    else:
        says = f"`iss`: found {found_issuer}, expected {issuer}"
        report.check("issuer", found_issuer, lambda: check_issuer(claims, issuer), instead=says)
    audience, found_audience = expected.audience, ", ".join(claims.audience) or "none"
    if audience is None:
        report.add("audience", None, f"--audience was not given; found {found_audience}")
    else:
        accepted = dict.fromkeys((audience, audience_with_query(audience, request.target)))
        report.check(
            "audience",
            found_audience,
            lambda: check_audience(claims, [audience], request.target),
            instead=f"`aud`: found {found_audience}, expected {' or '.join(accepted)}",
        )
    report.check(
        "webhook-id",
        claims.delivery_id or "no id is signed",
        lambda: check_webhook_id(claims, request.headers),
        found=f"signed {claims.delivery_id}, found {_webhook_ids(request)}",
    )
    return {
        "kid": unverified.kid,
        "issuer": found_issuer,
        "audience": found_audience,
        "issued": _moment(claims.issued_at, expected.now),
        "delivery": claims.delivery_id,
        "task": claims.task_id,
        "seq": None if claims.seq is None else str(claims.seq),
    }


def _check_jwt_signature(
    unverified: UnverifiedJwt, keys: KeysByKid | None, report: _Report
) -> None:
    found = f"`kid` {unverified.kid}" if unverified.kid else "no `kid`"
    if keys is None:
        says = f"--jwks was not given, nor saved with the request; found {found}"
        report.add("signature", None, says)
        return
    key = key_for(keys.get(unverified.kid or "", ()), unverified.algorithm)
    if key is None:
        report.add("signature", False, f"no known key: {_keys(found, keys)}")
        return

    def by_both() -> None:
        verify_signature(unverified, key)
        ask_pyjwt(unverified.token, key)

    says = f"{key.algorithm.value}, kid {key.kid}"
    found = f"found alg {unverified.algorithm}, the key is {says}"
    report.check("signature", f"{says}; PyJWT agrees", by_both, found=found)


def _by_http_signature(request: WebhookRequest, expected: _Expected, report: _Report) -> _Facts:
    url = audience_with_query(expected.audience or "", request.target)
    keys, others = expected.keys or {}, ("body", "time", "expiry")
    try:
        found = read_unverified_signatures(request.headers)
    except InboundError as exc:
        return report.unreadable(exc, *others)
    own = [one for one in found if one.keyid in keys]
    if not own:
        kids = ", ".join(f"`keyid` {one.keyid}" for one in found) or "none"
        says = f"no signature with tag {TAG} by a known key: {_keys(kids, keys)}"
        return report.unreadable(InvalidSignatureError(says), *others)
    signature = own[0]

    def by_any(of: Sequence[VerificationKey]) -> None:  # of one kid: mostly a single one
        key, *others = of
        try:
            verify_http_signature(
                signature,
                key,
                method=request.method,
                target_uris=[url],
                headers=request.headers,
            )
        except InvalidSignatureError:
            if not others:
                raise
            by_any(others)

    report.check(
        "signature",
        f"kid {signature.keyid}, over {url}",
        lambda: by_any(keys[signature.keyid]),
        found=f"checked by kid {signature.keyid}, over {request.method} {url}",
    )
    report.check(
        "body",
        "Content-Digest",
        lambda: check_content_digest(read_content_digest(request.headers), request.body),
    )
    _check_times(signature.issued_at, signature.expires_at, expected, report)
    return {
        "kid": signature.keyid,
        "audience": url,
        "issued": _moment(signature.issued_at, expected.now),
        "delivery": _webhook_ids(request),
    }


def _by_secret(request: WebhookRequest, expected: _Expected, report: _Report) -> _Facts:
    try:
        webhook = read_unverified_webhook(request.headers)
    except InboundError as exc:
        return report.unreadable(exc, "time")
    report.check(
        "signature",
        "over id, time and body",
        lambda: check_webhook_signature(webhook, request.body, expected.verifiers),
    )
    _check_time(webhook.timestamp, expected, report)
    return {"issued": _moment(webhook.timestamp, expected.now), "delivery": webhook.delivery_id}


_EXAMINE: Mapping[Scheme, Callable[[WebhookRequest, _Expected, _Report], _Facts]] = {
    Scheme.JWT: _by_jwt,
    Scheme.HTTP_MESSAGE_SIGNATURES: _by_http_signature,
    Scheme.STANDARD_WEBHOOKS: _by_secret,
}


def _check_time(issued_at: datetime, expected: _Expected, report: _Report) -> None:
    report.check(
        "time",
        _moment(issued_at, expected.now),
        lambda: check_timestamp(issued_at, expected.now, expected.tolerance),
    )


def _check_times(
    issued_at: datetime, expires_at: datetime | None, expected: _Expected, report: _Report
) -> None:
    _check_time(issued_at, expected, report)
    if expires_at is None:
        report.add("expiry", None, "none is stated")
        return
    report.check(
        "expiry",
        f"{expires_at:%Y-%m-%dT%H:%M:%SZ}",
        lambda: check_expiry(expires_at, expected.now),
        found=_moment(expires_at, expected.now),
    )


def _webhook_ids(request: WebhookRequest) -> str:
    return ", ".join(request.headers.all("webhook-id"))


def _keys(found: str, keys: KeysByKid) -> str:
    return f"found {found}, expected {' or '.join(keys) or 'none: the JWK Set is empty'}"


def _moment(moment: datetime, now: datetime) -> str:
    seconds = int((now - moment).total_seconds())
    age = f"{seconds} s ago" if seconds >= 0 else f"{-seconds} s ahead"
    return f"{moment:%Y-%m-%dT%H:%M:%SZ} ({age})"
