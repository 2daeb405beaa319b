"""How `pushkit subscriptions` tells what it found: rows for people, JSON for programs."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from pushkit.bounded_json import JsonObject
from pushkit.subscriptions import Subscription
from pushkit.terminal.output import moment

__all__ = ["subscription_document", "subscription_row"]


def subscription_row(subscription: Subscription) -> tuple[str, ...]:
    """Return a subscription as a row of `pushkit subscriptions list`."""
    key = subscription.key
    return (
        subscription.id,
        subscription.state.value,
        key.task_id,
        key.owner or "-",
        key.config_id,
        subscription.version.value,
        subscription.origin,
        str(subscription.last_seq),
        moment(subscription.failing_since),
    )


def subscription_document(subscription: Subscription) -> JsonObject:
    """Return a subscription as JSON; of its token and credentials, whether there are any."""
    key, wanted = subscription.key, subscription.wanted
    authentication = subscription.config.authentication
    failing, disabled = subscription.failing_since, subscription.disabled_at
    return {
        "id": subscription.id,
        "state": subscription.state.value,
        "tenant": key.tenant,
        "task_id": key.task_id,
        "owner": key.owner,
        "config_id": key.config_id,
        "version": subscription.version.value,
        "url": _without_query(subscription.config.url),
        "origin": subscription.origin,
        "profile": subscription.profile.value,
        "has_token": subscription.has_token,
        "has_credentials": subscription.has_credentials,
        "schemes": list(authentication.schemes) if authentication else [],
        "states": None if wanted.states is None else [*sorted(wanted.states)],
        "kinds": None if wanted.kinds is None else [*sorted(wanted.kinds)],
        "last_chunk_only": wanted.last_chunk_only,
        "last_seq": subscription.last_seq,
        "task_ended": subscription.ended,
        "failing_since": failing.isoformat() if failing else None,
        "disabled_by": subscription.disabled_by,
        "disabled_at": disabled.isoformat() if disabled else None,
        "created_at": subscription.created_at.isoformat(),
    }


def _without_query(url: str) -> str:
    """Return a URL whose query, where clients put keys, is masked."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(query="***")) if parts.query else url
