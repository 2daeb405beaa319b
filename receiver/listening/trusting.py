"""The trusted senders of `listen`: those with the given keys, and one to try it with.

If any issuer or any key is accepted, a sender is made for each issuer that arrives, so that the
receiver's own steps check everything else.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from pushkit.errors import InboundError
from pushkit.keys.jwk import Algorithm, SigningKey, VerificationKey, generate_key
from pushkit.signing.notification_jwt import find_jwt, read_unverified
from pushkit.signing.scheme import Scheme
from pushkit.url import is_http_url
from pushkit.webhook import Headers
from receiver.diagnosis.words import signed_again
from receiver.options import Schemes
from receiver.receiver import Receiver
from receiver.senders import SenderProfile, TaskPolicy, TrustedSender

TRIAL_ISSUER = "urn:pushkit:trigger"

_NOBODY_YET = "urn:pushkit:nobody-yet"
_MOST_ISSUERS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedSignatures:
    """Which signatures are accepted."""

    jwks: str | None = None  # a JWK Set: a URL or a file; None for none
    any_key: bool = False  # whether any key is accepted: signatures are not checked
    issuer: str | None = None  # the `iss` to expect; None for any
    profile: SenderProfile = SenderProfile.STANDARD  # how senders sign
    schemes: Schemes = field(default_factory=Schemes)  # which signatures must be valid

    def for_issuer(self, issuer: str | None) -> AcceptedSignatures:
        """Return what is accepted of an issuer: only the JWT of `pushkit trigger`."""
        if issuer == TRIAL_ISSUER:
            return AcceptedSignatures(any_key=self.any_key, issuer=issuer)
        return self

    @property
    def names_keys(self) -> bool:
        """Whether there are keys to trust, besides the one to try it with."""
        return self.any_key or self.jwks is not None

    @property
    def can_be_tried(self) -> bool:
        """Whether a key to try it with can be trusted: not beside senders without keys."""
        return self.profile.signed and self.schemes.by_key

    @property
    def states_issuer(self) -> bool:
        """Whether `iss` distinguishes the senders, as it does with the JWT."""
        return self.profile is SenderProfile.STANDARD and Scheme.JWT in self.schemes.names

    @property
    def is_url(self) -> bool:
        """Whether the JWK Set is fetched."""
        return is_http_url(self.jwks or "")


@dataclass(slots=True)
class Trusting:
    """The trusted senders of `listen`, which may change with each request."""

    source: AcceptedSignatures  # which signatures are accepted
    path: str  # of the webhook
    token: str = field(repr=False)  # of the push config
    trial_key: VerificationKey  # a key of this machine, to try it with
    _receiver: Receiver | None = None
    _any: SigningKey = field(default_factory=lambda: generate_key(Algorithm.ES256), repr=False)
    _issuers: list[str] = field(default_factory=list)

    def watch(self, receiver: Receiver) -> None:
        """Set the receiver whose senders change as new issuers arrive."""
        self._receiver = receiver

    def senders(self) -> list[TrustedSender]:
        """Return the trusted senders at this moment."""
        source = self.source
        if not source.can_be_tried:
            return [self._agent("agent", None)]
        trial_key = self._any.to_verification_key() if source.any_key else self.trial_key
        trial = TrustedSender(
            name="trigger",
            issuer=TRIAL_ISSUER,
            keys=[trial_key],
            path=self.path,
            tokens=[self.token],
            tasks=TaskPolicy.ANY,
        )
        if not source.names_keys:
            return [trial]
        if not source.states_issuer:
            return [trial, self._agent("agent", None)]
        # Until an issuer has arrived, a placeholder: so that the keys are loaded at the start.
        issuers = [source.issuer] if source.issuer else self._issuers or [_NOBODY_YET]
        names = ["agent", *(f"agent-{number}" for number in range(2, len(issuers) + 1))]
        return [trial, *map(self._agent, names, issuers)]

    async def prepare(self, headers: Headers) -> Headers:
        """Trust a new issuer, if any is accepted; return the headers to verify.

        If any key is accepted, their JWT is signed again with a key of our own: the claims stay,
        and are checked.
        """
        source = self.source
        with contextlib.suppress(InboundError):
            token = find_jwt(headers) if source.profile.signed else None
            if token is None:
                return headers
            jwt = read_unverified(token)
            # `pushkit trigger --keys` states the same issuer, with a key of the JWK Set.
            if jwt.issuer != TRIAL_ISSUER or (source.jwks and jwt.kid != self.trial_key.kid):
                await self._trust(jwt.issuer)
            if source.any_key:
                return signed_again(headers, self._any)
        return headers

    async def _trust(self, issuer: str | None) -> None:
        source = self.source
        by_issuer = source.names_keys and source.states_issuer
        if not by_issuer or source.issuer or issuer is None or issuer in self._issuers:
            return
        self._issuers = [*self._issuers, issuer][-_MOST_ISSUERS:]
        if self._receiver is not None:
            await self._receiver.reload_senders(self.senders())

    def _agent(self, name: str, issuer: str | None) -> TrustedSender:
        source, own = self.source, self._any.to_verification_key()
        return TrustedSender(
            name=name,
            issuer=issuer,
            profile=source.profile,
            jwks_url=source.jwks if source.is_url else None,
            jwks_file=Path(source.jwks) if source.jwks and not source.is_url else None,
            keys=[own] if source.any_key else None,
            path=self.path,
            schemes=source.schemes.names,
            webhook_secrets=source.schemes.webhook_secrets,
            tokens=[self.token],
            tasks=TaskPolicy.ANY,
        )
