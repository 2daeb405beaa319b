"""The bodies of an update: each encoded once, likely ones ahead of time.

Encoding inside the transaction would hold up every other caller's, so the versions that the task's
last update was wanted in are encoded before the transaction begins: none for a task that nobody
watches. A version that nobody turns out to want is not an error, even if it cannot be written.
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
    NativeUpdate,
    StatusUpdate,
    Task,
    TaskSnapshot,
    TaskStatus,
    WireVersion,
    push_body,
)
from pushkit.arguments import check_type
from pushkit.bounded_json import MAX_DEPTH, is_too_deep
from pushkit.errors import InvalidUpdateError, PayloadTooLargeError, PushkitError
from pushkit.logs import RepeatedLog
from pushkit.subscriptions.model import Recipient

SnapshotProvider: TypeAlias = Callable[[str], Awaitable[Task | None]]
"""Returns the whole task as an owner sees it; None if that owner has no such task."""

_log: Final = logging.getLogger("pushkit.delivery")

_MAX_REMEMBERED: Final = 10_000  # tasks


class BodyEncoder:
    """Encodes updates, and remembers which versions each task is watched in."""

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._lately: dict[tuple[str, str], Set[WireVersion]] = {}
        self._repeated = RepeatedLog(_log)

    def begin(
        self,
        update: AnyUpdate,
        snapshot: Task | SnapshotProvider | None,
        *,
        now: datetime,
        tenant: str = "",
    ) -> Bodies:
        """Return an update's bodies, those that its task was watched in encoded already."""
        bodies = Bodies(self, update, snapshot, now=now, tenant=tenant)
        bodies.likely = self._lately.get((tenant, update.task_id or ""), frozenset())
        bodies.prepare(bodies.likely)
        return bodies

    def note(self, task: tuple[str, str], versions: set[WireVersion]) -> None:
        """Remember what an update of a task turned out to be wanted in."""
        if not versions:
            self._lately.pop(task, None)
            return
        if len(self._lately) >= _MAX_REMEMBERED:
            self._lately.clear()
        self._lately[task] = versions

    def encode(
        self, update: AnyUpdate, version: WireVersion, snapshot: Task | None, *, now: datetime
    ) -> bytes:
        """Return one body.

        Of a task that cannot be sent whole, for it is too large, nests too deeply or has a message
        without id, clients of 0.3 get the status alone, at its end without its message if that is
        at fault: they have the rest by `tasks/get`, and would not hear of the end otherwise.

        Raises:
            InvalidUpdateError: The update cannot be written in this version.
            SnapshotRequiredError: The version sends whole tasks, and there is none.
            PayloadTooLargeError: It is over the limit.
        """
        try:
            return self._bounded(push_body(update, version, snapshot, now=now), version)
        except (InvalidUpdateError, PayloadTooLargeError) as exc:
            body = self._status_alone(update) if version is WireVersion.V0_3 else None
            if body is None:
                raise
            self._repeated.say(
                ("alone", exc.code),
                logging.WARNING,
                "task %r: clients of A2A 0.3 get its status alone: %s",
                update.task_id,
                exc,
            )
            return body

    def _status_alone(self, update: AnyUpdate) -> bytes | None:
        """Return as much of a status as can be sent; None of what says none."""
        said = _said_status(update)
        if said is None:
            return None
        statuses = [said.status]
        if said.status.state.terminal:
            statuses.append(replace(said.status, message=None, extra={}))
        for each in statuses:
            alone = replace(said, status=each, metadata={}, extra={})
            with contextlib.suppress(InvalidUpdateError, PayloadTooLargeError):
                return self._bounded(push_body(alone, WireVersion.V0_3), WireVersion.V0_3)
        return None

    def _bounded(self, body: bytes, version: WireVersion) -> bytes:
        if len(body) > self._max_body_bytes:
            raise PayloadTooLargeError(
                f"the {version.value} body would be {len(body)} bytes,"
                f" expected at most {self._max_body_bytes}: send large artifacts by URL"
            )
        if is_too_deep(body):  # our receiver would refuse it, and not it alone
            raise InvalidUpdateError(f"nested deeper than {MAX_DEPTH} levels")
        return body

    async def ask(self, provider: SnapshotProvider, owner: str, update: AnyUpdate) -> Task | None:
        """Return an owner's snapshot; None if there is none, or the provider fails."""
        try:
            snapshot = await provider(owner)
            if snapshot is not None:
                check_type("snapshot", snapshot, Task)
        except Exception as exc:  # noqa: BLE001  # the agent's own code, for one owner of many
            self._repeated.say(
                ("snapshot", type(exc)),
                logging.ERROR,
                "task %r: no snapshot for owner %r: its provider failed",
                update.task_id,
                owner,
                exc_info=exc,
            )
            return None
        return snapshot


