"""Reports about a sender's key ring: its changes, and keys near their end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from pushkit.events.sender import KeyRingChange
from pushkit.keys.ring import KeyRing, KeyState, RingKey

_SOON: Final = timedelta(days=7)
_OLD: Final = timedelta(days=90)


def ring_changes(before: KeyRing, now: KeyRing) -> Iterator[tuple[KeyRingChange, RingKey]]:
    """Yield the changes from one ring to the next; a new key that is scheduled yields two."""
    old = {key.kid: key for key in before.keys}
    for key in now.keys:
        known = old.pop(key.kid, None)
        if known is None:
            yield KeyRingChange.PUBLISHED, key
        if key.activates_at is not None and (
            known is None or known.activates_at != key.activates_at
        ):
            yield KeyRingChange.SCHEDULED, key
        if key.revoked_at is not None and (known is None or known.revoked_at != key.revoked_at):
            yield KeyRingChange.REVOKED, key
    for key in old.values():
        yield KeyRingChange.FORGOTTEN, key


def near_ends(ring: KeyRing, now: datetime) -> list[tuple[RingKey, str]]:
    """Return the active keys that are old or soon revoked without a successor, and why.

    A key that is revoked within a week has no successor by then; a key that is older than 90 days
    has none at all.
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
