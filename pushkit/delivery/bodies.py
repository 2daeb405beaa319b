"""The bodies of an update: one per wire version, each encoded once, likely ones ahead of time.

Encoding costs more than the rows that it becomes. Done inside the transaction it would hold up
every other caller's, so whatever version was wanted lately is encoded before the transaction
begins. A version that nobody turns out to want is not an error, even if it cannot be written.
"""

from __future__ import annotations

from datetime import datetime

from pushkit.a2a import Task, TaskUpdate, WireVersion, push_body
from pushkit.errors import PayloadTooLargeError, PushkitError

__all__ = ["Bodies", "BodyEncoder"]


class BodyEncoder:
    """Encodes updates, and remembers which versions are in use.

    Args:
        max_body_bytes: The largest body.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._lately: tuple[WireVersion, ...] = ()

    def begin(self, update: TaskUpdate, snapshot: Task | None, *, now: datetime) -> Bodies:
        """Return an update's bodies, those that were wanted lately encoded already."""
        bodies = Bodies(self, update, snapshot, now=now)
        for version in self._lately:
            bodies.prepare(version)
        return bodies

    def note(self, versions: set[WireVersion]) -> None:
        """Remember what an update turned out to be wanted in; none of it says nothing."""
        self._lately = tuple(versions) or self._lately

    def encode(
        self, update: TaskUpdate, version: WireVersion, snapshot: Task | None, *, now: datetime
    ) -> bytes:
        """Return one body.

        Raises:
            InvalidUpdateError: The update cannot be written in this version.
            SnapshotRequiredError: The version sends whole tasks, and there is none.
            PayloadTooLargeError: It is over the limit.
        """
        body = push_body(update, version, snapshot, now=now)
        if len(body) > self._max_body_bytes:
            raise PayloadTooLargeError(
                f"the {version.value} body would be {len(body)} bytes,"
                f" expected at most {self._max_body_bytes}: send large artifacts by URL"
            )
        return body


class Bodies:
    """The bodies of one update.

    Args:
        encoder: Encodes them.
        update: What happened.
        snapshot: The whole task, for versions that send it.
        now: The time of it, for versions whose bodies need one.
    """

    def __init__(
        self, encoder: BodyEncoder, update: TaskUpdate, snapshot: Task | None, *, now: datetime
    ) -> None:
        self._encoder = encoder
        self._update = update
        self._snapshot = snapshot
        self._now = now
        self._made: dict[WireVersion, bytes | PushkitError] = {}

    def prepare(self, version: WireVersion) -> None:
        """Encode a body that may be wanted; an error is kept for whoever does want it."""
        try:
            self._made[version] = self._encoder.encode(
                self._update, version, self._snapshot, now=self._now
            )
        except PushkitError as exc:
            self._made[version] = exc

    def of(self, versions: set[WireVersion]) -> dict[WireVersion, bytes]:
        """Return the bodies of the versions that are wanted. Raises as `BodyEncoder.encode`."""
        self._encoder.note(versions)
        return {version: self._of(version) for version in versions}

    def _of(self, version: WireVersion) -> bytes:
        if version not in self._made:
            self.prepare(version)
        made = self._made[version]
        if isinstance(made, PushkitError):
            raise made
        return made
