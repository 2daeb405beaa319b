"""A sender's signing keys over time: published, then signing, then published a while longer.

A key's state is a function of the timestamps in the ring and of `now`, so that every process that
reads the same ring agrees, and nothing has to run for a key to change its state:

    PENDING ─activates→ ACTIVE ─successor activates→ RETIRING ─grace→ RETIRED
    any ─revoke→ REVOKED

PENDING, ACTIVE and RETIRING keys are published. At most one key per algorithm is active.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Final

from pushkit.clock import JWKS_MAX_AGE, TOKEN_LIFETIME, TOLERANCE
from pushkit.errors import KeyRingError, NoSigningKeyError
from pushkit.keys.jwk import MAX_JWKS_KEYS, Algorithm, RemoteKey, SigningKey, generate_key

_FETCH_MARGIN: Final = timedelta(seconds=30)
DEFAULT_GRACE: Final = TOKEN_LIFETIME + TOLERANCE
_FORGET_AFTER: Final = timedelta(days=30)
_IN_UTC: Final = timedelta(0)
ALWAYS: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The `published_at` of a key whose publication is not known."""
_NEVER: Final = datetime.max.replace(tzinfo=UTC)


class KeyState(StrEnum):
    """The state of a key."""

    PENDING = "pending"
    ACTIVE = "active"
    RETIRING = "retiring"
    RETIRED = "retired"
    REVOKED = "revoked"


_PUBLISHED: Final = frozenset({KeyState.PENDING, KeyState.ACTIVE, KeyState.RETIRING})


