"""What differs between a key ring and the one before: pure."""

from __future__ import annotations

from collections.abc import Iterator

from pushkit.events.sender import KeyRingChange
from pushkit.keys.ring import KeyRing, RingKey


def ring_changes(before: KeyRing, now: KeyRing) -> Iterator[tuple[KeyRingChange, RingKey]]:
    """Return what was done with which keys; a key that is new and planned is told as both."""
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
