"""The token and the credentials of a subscription: sealed for its row, opened for an attempt."""

from __future__ import annotations

from dataclasses import replace

from pushkit.a2a import PushConfig
from pushkit.record import field, record
from pushkit.secrets.vault import CREDENTIALS, TOKEN, Vault
from pushkit.subscriptions.model import Subscription, SubscriptionKey


@record(frozen=True, slots=True, kw_only=True)
class StoredSubscription:
    """A subscription with its secrets as its row holds them, sealed or plain, for an attempt."""

    subscription: Subscription
    token: str | None = field(repr=False)
    credentials: str | None = field(repr=False)


def seal_secrets(
    vault: Vault, key: SubscriptionKey, config: PushConfig
) -> tuple[str | None, str | None]:
    """Return the token and the credentials of a config as its row holds them."""
    authentication, row = config.authentication, (*key, config.url)
    credentials = authentication.credentials if authentication else None
    return (
        vault.seal_text(TOKEN, config.token, row),
        vault.seal_text(CREDENTIALS, credentials, row),
    )


def open_subscription(vault: Vault, stored: StoredSubscription) -> Subscription:
    """Return a subscription with its secrets, for an attempt.

    Raises:
        SealedSecretError: A secret cannot be opened; the message names it and the reason.
    """
    subscription, config = stored.subscription, stored.subscription.config
    row = (*subscription.key, config.url)
    token = vault.open_text(TOKEN, subscription.id, stored.token, row)
    credentials = vault.open_text(CREDENTIALS, subscription.id, stored.credentials, row)
    authentication = config.authentication
    if authentication is not None:
        authentication = replace(authentication, credentials=credentials)
    opened = replace(config, token=token, authentication=authentication)
    return replace(subscription, config=opened)
