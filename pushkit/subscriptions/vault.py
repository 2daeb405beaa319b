"""Tokens and credentials at rest: sealed for the database, opened where an attempt is made.

What is sealed belongs to its subscription and its URL. A ciphertext that is moved to another row,
or beside which somebody wrote another URL, cannot be opened.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, field, replace
from typing import Final

from pushkit.a2a import PushConfig
from pushkit.errors import SealedSecretError, SecretKeyMissingError
from pushkit.secrets.sealing import SEALED, SEALED_HEAD_BYTES, SecretKeys
from pushkit.subscriptions.model import Subscription, SubscriptionKey

__all__ = [
    "SEALED_PREFIX",
    "SEALED_PREFIX_CHARS",
    "Secrets",
    "StoredSubscription",
    "Vault",
    "head_of",
    "sealed_with",
]

# A blank begins no token and no credentials (`PushConfig` sees to that): nobody can register a text
# that is taken for a sealed one.
SEALED_PREFIX: Final = " sealed:"
# As far as the id of the key; twelve bytes are sixteen characters of base64, with none left over.
SEALED_PREFIX_CHARS: Final = len(SEALED_PREFIX) + SEALED_HEAD_BYTES * 4 // 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """The token and the credentials of a subscription as its row holds them, sealed or plain."""

    token: str | None = field(repr=False)
    credentials: str | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSubscription:
    """A subscription with its secrets as they are stored: what an attempt needs."""

    subscription: Subscription
    secrets: Secrets


class Vault:
    """Seals and opens.

    Args:
        keys: Without any, secrets are stored as they are, and what is sealed stays closed.
    """

    def __init__(self, keys: SecretKeys | None) -> None:
        self._keys = keys

    def seal(self, key: SubscriptionKey, config: PushConfig) -> Secrets:
        """Return the secrets of a config as its row holds them."""
        credentials = config.authentication.credentials if config.authentication else None
        return Secrets(
            token=self._seal(config.token, _context("token", key, config.url)),
            credentials=self._seal(credentials, _context("credentials", key, config.url)),
        )

    def open(self, stored: StoredSubscription) -> Subscription:
        """Return a subscription with its secrets, for an attempt.

        Raises:
            SealedSecretError: One of them cannot be opened: the message says why, and for whom.
        """
        subscription, secrets = stored.subscription, stored.secrets
        config = subscription.config
        token = self._open("token", secrets.token, subscription)
        credentials = self._open("credentials", secrets.credentials, subscription)
        authentication = config.authentication
        if authentication is not None:
            authentication = replace(authentication, credentials=credentials)
        opened = replace(config, token=token, authentication=authentication)
        return replace(subscription, config=opened)

    def reseal(self, stored: StoredSubscription) -> Secrets:
        """Return the secrets of a subscription, sealed with the first key.

        Raises:
            SealedSecretError: One of them cannot be opened.
        """
        subscription = self.open(stored)
        return self.seal(subscription.key, subscription.config)

    def _seal(self, secret: str | None, context: bytes) -> str | None:
        if secret is None or self._keys is None:
            return secret
        return SEALED_PREFIX + _encode(self._keys.seal(secret.encode("ascii"), context))

    def _open(self, name: str, value: str | None, subscription: Subscription) -> str | None:
        if value is None or not value.startswith(SEALED_PREFIX):
            return value
        try:
            sealed = base64.b64decode(value.removeprefix(SEALED_PREFIX), validate=True)
            if self._keys is None:
                raise SecretKeyMissingError(
                    "it is sealed, and there are no secret keys here: set PUSHKIT_SECRET_KEYS"
                )
            context = _context(name, subscription.key, subscription.config.url)
            return self._keys.open(sealed, context).decode("ascii")
        except SealedSecretError as exc:
            raise type(exc)(f"the {name} of subscription {subscription.id}: {exc}") from exc
        except (binascii.Error, ValueError) as exc:
            raise SealedSecretError(
                f"the {name} of subscription {subscription.id}: not a sealed secret any more"
            ) from exc


def head_of(keys: SecretKeys) -> str:
    """Return how values begin that are sealed with the first key."""
    return SEALED_PREFIX + _encode(keys.head)


def sealed_with(head: str) -> str:
    """Return the id of the key that a value was sealed with, from its head."""
    return base64.b64decode(head.removeprefix(SEALED_PREFIX))[len(SEALED) :].hex()


def _context(name: str, key: SubscriptionKey, url: str) -> bytes:
    """Return what a secret belongs to, unambiguously."""
    parts = [name, key.tenant, key.task_id, key.owner, key.config_id, url]
    return json.dumps(["pushkit subscription", *parts]).encode("ascii")


def _encode(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")
