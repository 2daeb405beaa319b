from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from time import process_time
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pushkit.errors import KeyRingError, NoSigningKeyError
from pushkit.keys.jwk import MAX_JWKS_KEYS, Algorithm, SigningKey, generate_key
from pushkit.keys.jwks import jwks_document, parse_jwks
from pushkit.keys.ring import KeyRing, KeyState, RingKey

START = datetime(2026, 1, 1, tzinfo=UTC)
LEAD = timedelta(seconds=330)
MAX_AGE = timedelta(seconds=300)
GRACE = timedelta(seconds=600)
SECOND = timedelta(seconds=1)


@pytest.fixture
def ring() -> KeyRing:
    return KeyRing.create(START)


def signs(ring: KeyRing, now: datetime, algorithm: Algorithm | None = None) -> str:
    return ring.signing_key(now, algorithm).kid


def test_the_first_key_of_a_new_ring_signs_at_once(ring: KeyRing) -> None:
    assert ring.state(signs(ring, START), START) is KeyState.ACTIVE


def test_a_key_goes_through_its_states_by_time_alone(ring: KeyRing) -> None:
    first = ring.keys[0].kid
    rotated = ring.rotate(START)
    second = rotated.keys[-1].kid
    handover = START + LEAD
    states = [
        (rotated.state(first, now), rotated.state(second, now))
        for now in (handover - SECOND, handover, handover + GRACE - SECOND, handover + GRACE)
    ]
    assert states == [
        (KeyState.ACTIVE, KeyState.PENDING),
        (KeyState.RETIRING, KeyState.ACTIVE),
        (KeyState.RETIRING, KeyState.ACTIVE),
        (KeyState.RETIRED, KeyState.ACTIVE),
    ]


def test_pending_active_and_retiring_keys_are_published(ring: KeyRing) -> None:
    rotated = ring.rotate(START).add(START + LEAD)
    assert len(rotated.published(START + LEAD)) == 3
    assert len(rotated.published(START + LEAD + GRACE)) == 2


def test_an_added_key_waits_for_its_rotation(ring: KeyRing) -> None:
    added = ring.add(START)
    assert added.keys[-1].activates_at is None
    assert added.state(added.keys[-1].kid, START + timedelta(days=99)) is KeyState.PENDING


def test_the_first_key_of_another_algorithm_is_scheduled(ring: KeyRing) -> None:
    added = ring.add(START, Algorithm.ES384)
    assert added.keys[-1].activates_at == START + LEAD
    assert signs(added, START + LEAD, Algorithm.ES384) == added.keys[-1].kid
    assert signs(added, START + LEAD) == ring.keys[0].kid


def test_rotation_takes_the_oldest_key_that_has_no_schedule(ring: KeyRing) -> None:
    added = ring.add(START).add(START + SECOND)
    oldest = added.keys[1].kid
    rotated = added.rotate(START + timedelta(days=1))
    assert rotated.keys[-1].kid == oldest
    assert rotated.keys[-1].activates_at == START + timedelta(days=1)


def test_rotation_waits_until_the_key_has_been_published_for_the_lead(ring: KeyRing) -> None:
    rotated = ring.add(START).rotate(START + SECOND)
    assert rotated.keys[-1].activates_at == START + LEAD


def test_a_rotation_that_is_repeated_changes_nothing(ring: KeyRing) -> None:
    rotated = ring.rotate(START)
    again = rotated.rotate(START + SECOND)
    assert again == rotated
    other = rotated.add(START, Algorithm.ES384).rotate(START + SECOND)
    assert other.keys[-1] == rotated.keys[-1]  # the next key is the last one
    assert len(other.keys) == len(rotated.keys) + 1
    assert len(again.rotate(START + LEAD).keys) == len(again.keys) + 1


def test_a_pending_key_is_scheduled_after_the_next_one(ring: KeyRing) -> None:
    rotated = ring.rotate(START).add(START + SECOND).rotate(START + SECOND)
    assert [entry.activates_at for entry in rotated.keys[1:]] == [
        START + LEAD,
        START + SECOND + LEAD,
    ]


def test_a_next_key_that_is_revoked_before_it_signs_is_none(ring: KeyRing) -> None:
    rotated = ring.rotate(START)
    revoked = rotated.revoke(rotated.keys[-1].kid, START)
    assert len(revoked.rotate(START).keys) == len(revoked.keys) + 1


def test_rotation_never_overtakes_a_scheduled_successor(ring: KeyRing) -> None:
    first = ring.add(START).rotate(START + timedelta(hours=1)).add(START)
    scheduled = replace(first.keys[1], activates_at=START + timedelta(days=2))
    later = replace(first, keys=(first.keys[0], scheduled, first.keys[2]))
    rotated = later.rotate(START + timedelta(days=1))
    assert rotated.keys[-1].activates_at == START + timedelta(days=2)
    assert signs(rotated, START + timedelta(days=2)) == rotated.keys[-1].kid


