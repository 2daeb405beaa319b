"""Keys near their end without a successor."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from pushkit.keys.reporting import near_ends
from pushkit.keys.ring import KeyRing

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def reasons(ring: KeyRing, now: datetime) -> list[str]:
    return [why for _, why in near_ends(ring, now)]


def test_a_key_of_three_months_is_reported_until_a_next_one_is_planned() -> None:
    ring = KeyRing.create(NOW)
    assert reasons(ring, NOW + 90 * DAY) == []
    [why] = reasons(ring, NOW + 91 * DAY)
    assert why == "is 91 days old, and no next one is planned: pushkit keys rotate"
    rotated = ring.rotate(NOW + 91 * DAY)
    assert reasons(rotated, NOW + 91 * DAY) == []
    assert reasons(rotated, NOW + 92 * DAY) == []


def test_a_key_that_is_soon_revoked_is_reported_unless_another_signs_by_then() -> None:
    ring = KeyRing.create(NOW)
    [key] = ring.keys
    ending = replace(ring, keys=(replace(key, revoked_at=NOW + 10 * DAY),))
    assert reasons(ending, NOW + 2 * DAY) == []
    [why] = reasons(ending, NOW + 3 * DAY)
    assert why == "is revoked at 2026-01-11T00:00+00:00, and none signs then: pushkit keys rotate"
    assert reasons(ending.rotate(NOW + 3 * DAY), NOW + 3 * DAY) == []
