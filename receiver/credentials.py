"""Step 5: the token, and any static credentials that a client handed to its agent. Pure.

Both are secrets that prove who speaks, and they are treated as one: stored as hashes, looked up by
their hashes, bound to tasks. Hashes of 256 random bits need no salt; and how far two hashes agree,
which a look-up's time may tell, says nothing of the secret.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from typing import NamedTuple

from pushkit.a2a import Authentication
from pushkit.errors import ConfigError, TokenError
from pushkit.record import record
from pushkit.signing.notification_jwt import UnverifiedJwt
from pushkit.signing.token import hash_credentials, hash_token, read_token
from pushkit.webhook import Headers
from receiver.trust import TrustedSender

_API_KEY = "apikey"
_MINTED = frozenset({"bearer", "basic", _API_KEY})


@record(frozen=True, slots=True, kw_only=True)
class Presented:
    """The secrets of a request, by their hashes. Nothing here is proven."""

    token: str | None  # of the token, None without one
    static_token: bool  # it is one that the sender was given out of band
    # Of `Authorization` and `X-Api-Key`, as far as they are not static ones.
    credentials: tuple[str, ...]
    static_credentials: bool  # one of them is what the sender was given out of band

    @property
    def settled(self) -> bool:
        """Whether what was handed out need not be looked up: nothing here can be of it."""
        return (self.token is None or self.static_token) and not self.credentials


@record(frozen=True, slots=True, kw_only=True)
class HandedOut:
    """What one `expect()` handed out, by its hashes."""

    token: str | None
    credentials: str | None = None


class ProvenSecret(NamedTuple):
    """What a notification stands on: a token, or credentials."""

    sha256: str  # its hash
    static: bool  # the sender was given it out of band; else `expect()` handed it out


def presented(headers: Headers, sender: TrustedSender, jwt: UnverifiedJwt | None) -> Presented:
    """Read the secrets of a request; its JWT may stand in `Authorization`, and is none.

    Raises:
        TokenError: The token headers carry different tokens.
        MalformedRequestError: `Authorization` or `X-Api-Key` stands twice.
    """
    found = read_token(headers)
    token = None if found is None else hash_token(found)
    new, are_static = [], False
    for name in ("Authorization", "X-Api-Key"):
        value = headers.one(name)
        if value and (jwt is None or not value.endswith(jwt.token)):
            hashed = hash_credentials(value)
            if hashed in sender.credential_hashes:
                are_static = True
            else:
                new.append(hashed)
    return Presented(
        token=token,
        static_token=token in sender.token_hashes,
        credentials=tuple(new),
        static_credentials=are_static,
    )


def check_presented(
    sender: TrustedSender, secret: Presented, handed_out: Sequence[HandedOut]
) -> ProvenSecret | None:
    """Do step 5: hold the secrets of a request against those that the sender was given.

    A sender that was handed credentials must send them. It may drop the token then, as the
    JavaScript SDK does: the credentials say as much. A secret that is wrong is wrong also where it
    is optional.

    Args:
        handed_out: What `expect()` handed to this sender, as far as it could be what was sent.

    Returns:
        What the notification stands on; None if a signature or static credentials alone.

    Raises:
        TokenError: A secret is missing or wrong.
    """
    by_token, by_credentials, lacks_credentials = [], [], False
    for one in handed_out:
        is_stated = one.credentials in secret.credentials
        if is_stated:
            by_credentials.append(one)
        if secret.token and one.token == secret.token:
            by_token.append(one)
            lacks_credentials |= bool(one.credentials) and not is_stated
    if secret.token and not secret.static_token and not by_token:
        raise TokenError(f"the token is none that was handed to sender {sender.name}")
    if lacks_credentials:
        raise TokenError("the credentials are not those that were handed out with the token")
    if sender.credentials and not secret.static_credentials and not by_credentials:
        raise TokenError("the credentials are not those that were handed to this sender")
    if secret.token is None and not by_credentials:
        _check_optional_token(sender, secret)
    if secret.token is not None:
        return ProvenSecret(sha256=secret.token, static=not by_token)
    sha256 = by_credentials[0].credentials if by_credentials else None
    return None if sha256 is None else ProvenSecret(sha256=sha256, static=False)


def _check_optional_token(sender: TrustedSender, secret: Presented) -> None:
    if sender.token_required:
        raise TokenError("no token, expected the one that was handed to this sender")
    if not sender.profile.signed and not secret.static_credentials:
        raise TokenError("neither token nor credentials, and this sender does not sign")


# --- minting -------------------------------------------------------------------------------------


def mint_token() -> str:
    """Return a fresh token: 256 random bits, URL-safe."""
    return secrets.token_urlsafe(32)


def mint_authentication(scheme: str) -> Authentication:
    """Return fresh credentials of a scheme, for the agent's push config.

    Args:
        scheme: `Bearer`, `Basic` or `ApiKey`, in the case that the agent wants to read.

    Raises:
        ConfigError: Another scheme.
    """
    secret = mint_token()
    if scheme.lower() not in _MINTED:
        raise ConfigError("authentication: expected Bearer, Basic or ApiKey")
    if scheme.lower() == "basic":  # RFC 7617 §2: already encoded, as the agent writes it verbatim
        secret = base64.b64encode(f"a2a:{secret}".encode()).decode()
    return Authentication(schemes=(scheme,), credentials=secret)
