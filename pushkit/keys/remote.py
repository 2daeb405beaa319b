"""Keys outside this process: in a KMS or an HSM, which signs and keeps the private key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from pushkit.bounded_json import JsonValue
from pushkit.errors import ConfigError, JwksError
from pushkit.keys.jwk import Algorithm, VerificationKey, verification_key


@runtime_checkable
class RemoteSigner(Protocol):
    """Signs with a private key that it keeps: the adapter to a KMS."""

    @property
    def public_jwk(self) -> Mapping[str, JsonValue]:
        """The public key (RFC 7517), which does not change.

        `kid` is its thumbprint unless it says otherwise; an RSA key is for RS256 unless `alg` says
        PS256.
        """
        ...

    async def sign(self, data: bytes) -> bytes:
        """Sign the data itself, not a hash of it.

        An ECDSA signature may be r and s, each of the curve's length (JOSE, RFC 7518 §3.4), or
        DER, as most services return it, which is converted. It is verified with the public key
        before it is used. The call must not block; one that takes too long is cancelled.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteKey:
    """The key of a remote signer, as an entry of a `KeyRing`."""

    signer: RemoteSigner = field(repr=False, compare=False)
    public: VerificationKey

    @classmethod
    def of(cls, signer: RemoteSigner) -> RemoteKey:
        """Return the key of a signer.

        Raises:
            ConfigError: Its public key cannot be read, or is private.
        """
        jwk, name = signer.public_jwk, f"public_jwk of {type(signer).__name__}"
        if not isinstance(jwk, Mapping):
            raise ConfigError(f"{name}: found {type(jwk).__name__}, expected a mapping")
        try:
            return cls(signer=signer, public=verification_key(jwk))
        except JwksError as exc:
            raise ConfigError(f"{name}: {exc}") from exc

    @property
    def kid(self) -> str:
        """The key's name."""
        return self.public.kid

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm that the key signs with."""
        return self.public.algorithm

    def to_verification_key(self) -> VerificationKey:
        """Return the public half."""
        return self.public
