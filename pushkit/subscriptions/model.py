"""A subscription: one push-notification config of one owner for one task."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pushkit.a2a import PushConfig, WireVersion

__all__ = ["Profile", "Subscription", "SubscriptionKey"]


class Profile(StrEnum):
    """How notifications of a subscription are signed (wire profile §3)."""

    STANDARD = "standard"
    A2A_SAMPLES = "a2a-samples"
    """RS256 and no `aud`: the first samples' verifier refuses a token that has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionKey:
    """What identifies a subscription: setting the same key again changes it, keeping its `seq`."""

    tenant: str
    task_id: str
    owner: str
    config_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A registered config.

    Attributes:
        id: The row's own id, new for each subscription that is created.
        key: Tenant, task, owner and config id.
        version: The A2A version of its bodies, chosen when it was registered.
        config: URL, token and credentials; its repr shows no secret.
        origin: Scheme, host and port of the URL.
        profile: How it is signed.
        last_seq: The `seq` of its newest update; 0 before the first.
        active: False once the webhook answered 410 Gone.
        created_at: When it was first registered.
    """

    id: str
    key: SubscriptionKey
    version: WireVersion
    config: PushConfig
    origin: str
    profile: Profile
    last_seq: int
    active: bool
    created_at: datetime