def test_activating_a_key_that_caches_may_miss_is_refused(ring: KeyRing) -> None:
    added = ring.add(START)
    early = START + timedelta(seconds=4, microseconds=995_420)
    with pytest.raises(KeyRingError, match=r"for 4 seconds, expected 300 seconds: .*--force"):
        added.rotate(early, activate_now=True)
    with pytest.raises(KeyRingError, match="published for 299 seconds"):
        added.rotate(START + MAX_AGE - SECOND, activate_now=True)
    with pytest.raises(KeyRingError, match="no ES256 key is pending: add one, and wait 300 sec"):
        ring.rotate(START, activate_now=True)


@pytest.mark.parametrize("publish", [KeyRing.add, KeyRing.rotate], ids=["unscheduled", "scheduled"])
def test_a_key_published_for_max_age_can_be_activated(
    ring: KeyRing, publish: Callable[[KeyRing, datetime], KeyRing]
) -> None:
    published, now = publish(ring, START), START + MAX_AGE
    assert signs(published.rotate(now, activate_now=True), now) == published.keys[-1].kid


def test_force_activates_a_new_key_at_once(ring: KeyRing) -> None:
    forced = ring.rotate(START, activate_now=True, force=True)
    assert signs(forced, START) == forced.keys[-1].kid != ring.keys[0].kid


def test_no_more_keys_are_published_than_receivers_take(ring: KeyRing) -> None:
    while len(ring.published(START)) < MAX_JWKS_KEYS:
        ring = ring.add(START)
    assert len(parse_jwks(jwks_document(ring, START)).keys) == MAX_JWKS_KEYS
    with pytest.raises(KeyRingError, match="32 keys are published"):
        ring.add(START)
    while any(key.activates_at is None for key in ring.keys):
        ring = ring.rotate(START)
    assert ring.rotate(START) == ring
    without_pending = replace(ring, keys=tuple(replace(e, activates_at=START) for e in ring.keys))
    with pytest.raises(KeyRingError, match="32 keys are published"):
        without_pending.rotate(START)


def test_a_revoked_key_is_unpublished_at_once_and_a_new_one_signs(ring: KeyRing) -> None:
    kid = ring.keys[0].kid
    revoked = ring.revoke(kid, START)
    assert kid not in {entry.kid for entry in revoked.published(START)}
    assert revoked.state(kid, START) is KeyState.REVOKED
    assert signs(revoked, START) == revoked.keys[-1].kid != kid


def test_revoking_promotes_the_longest_published_pending_key(ring: KeyRing) -> None:
    added = ring.add(START + SECOND).add(START + 2 * SECOND)
    revoked = added.revoke(ring.keys[0].kid, START + 3 * SECOND)
    assert signs(revoked, START + 3 * SECOND) == added.keys[1].kid
    assert len(revoked.keys) == 3


def test_a_successor_revoked_before_its_time_leaves_the_signer_in_place(ring: KeyRing) -> None:
    rotated = ring.rotate(START)
    revoked = rotated.revoke(rotated.keys[-1].kid, START + SECOND)
    assert signs(revoked, START + timedelta(days=1)) == ring.keys[0].kid


def test_a_successor_revoked_at_the_moment_it_took_over_is_replaced(ring: KeyRing) -> None:
    forced = ring.rotate(START, activate_now=True, force=True)
    revoked = forced.revoke(forced.keys[-1].kid, START)
    assert signs(revoked, START) == revoked.keys[-1].kid
    assert revoked.state(ring.keys[0].kid, START) is KeyState.RETIRING


def test_revoking_twice_changes_nothing(ring: KeyRing) -> None:
    revoked = ring.revoke(ring.keys[0].kid, START)
    assert revoked.revoke(ring.keys[0].kid, START + SECOND) == revoked


def test_the_active_key_is_found_for_any_time_in_any_order(ring: KeyRing) -> None:
    turned = ring.rotate(START).rotate(START + LEAD).revoke(ring.keys[0].kid, START + LEAD / 2)
    moments = [START + LEAD * step / 4 for step in range(12)]
    for now in (*moments, *reversed(moments), *moments[::3], *moments[1::2]):
        assert signs(turned, now) == signs(replace(turned), now)
    assert len({signs(turned, now) for now in moments}) == 3


def test_a_request_for_the_jwk_set_costs_little_after_many_rotations() -> None:
    key = generate_key(Algorithm.ES256).private_key
    moments = [START + timedelta(hours=hour) for hour in range(1500)]
    ring = KeyRing(
        keys=tuple(
            RingKey(key=SigningKey.of(key, kid=str(at)), published_at=at, activates_at=at)
            for at in moments
        )
    )
    before = process_time()
    assert [entry.kid for entry in ring.published(moments[-1])] == [*map(str, moments[-2:])]
    assert process_time() - before < 0.1  # with the square of the keys, a second


