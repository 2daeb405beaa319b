"""The bodies of an update: each is encoded once, likely ones before the transaction begins.

Encoding inside the transaction would delay every other caller's. So an update is encoded in advance
in the versions that the task's previous update was wanted in. An error of a version that no
recipient turns out to want is ignored.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Set
from dataclasses import replace
from datetime import datetime
from typing import Final, TypeAlias

from pushkit.a2a import (
    SNAPSHOT_VERSIONS,
    AnyUpdate,
    Message,
    MessageUpdate,
    NativeUpdate,
    StatusUpdate,
    Task,
    TaskSnapshot,
    TaskState,
    TaskStatus,
    WireVersion,
    push_body,
)
from pushkit.bounded_json import MAX_DEPTH, is_too_deep
from pushkit.errors import ConfigError, InvalidUpdateError, PayloadTooLargeError, PushkitError
from pushkit.logs import RepeatedLog
from pushkit.options import check_type
from pushkit.record import field, record
from pushkit.subscriptions.model import Recipient

SnapshotProvider: TypeAlias = Callable[[str], Awaitable[Task | None]]
"""Returns the whole task as a given owner sees it; None if that owner has no such task."""

_log: Final = logging.getLogger("pushkit.delivery")

_MAX_REMEMBERED: Final = 10_000  # tasks


class BodyEncoder:
    """Encodes updates, and remembers in which versions each task's updates are wanted."""

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._wanted: dict[tuple[str, str], Set[WireVersion]] = {}
        self.repeated: RepeatedLog = RepeatedLog(_log)

    def prepare(
        self,
        update: AnyUpdate,
        snapshot: Task | SnapshotProvider | None,
        *,
        now: datetime,
        tenant: str = "",
    ) -> Bodies:
        """Return an update's bodies; the likely ones are encoded already.

        Raises:
            InvalidUpdateError: The update has no task id, or the snapshot is of another task.
            ConfigError: The update, a member of it, or the snapshot has a wrong type.
        """
        _check(update)
        if snapshot is not None and not callable(snapshot):
            check_type("snapshot", snapshot, Task)
            if snapshot.id != update.task_id:
                raise InvalidUpdateError("snapshot: expected the task that the update is about")
        task = (tenant, update.task_id or "")
        bodies = Bodies(
            encoder=self,
            update=update,
            task=task,
            snapshot=snapshot,
            likely=self._wanted.get(task, frozenset()),
            by_owner=SNAPSHOT_VERSIONS[update.kind] if callable(snapshot) else (),
            now=now,
        )
        for version in bodies.likely:
            if version not in bodies.by_owner:
                bodies.encode(version, "")
        return bodies

    def remember(self, task: tuple[str, str], versions: set[WireVersion]) -> None:
        """Remember in which versions a task's last update was wanted."""
        if not versions:
            self._wanted.pop(task, None)
            return
        if len(self._wanted) >= _MAX_REMEMBERED:
            self._wanted.clear()
        self._wanted[task] = versions

    def encode(
        self, update: AnyUpdate, version: WireVersion, snapshot: Task | None, *, now: datetime
    ) -> bytes:
        """Return one body.

        If a task cannot be sent whole (it is too large, nests too deeply, or has a message without
        an id), 0.3 clients get only its status; at its end, if need be, without the status's
        message. They can fetch the rest by `tasks/get`, and would not learn of the end otherwise.

        Raises:
            InvalidUpdateError: The update cannot be written in this version.
            SnapshotRequiredError: The version sends whole tasks, and no snapshot is given.
            PayloadTooLargeError: The body is longer than `max_body_bytes`.
        """
        try:
            return self._bounded(push_body(update, version, snapshot, now=now), version)
        except (InvalidUpdateError, PayloadTooLargeError) as exc:
            body = self._status_alone(update) if version is WireVersion.V0_3 else None
            if body is None:
                raise
            self.repeated.log(
                ("alone", exc.code),
                logging.WARNING,
                "task %r: clients of A2A 0.3 get only its status: %s",
                update.task_id,
                exc,
            )
            return body

    def _status_alone(self, update: AnyUpdate) -> bytes | None:
        """Return a body of only the update's status; None if it has none, or it cannot be sent."""
        update_of_status = _status_update(update)
        if update_of_status is None:
            return None
        status = update_of_status.status
        statuses = [status]
        if status.state.terminal:
            statuses.append(replace(status, message=None, extra={}))
        for each in statuses:
            alone = replace(update_of_status, status=each, metadata={}, extra={})
            with contextlib.suppress(InvalidUpdateError, PayloadTooLargeError):
                return self._bounded(push_body(alone, WireVersion.V0_3), WireVersion.V0_3)
        return None

    def _bounded(self, body: bytes, version: WireVersion) -> bytes:
        if len(body) > self._max_body_bytes:
            raise PayloadTooLargeError(
                f"the {version.value} body would be {len(body)} bytes,"
                f" expected at most {self._max_body_bytes}: send large artifacts by URL"
            )
        if is_too_deep(body):  # pushkit's receiver would refuse it, and others would, too
            raise InvalidUpdateError(f"nested deeper than {MAX_DEPTH} levels")
        return body