def _said_status(update: AnyUpdate) -> StatusUpdate | None:
    """Return the status that an update says; None if it says none."""
    said = update
    if isinstance(update, NativeUpdate):
        try:
            said = update.neutral
        except InvalidUpdateError:  # it holds what is no JSON
            if update.state is None:
                return None
            return StatusUpdate(
                task_id=update.task_id,
                context_id=update.context_id,
                status=TaskStatus(state=update.state),
            )
    if isinstance(said, TaskSnapshot):
        task = said.task
        return StatusUpdate(
            task_id=task.id, context_id=task.context_id, status=task.status, origin=said.origin
        )
    return said if isinstance(said, StatusUpdate) else None


class Bodies:
    """The bodies of one update.

    A provider of snapshots is asked for the owners whose version needs one, and those are known
    only inside the transaction, where nothing can be awaited: it returns what it lacks (`unasked`),
    has written nothing, and is run again after `ask`.

    Attributes:
        by_owner: The versions whose bodies differ by owner: a provider is to be asked for each.
        likely: The versions that the task's last update was wanted in.
    """

    __slots__ = (
        "_asked",
        "_encoder",
        "_made",
        "_now",
        "_snapshot",
        "_tenant",
        "_update",
        "by_owner",
        "likely",
    )

    def __init__(
        self,
        encoder: BodyEncoder,
        update: AnyUpdate,
        # The whole task, for versions that send it; or who knows it, owner by owner.
        snapshot: Task | SnapshotProvider | None,
        *,
        now: datetime,  # the time of it, for versions whose bodies need one
        tenant: str,
    ) -> None:
        self._encoder = encoder
        self._update = update
        self._snapshot = snapshot
        self.by_owner: Collection[WireVersion] = ()
        if callable(snapshot):
            self.by_owner = SNAPSHOT_VERSIONS[update.kind]
        self.likely: Set[WireVersion] = frozenset()
        self._asked: dict[str, Task | None] = {}
        self._now = now
        self._tenant = tenant
        # By version; of those that differ by owner, by version and owner.
        self._made: dict[WireVersion | tuple[WireVersion, str], bytes | PushkitError] = {}

    def unasked(self, recipients: Iterable[Recipient]) -> set[tuple[WireVersion, str]]:
        """Return the versions and owners of recipients whose snapshot was not asked for yet."""
        return {
            (each.version, each.owner)
            for each in recipients
            if each.version in self.by_owner and each.owner not in self._asked
        }

    async def ask(self, unasked: Iterable[tuple[WireVersion, str]]) -> None:
        """Ask for the snapshots of some owners, and encode them.

        Where the provider raises, the owner has no snapshot: nobody else is concerned.
        """
        for version, owner in unasked:
            if owner not in self._asked and callable(self._snapshot):
                self._asked[owner] = await self._encoder.ask(self._snapshot, owner, self._update)
            self._make(version, owner)

    def prepare(self, versions: Iterable[WireVersion]) -> None:
        """Encode bodies that may be wanted; an error is kept for whoever does want one."""
        for version in versions:
            if version not in self.by_owner:
                self._make(version, "")

    def _make(self, version: WireVersion, owner: str) -> bytes | PushkitError:
        key: WireVersion | tuple[WireVersion, str] = version
        snapshot = self._snapshot
        if version in self.by_owner:
            key, snapshot = (version, owner), self._asked[owner]
        made: bytes | PushkitError
        try:
            whole = None if callable(snapshot) else snapshot
            made = self._encoder.encode(self._update, version, whole, now=self._now)
        except PushkitError as exc:
            made = exc
        self._made[key] = made
        return made

    def note(self, versions: set[WireVersion]) -> None:
        """Remember in which versions it was wanted, for the task's updates that come."""
        if versions != self.likely:
            self._encoder.note((self._tenant, self._update.task_id or ""), versions)

    def of(self, recipient: Recipient) -> bytes:
        """Return the body of a recipient. Raises as `BodyEncoder.encode`."""
        version, owner = recipient.version, recipient.owner
        made = self._made.get((version, owner) if version in self.by_owner else version)
        if made is None:
            made = self._make(version, owner)
        if isinstance(made, PushkitError):
            raise made
        return made