def test_an_unknown_kid_is_refused(ring: KeyRing) -> None:
    with pytest.raises(KeyRingError, match="no key 'x'"):
        ring.revoke("x", START)


def test_an_algorithm_without_a_key_cannot_sign(ring: KeyRing) -> None:
    with pytest.raises(NoSigningKeyError, match="add one"):
        ring.signing_key(START, Algorithm.EDDSA)
    later = START + timedelta(microseconds=7)
    with pytest.raises(NoSigningKeyError, match=rf"signs from {START + LEAD:%Y-%m-%dT%H:%M:%SZ}$"):
        ring.rotate(later, Algorithm.EDDSA).signing_key(later, Algorithm.EDDSA)


def test_retired_and_revoked_keys_are_forgotten_after_a_while(ring: KeyRing) -> None:
    rotated = ring.rotate(START)
    end = START + LEAD + GRACE + timedelta(days=30)
    assert len(rotated.forget_retired(end - SECOND).keys) == 2
    assert len(rotated.forget_retired(end).keys) == 1


def test_a_revoked_key_is_kept_thirty_days(ring: KeyRing) -> None:
    month = timedelta(days=30)

    def kept(ring: KeyRing, kid: str, now: datetime) -> bool:
        return kid in {entry.kid for entry in ring.forget_retired(now).keys}

    # One that never signed, one that never did because it was revoked at that moment, one that
    # signed until then, and one that had retired long before.
    pending = ring.add(START)
    spare, first = pending.keys[-1].kid, ring.keys[0].kid
    revoked = pending.revoke(spare, START + SECOND)
    assert kept(revoked, spare, START + month)
    assert not kept(revoked, spare, START + SECOND + month)
    revoked = ring.revoke(first, START)
    assert kept(revoked, first, START + month - SECOND)
    assert not kept(revoked, first, START + month)
    revoked = ring.revoke(first, START + SECOND)
    assert kept(revoked, first, START + GRACE + month)
    assert not kept(revoked, first, START + SECOND + GRACE + month)
    later = START + timedelta(days=100)
    revoked = ring.rotate(START).revoke(first, later)
    assert kept(revoked, first, later + month - SECOND)
    assert not kept(revoked, first, later + month)


def test_a_revoked_key_is_kept_while_its_predecessor_counts_from_it(ring: KeyRing) -> None:
    forced = ring.rotate(START, activate_now=True, force=True)
    revoked = forced.revoke(forced.keys[-1].kid, START + SECOND)
    now = START + SECOND
    kept = revoked.forget_retired(now, keep=timedelta(0))
    assert kept.state(ring.keys[0].kid, START + GRACE) is KeyState.RETIRED
    assert kept == revoked


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(START.replace(tzinfo=None), id="naive"),
        pytest.param(START.astimezone(timezone(timedelta(hours=1))), id="elsewhere"),
    ],
)
def test_only_aware_utc_times_are_taken(ring: KeyRing, now: datetime) -> None:
    for call in (ring.add, ring.rotate, ring.published, ring.signing_key, KeyRing.create):
        with pytest.raises(KeyRingError, match="UTC"):
            call(now)


def test_two_keys_of_one_kid_are_refused(ring: KeyRing) -> None:
    with pytest.raises(KeyRingError, match="same kid"):
        ring.add(START, key=ring.keys[0].key)


def test_a_lead_shorter_than_max_age_is_refused() -> None:
    with pytest.raises(KeyRingError, match="activation_lead"):
        KeyRing.create(START, activation_lead=SECOND)


@pytest.mark.parametrize("changed", ["max_age", "grace"])
def test_a_negative_time_is_refused_and_none_at_all_is_not(ring: KeyRing, changed: str) -> None:
    below: Any = {changed: -timedelta(microseconds=1)}
    with pytest.raises(KeyRingError, match="must not be negative"):
        replace(ring, **below)
    with pytest.raises(KeyRingError, match="must not be negative"):
        KeyRing.create(START, activation_lead=timedelta(0), **below)
    nothing: Any = {changed: timedelta(0)}
    assert getattr(replace(ring, **nothing), changed) == timedelta(0)


def test_another_algorithm_signs_from_when_it_is_used(ring: KeyRing) -> None:
    both = ring.add(START, Algorithm.EDDSA)
    with pytest.raises(KeyRingError, match="the next one signs from"):
        both.use(Algorithm.EDDSA, START + LEAD - SECOND)
    used = both.use(Algorithm.EDDSA, START + LEAD)
    assert signs(used, START + LEAD) == both.keys[-1].kid
    assert signs(used, START + LEAD, Algorithm.ES256) == ring.keys[0].kid
    assert used.keys == both.keys
    assert used.add(START + LEAD).keys[-1].algorithm is Algorithm.EDDSA


