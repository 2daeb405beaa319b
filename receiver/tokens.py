"""Step 5 of the verification: the token and the credentials that a sender was handed.

Both are treated alike: stored as hashes, looked up by their hashes, bound to tasks. Hashes of 256
random bits need no salt. The time of a look-up may reveal how far two hashes agree, but that
reveals nothing about the secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pushkit.errors import TokenError
from pushkit.record import record
from pushkit.webhook import hash_credentials, hash_token, read_token
from receiver.request import Request
from receiver.signatures import SignedClaims
from receiver.steps import Step, Trail


class Presented(NamedTuple):
    """The secrets that a request states, as hashes. Nothing of it is proven."""

    token: str | None  # None without a token
    static_token: bool  # whether it is one of the sender's configured tokens
    # `Authorization` and `X-Api-Key`, except the sender's configured credentials.
    credentials: tuple[str, ...]
    static_credentials: bool  # whether one of the configured credentials is stated

    @property
    def asks_for_registrations(self) -> bool:
        """Whether a secret is stated that is not configured: `expect()` may have handed it out."""
        return bool(self.credentials) or (self.token is not None and not self.static_token)


@record(frozen=True, slots=True, kw_only=True)
class HandedOut:
    """The secrets that one `expect()` handed out, as hashes."""

    token: str | None
    credentials: str | None = None


class ProvenSecret(NamedTuple):
    """The secret that authorises a notification: a token, or credentials."""

    sha256: str  # its hash
    static: bool  # whether it is configured; else `expect()` handed it out


def read_secrets(claims: SignedClaims, request: Request) -> Presented:
    """Begin step 5: read the secrets of a request; a JWT in `Authorization` is not one of them.

    Raises:
        TokenError: The token headers carry different tokens.
        MalformedRequestError: `Authorization` or `X-Api-Key` occurs twice.
    """
    request.trail.begun.append(Step.TOKEN)
    sender, headers = claims.sender, request.headers
    value = read_token(headers)
    token = None if value is None else hash_token(value)
    credentials, are_static = [], False
    for name in ("Authorization", "X-Api-Key"):
        value = headers.one(name)
        if value and (claims.compact is None or not value.endswith(claims.compact)):
            sha256 = hash_credentials(value)
            if sha256 in sender.credential_hashes:
                are_static = True
            else:
                credentials.append(sha256)
    return Presented(token, token in sender.token_hashes, tuple(credentials), are_static)


def check_secrets(
    claims: SignedClaims, secrets: Presented, registered: Sequence[HandedOut], trail: Trail
) -> ProvenSecret | None:
    """Do the rest of step 5: compare the secrets of a request with those that its sender was given.

    A sender that was handed credentials must send them. It may then omit the token, as the
    JavaScript SDK does: the credentials prove as much. A wrong secret is refused even if the
    secret is optional.

    Args:
        claims: What the request's signatures are over, and its sender.
        secrets: The secrets of the request.
        registered: The sender's registrations that fit these secrets.
        trail: The steps of the request.

    Returns:
        The secret that authorises the notification; None if only a signature or configured
        credentials do.

    Raises:
        TokenError: A secret is missing or wrong.
    """
    sender = claims.sender
    by_token, by_credentials, lacks_credentials = False, None, False
    for registration in registered:
        is_stated = registration.credentials in secrets.credentials
        if is_stated:
            by_credentials = by_credentials or registration.credentials
        if secrets.token and registration.token == secrets.token:
            by_token = True
            lacks_credentials |= bool(registration.credentials) and not is_stated
    if secrets.token and not secrets.static_token and not by_token:
        raise TokenError(
            f"found another token, expected one handed out to sender {sender.name}: the `token`"
            " of the push config"
        )
    if lacks_credentials:
        which = "other" if secrets.credentials or secrets.static_credentials else "no"
        raise TokenError(
            f"found {which} credentials, expected those handed out with the token: the"
            " `authentication` of the push config"
        )
    if sender.credentials and not secrets.static_credentials and not by_credentials:
        raise TokenError(
            "found none of the credentials handed out to this sender, expected those of the"
            " `authentication` of the push config"
        )
    if secrets.token is None and not by_credentials:
        if sender.token_required:
            raise TokenError("found no token, expected the `token` of the push config")
        if not sender.profile.signed and not secrets.static_credentials:
            raise TokenError(
                "found neither token nor credentials: a sender that does not sign has to send the"
                " `token` or the `authentication` of the push config"
            )
    if claims.webhook is None:  # unsigned: its secret is the proof
        trail.sender = sender.name
    if secrets.token is not None:
        return ProvenSecret(secrets.token, static=not by_token)
    return ProvenSecret(by_credentials, static=False) if by_credentials else None