@dataclass(frozen=True, slots=True, kw_only=True)
class RingKey:
    """A key with its timestamps, all aware and in UTC."""

    key: SigningKey | RemoteKey
    published_at: datetime  # since when it is in the JWK Set; `ALWAYS` if that is not known
    activates_at: datetime | None = None  # from when it signs; None if it is not scheduled
    # From when it is neither published nor used, whatever its schedule.
    revoked_at: datetime | None = None

    def __post_init__(self) -> None:
        for moment in (self.published_at, self.activates_at, self.revoked_at):
            if moment is not None:
                _require_utc(moment)

    @property
    def kid(self) -> str:
        """The key's name."""
        return self.key.kid

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm that the key signs with."""
        return self.key.algorithm

    def age(self, now: datetime) -> timedelta | None:
        """Return how long it has been published; None if that is not known."""
        return None if self.published_at == ALWAYS else now - self.published_at

    def took_over_at(self) -> datetime | None:
        """Return when it begins to sign; None if it is not scheduled, or revoked before."""
        if self.activates_at is None:
            return None
        revoked_before = self.revoked_at is not None and self.revoked_at <= self.activates_at
        return None if revoked_before else self.activates_at


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRing:
    """The keys of one sender, immutable: each change returns a new ring."""

    # In the order of scheduling; if two activate at the same time, the later one signs.
    keys: tuple[RingKey, ...]
    default_algorithm: Algorithm = Algorithm.ES256  # unless a subscription's profile needs another
    max_age: timedelta = JWKS_MAX_AGE  # how long receivers may cache the JWK Set
    # How long a key is published before it signs, so that no receiver has a cached set without it;
    # at least `max_age`.
    activation_lead: timedelta = JWKS_MAX_AGE + _FETCH_MARGIN
    # How long a key stays published after it stopped signing: the life of a token plus the
    # receiver's tolerance.
    grace: timedelta = DEFAULT_GRACE
    # The active key, cached from one change of state to the next: every signature needs it.
    _signing: dict[Algorithm, tuple[datetime, datetime, RingKey]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    # When the next key of the algorithm takes over, by `kid`; no entry if none is scheduled.
    _stops: dict[str, datetime] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len({entry.kid for entry in self.keys}) != len(self.keys):
            raise KeyRingError("two keys of the ring have the same kid")
        if min(self.max_age, self.grace) < timedelta(0):
            raise KeyRingError("max_age and grace must not be negative")
        if self.activation_lead < self.max_age:
            raise KeyRingError(
                f"activation_lead is {in_seconds(self.activation_lead)}, expected at least max_age"
                f" ({in_seconds(self.max_age)}): a receiver may hold a set without the key for so"
                " long"
            )
        for algorithm in Algorithm:
            moments = ((e.took_over_at(), e.kid) for e in self.keys if e.algorithm is algorithm)
            order = sorted(((at, kid) for at, kid in moments if at), key=lambda pair: pair[0])
            self._stops.update((kid, at) for (_, kid), (at, _) in pairwise(order))

    @classmethod
    def create(
        cls,
        now: datetime,
        algorithm: Algorithm = Algorithm.ES256,
        *,
        key: SigningKey | RemoteKey | None = None,
        max_age: timedelta = JWKS_MAX_AGE,
        activation_lead: timedelta | None = None,
        grace: timedelta = DEFAULT_GRACE,
    ) -> KeyRing:
        """Return a ring of one key that is active at once: no receiver has cached a set yet.

        The key determines the default algorithm; without a key, one of `algorithm` is generated.
        The other options are those of the class; `activation_lead` is `max_age` + 30 s by default.
        """
        first = key or generate_key(algorithm)
        return cls(
            keys=(RingKey(key=first, published_at=now, activates_at=now),),
            default_algorithm=first.algorithm,
            max_age=max_age,
            activation_lead=max_age + _FETCH_MARGIN if activation_lead is None else activation_lead,
            grace=grace,
        )

    def ring(self) -> KeyRing:
        """Return itself: a ring that never changes is its own source."""
        return self

    def add(
        self,
        now: datetime,
        algorithm: Algorithm | None = None,
        *,
        key: SigningKey | RemoteKey | None = None,
    ) -> KeyRing:
        """Publish a new key without a schedule; `rotate` will schedule it.

        If no key of its algorithm is active or scheduled, it is scheduled at `now` plus the lead:
        not at once, since the ring is served already and receivers hold sets without the key.

        Raises:
            KeyRingError: As many keys are published as receivers accept.
        """
        self._require_room(now)
        new = key or generate_key(algorithm or self.default_algorithm)
        planned = self._active(new.algorithm, now) or self._planned(new.algorithm, now)
        activates_at = None if planned else now + self.activation_lead
        entry = RingKey(key=new, published_at=now, activates_at=activates_at)
        return replace(self, keys=(*self.keys, entry))

    def rotate(
        self,
        now: datetime,
        algorithm: Algorithm | None = None,  # of the key; the default algorithm if None
        *,
        # Activate the longest published pending key at once instead, scheduled or not.
        activate_now: bool = False,
        # With `activate_now`: even if receivers may not know the key yet. Most of them fetch the
        # set again when a `kid` is unknown.
        force: bool = False,
    ) -> KeyRing:
        """Schedule the next key to take over as soon as every receiver knows it.

        The next key is the oldest pending one without a schedule. Without such a key, the one that
        is scheduled already stays the next one, as it is; without any pending key, it is a new one.
        It signs after it has been published for the lead, and not before another scheduled one.
        It is the last key of the ring that is returned.

        Raises:
            KeyRingError: `activate_now`, and no key has been published for `max_age`; or as many
                keys are published as receivers accept.
        """
        _require_utc(now)
        algorithm = algorithm or self.default_algorithm
        if activate_now:
            return self._activate(self._next_at_once(algorithm, now, force=force), now)
        pending = self._pending(algorithm, now)
        planned = [at for e in pending if (at := e.took_over_at()) is not None]
        entry = next((e for e in pending if e.activates_at is None), None)
        if entry is None and planned:
            entry = [e for e in self.keys if e in pending and e.activates_at == max(planned)][-1]
            return self._activate(entry, max(planned))
        entry = entry or self._new_entry(algorithm, now)
        return self._activate(entry, max(now, entry.published_at + self.activation_lead, *planned))

    def use(self, algorithm: Algorithm, now: datetime) -> KeyRing:
        """Sign with another algorithm by default from now on.

        Raises:
            KeyRingError: No key of it is active; the message says from when one is, or what to do.
        """
        try:
            self.active_key(now, algorithm)
        except NoSigningKeyError as exc:
            raise KeyRingError(str(exc)) from exc
        return replace(self, default_algorithm=algorithm)

    def revoke(self, kid: str, now: datetime) -> KeyRing:
        """Withdraw a key at once: it is neither published nor used any more.

        If it was the active key of its algorithm, the longest published pending key is activated
        at once, or a new one, which receivers still have to fetch.

        Raises:
            KeyRingError: No such key.
        """
        _require_utc(now)
        entry = self.find(kid)
        if entry.revoked_at is not None and entry.revoked_at <= now:
            return self
        was_active = self._state(entry, now) is KeyState.ACTIVE
        revoked = replace(entry, revoked_at=now)
        ring = replace(self, keys=tuple(revoked if e is entry else e for e in self.keys))
        if not was_active:
            return ring
        successor = next(iter(ring._pending(entry.algorithm, now)), None)
        # Whatever the number of published keys: none signs without it.
        new = successor or RingKey(key=generate_key(entry.algorithm), published_at=now)
        return ring._activate(new, now)

    def forget_retired(self, now: datetime, *, keep: timedelta = _FORGET_AFTER) -> KeyRing:
        """Remove the keys that have been retired or revoked for longer than `keep`."""
        _require_utc(now)
        return replace(self, keys=tuple(e for e in self.keys if not self._over(e, now - keep)))

    def signing_key(self, now: datetime, algorithm: Algorithm | None = None) -> SigningKey:
        """Return the active key, to sign in this process.

        Raises:
            NoSigningKeyError: No key of the algorithm is active, or a remote signer keeps it.
        """
        key = self.active_key(now, algorithm)
        if not isinstance(key, SigningKey):
            raise NoSigningKeyError(f"a remote signer keeps key {key.kid}, expected a local key")
        return key

    def active_key(
        self, now: datetime, algorithm: Algorithm | None = None
    ) -> SigningKey | RemoteKey:
        """Return the active key, local or remote.

        Raises:
            NoSigningKeyError: No key of the algorithm is active.
        """
        _require_utc(now)
        algorithm = algorithm or self.default_algorithm
        known = self._signing.get(algorithm)
        if known is not None and known[0] <= now < known[1]:
            return known[2].key
        active = self._active(algorithm, now)
        if active is None:
            planned = self._planned(algorithm, now)
            hint = "add one"
            if planned:
                hint = f"the next one signs from {min(planned):%Y-%m-%dT%H:%M:%SZ}"
            raise NoSigningKeyError(f"no {algorithm} key is active; {hint}")
        pairs = [(e.activates_at, e.revoked_at) for e in self.keys if e.algorithm is algorithm]
        moments = [at for pair in pairs for at in pair if at is not None]
        since, until = [at for at in moments if at <= now], [at for at in moments if at > now]
        self._signing[algorithm] = (max(since), min(until, default=_NEVER), active)
        return active.key

    def find(self, kid: str) -> RingKey:
        """Return a key by its name, or raise `KeyRingError`."""
        found = next((entry for entry in self.keys if entry.kid == kid), None)
        if found is None:
            raise KeyRingError(f"no key {kid!r} in the ring")
        return found

    def state(self, kid: str, now: datetime) -> KeyState:
        """Return the state of a key, or raise `KeyRingError` if there is none."""
        _require_utc(now)
        return self._state(self.find(kid), now)

    def retires_at(self, kid: str) -> datetime | None:
        """Return until when a key is published; None if no key is scheduled to replace it.

        Raises `KeyRingError` if there is no such key.
        """
        entry = self.find(kid)
        stops_at = self._stops.get(entry.kid)
        return stops_at + self.grace if stops_at else None

    def published(self, now: datetime) -> list[RingKey]:
        """Return the keys in the JWK Set: pending, active and retiring ones."""
        _require_utc(now)
        return [entry for entry in self.keys if self._state(entry, now) in _PUBLISHED]

    def _state(self, entry: RingKey, now: datetime) -> KeyState:
        if entry.revoked_at is not None and entry.revoked_at <= now:
            return KeyState.REVOKED
        if entry.activates_at is None or now < entry.activates_at:
            return KeyState.PENDING
        stops_at = self._stops.get(entry.kid)
        if stops_at is None or now < stops_at:
            return KeyState.ACTIVE
        return KeyState.RETIRING if now < stops_at + self.grace else KeyState.RETIRED

    def _over(self, entry: RingKey, then: datetime) -> bool:
        """Return whether the key had ended at `then`, and no longer matters as a successor."""
        if entry.took_over_at() is None:
            return entry.revoked_at is not None and entry.revoked_at <= then
        stops_at = self._stops.get(entry.kid)
        # A revoked key still marks when its predecessor stopped: it is removed after that one.
        ended = stops_at is not None and stops_at + self.grace <= then
        return ended and (entry.revoked_at is None or entry.revoked_at <= then)

    def _active(self, algorithm: Algorithm, now: datetime) -> RingKey | None:
        return next(iter(self._in_state(KeyState.ACTIVE, algorithm, now)), None)

    def _pending(self, algorithm: Algorithm, now: datetime) -> list[RingKey]:
        pending = self._in_state(KeyState.PENDING, algorithm, now)
        return sorted(pending, key=lambda entry: entry.published_at)

    def _planned(self, algorithm: Algorithm, now: datetime) -> list[datetime]:
        """Return when the scheduled keys begin to sign."""
        pending = self._in_state(KeyState.PENDING, algorithm, now)
        return [e.activates_at for e in pending if e.activates_at is not None]

    def _in_state(self, state: KeyState, algorithm: Algorithm, now: datetime) -> list[RingKey]:
        mine = (entry for entry in self.keys if entry.algorithm is algorithm)
        return [entry for entry in mine if self._state(entry, now) is state]

    def _next_at_once(self, algorithm: Algorithm, now: datetime, *, force: bool) -> RingKey:
        entry = next(iter(self._pending(algorithm, now)), None)
        if force:
            return entry or self._new_entry(algorithm, now)
        if entry is None:
            raise KeyRingError(
                f"no {algorithm} key is pending: add one, and wait {in_seconds(self.max_age)}"
            )
        if now - entry.published_at < self.max_age:
            raise KeyRingError(
                f"key {entry.kid} has been published for {in_seconds(now - entry.published_at)},"
                f" expected {in_seconds(self.max_age)}: receivers may hold a set without it; wait,"
                " or force it (`--now --force`)"
            )
        return entry

    def _new_entry(self, algorithm: Algorithm, now: datetime) -> RingKey:
        self._require_room(now)
        return RingKey(key=generate_key(algorithm), published_at=now)

    def _require_room(self, now: datetime) -> None:
        if len(self.published(now)) >= MAX_JWKS_KEYS:
            raise KeyRingError(
                f"{MAX_JWKS_KEYS} keys are published, and receivers refuse a larger set: rotate"
                " less often, with a shorter grace, or revoke keys that are not needed"
            )

    def _activate(self, entry: RingKey, at: datetime) -> KeyRing:
        # At the end of the ring: if two keys activate at the same time, the later one signs.
        others = (e for e in self.keys if e is not entry)
        return replace(self, keys=(*others, replace(entry, activates_at=at)))


def command_to_rotate(ring: KeyRing, algorithm: Algorithm) -> str:
    """Return the command that rotates the keys of an algorithm, for messages."""
    command = "pushkit keys rotate"
    return command if algorithm is ring.default_algorithm else f"{command} --alg {algorithm}"


def in_seconds(duration: timedelta) -> str:
    """Return a duration in whole seconds, for messages."""
    seconds = duration // timedelta(seconds=1)
    return "1 second" if seconds == 1 else f"{seconds} seconds"


def _require_utc(moment: datetime) -> None:
    if moment.utcoffset() != _IN_UTC:
        raise KeyRingError(f"expected an aware time in UTC, found {moment.isoformat()}")