def test_a_key_retires_a_grace_after_its_successor_signs(ring: KeyRing) -> None:
    first = ring.keys[0].kid
    assert ring.retires_at(first) is None
    rotated = ring.rotate(START)
    retires_at = rotated.retires_at(first)
    assert retires_at == START + LEAD + GRACE
    assert rotated.state(first, retires_at - SECOND) is KeyState.RETIRING
    assert rotated.state(first, retires_at) is KeyState.RETIRED
    assert rotated.retires_at(rotated.keys[-1].kid) is None
    with pytest.raises(KeyRingError):
        ring.retires_at("x")


def test_a_given_key_determines_the_default_algorithm() -> None:
    key = generate_key(Algorithm.EDDSA)
    assert KeyRing.create(START, key=key).signing_key(START) is key


ALGORITHMS = st.sampled_from([Algorithm.ES256, Algorithm.EDDSA])


class KeyLife(RuleBasedStateMachine):
    """Any operations at any times; the invariants are checked at every step."""

    @initialize()
    def create(self) -> None:
        self.now = START
        self.ring = KeyRing.create(START)
        self.excused = {self.ring.keys[0].kid}
        self.last_signed: dict[str, datetime] = {}

    def _excuse_those_that_sign_now(self) -> None:
        self.excused |= {e.kid for e in self.ring.keys if e.activates_at == self.now}

    @rule(algorithm=ALGORITHMS)
    def add(self, algorithm: Algorithm) -> None:
        self.ring = self.ring.add(self.now, algorithm)

    @rule(algorithm=ALGORITHMS)
    def rotate(self, algorithm: Algorithm) -> None:
        self.ring = self.ring.rotate(self.now, algorithm)

    @rule(algorithm=ALGORITHMS, force=st.booleans())
    def activate_now(self, algorithm: Algorithm, force: bool) -> None:
        before = self.ring
        try:
            self.ring = before.rotate(self.now, algorithm, activate_now=True, force=force)
        except KeyRingError:
            assert not force
            return
        assert force or self.now - self.ring.keys[-1].published_at >= MAX_AGE
        self._excuse_those_that_sign_now()

    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        kid = data.draw(st.sampled_from([entry.kid for entry in self.ring.keys]))
        self.ring = self.ring.revoke(kid, self.now)
        self._excuse_those_that_sign_now()

    @rule()
    def forget(self) -> None:
        before = {e.kid: self.ring.state(e.kid, self.now) for e in self.ring.keys}
        self.ring = self.ring.forget_retired(self.now, keep=timedelta(0))
        for entry in self.ring.keys:
            assert self.ring.state(entry.kid, self.now) is before.pop(entry.kid)
        assert set(before.values()) <= {KeyState.RETIRED, KeyState.REVOKED}

    @rule(seconds=st.sampled_from([0, 1, 29, 30, 299, 300, 330, 599, 600, 2000]))
    def wait(self, seconds: int) -> None:
        # In small steps: the invariants must hold between the operations too.
        for _ in range(seconds // 100):
            self.now += timedelta(seconds=100)
            self.watch()
        self.now += timedelta(seconds=seconds % 100)

    @invariant()
    def watch(self) -> None:
        if not hasattr(self, "ring"):
            return
        self._one_key_signs()
        self._what_signed_stays_published()

    def _one_key_signs(self) -> None:
        states = {entry.kid: self.ring.state(entry.kid, self.now) for entry in self.ring.keys}
        for algorithm in (Algorithm.ES256, Algorithm.EDDSA):
            active = [
                e
                for e in self.ring.keys
                if e.algorithm is algorithm and states[e.kid] is KeyState.ACTIVE
            ]
            assert len(active) <= 1
            if algorithm is Algorithm.ES256:
                assert [e.key for e in active] == [self.ring.signing_key(self.now)]
            for entry in active:
                self.last_signed[entry.kid] = self.now
                assert entry.kid in self.excused or self.now >= entry.published_at + LEAD

    def _what_signed_stays_published(self) -> None:
        published = {entry.kid for entry in self.ring.published(self.now)}
        revoked = {e.kid for e in self.ring.keys if e.revoked_at is not None}
        for kid, last in self.last_signed.items():
            assert kid in published or kid in revoked or self.now >= last + GRACE or self._gone(kid)
        assert not published & revoked

    def _gone(self, kid: str) -> bool:
        return kid not in {entry.kid for entry in self.ring.keys}


KeyLife.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
test_the_promises_hold_through_any_life = KeyLife.TestCase