def _check(update: AnyUpdate) -> None:
    """Check the members that an update's own properties look into, and its task."""
    if not isinstance(update, AnyUpdate):
        raise ConfigError(
            f"update: found {type(update).__name__}, expected an update of pushkit's, such as a"
            " StatusUpdate"
        )
    if isinstance(update, StatusUpdate):
        check_type("status", update.status, TaskStatus)
    elif isinstance(update, TaskSnapshot):
        check_type("task", update.task, Task)
        check_type("task.status", update.task.status, TaskStatus)
    elif isinstance(update, MessageUpdate):
        check_type("message", update.message, Message)
    if update.task_id is not None:
        check_type("task_id", update.task_id, str)
    if not update.task_id:
        raise InvalidUpdateError(
            f"task_id: found none in a {update.kind.value} update, expected the task's id"
        )
    if update.state is not None:
        check_type("state", update.state, TaskState)


def _status_update(update: AnyUpdate) -> StatusUpdate | None:
    """Return the status of an update; None if it has none."""
    neutral = update
    if isinstance(update, NativeUpdate):
        try:
            neutral = update.neutral
        except InvalidUpdateError:  # it has a value that JSON cannot express
            if update.state is None:
                return None
            return StatusUpdate(
                task_id=update.task_id,
                context_id=update.context_id,
                status=TaskStatus(state=update.state),
            )
    if isinstance(neutral, TaskSnapshot):
        task = neutral.task
        return StatusUpdate(
            task_id=task.id, context_id=task.context_id, status=task.status, origin=neutral.origin
        )
    return neutral if isinstance(neutral, StatusUpdate) else None


@record(frozen=False, slots=True, kw_only=True, eq=False)
class Bodies:
    """The bodies of one update.

    Which owners need a snapshot is known only inside the transaction, where nothing can be awaited.
    There `missing_snapshots` returns them, nothing is written, and the transaction runs again after
    `fetch_snapshots`.
    """

    encoder: BodyEncoder
    update: AnyUpdate
    task: tuple[str, str]  # its tenant and id
    # The whole task, for versions that send it; or its provider, by owner.
    snapshot: Task | SnapshotProvider | None
    likely: Set[WireVersion]  # the versions that the task's last update was wanted in
    # The versions whose bodies differ by owner, because a provider returns snapshots.
    by_owner: Collection[WireVersion]
    now: datetime  # the update's time, for versions whose bodies state one
    snapshots: dict[str, Task | None] = field(default_factory=dict)  # by owner
    # By version, or by version and owner; an error is raised once a recipient wants the body.
    encoded: dict[WireVersion | tuple[WireVersion, str], bytes | PushkitError] = field(
        default_factory=dict
    )

    def missing_snapshots(self, recipients: Iterable[Recipient]) -> set[tuple[WireVersion, str]]:
        """Return the versions and owners of recipients whose snapshots are still to be fetched."""
        return {
            (each.version, each.owner)
            for each in recipients
            if each.version in self.by_owner and each.owner not in self.snapshots
        }

    async def fetch_snapshots(self, missing: Iterable[tuple[WireVersion, str]]) -> None:
        """Fetch the snapshots of some owners, and encode them.

        If the provider fails for an owner, that owner has no snapshot; others are not affected.
        """
        for version, owner in missing:
            if owner not in self.snapshots and callable(self.snapshot):
                try:
                    snapshot = await self.snapshot(owner)
                    if snapshot is not None:
                        check_type("snapshot", snapshot, Task)
                except Exception as exc:  # noqa: BLE001  # the agent's code
                    snapshot = None
                    self.encoder.repeated.log(
                        ("snapshot", type(exc)),
                        logging.ERROR,
                        "task %r: no snapshot for owner %r: its provider failed",
                        self.update.task_id,
                        owner,
                        exc_info=exc,
                    )
                self.snapshots[owner] = snapshot
            self.encode(version, owner)

    def encode(self, version: WireVersion, owner: str) -> bytes | PushkitError:
        """Encode the body of a version, for an owner; return it, or the error."""
        key: WireVersion | tuple[WireVersion, str] = version
        snapshot = self.snapshot
        if version in self.by_owner:
            key, snapshot = (version, owner), self.snapshots[owner]
        encoded: bytes | PushkitError
        try:
            whole = None if callable(snapshot) else snapshot
            encoded = self.encoder.encode(self.update, version, whole, now=self.now)
        except PushkitError as exc:
            encoded = exc
        self.encoded[key] = encoded
        return encoded

    def remember(self, versions: set[WireVersion]) -> None:
        """Remember the versions that were wanted, for the task's next update."""
        if versions != self.likely:
            self.encoder.remember(self.task, versions)

    def of(self, recipient: Recipient) -> bytes:
        """Return the body of a recipient. Raises as `BodyEncoder.encode`."""
        version, owner = recipient.version, recipient.owner
        encoded = self.encoded.get((version, owner) if version in self.by_owner else version)
        if encoded is None:
            encoded = self.encode(version, owner)
        if isinstance(encoded, PushkitError):
            raise encoded
        return encoded
