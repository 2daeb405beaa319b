"""Which keys are near their end, with none to follow: pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from pushkit.keys.ring import KeyRing, KeyState, RingKey

_SOON: Final = timedelta(days=7)
_OLD: Final = timedelta(days=90)


def near_ends(ring: KeyRing, now: datetime) -> list[tuple[RingKey, str]]:
    """Return the signing keys that are old or soon revoked while no next one is planned, and why.

    One that is revoked within a week has no successor by then; one that is older than 90 days has
    none at all.
    """
    published = ring.published(now)
    found: list[tuple[RingKey, str]] = []
    for key in published:
        if ring.state(key.kid, now) is not KeyState.ACTIVE:
            continue
        planned = [
            at
            for other in published
            if other.algorithm is key.algorithm and (at := other.took_over_at()) and at > now
        ]
        revoked_at, age = key.revoked_at, key.age(now)
        if revoked_at is not None and revoked_at - now <= _SOON:
            if not any(at <= revoked_at for at in planned):
                when = revoked_at.isoformat(timespec="minutes")
                says = f"is revoked at {when}, and none signs then: pushkit keys rotate"
                found.append((key, says))
        elif age is not None and age > _OLD and not planned:
            says = f"is {age.days} days old, and no next one is planned: pushkit keys rotate"
            found.append((key, says))
    return found
