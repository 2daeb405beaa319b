"""The callbacks, which notifications each gets, and the decorators that register them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias, TypedDict, TypeVar, Unpack, overload

from pushkit.a2a import TaskState, UpdateKind
from pushkit.errors import ConfigError
from pushkit.options import check_duration, checked
from pushkit.record import record
from receiver.inbox.model import ArtifactNotification, Notification, StatusNotification

CallbackFunction: TypeAlias = "Callable[[Notification], Awaitable[None] | None]"

_log = logging.getLogger("receiver")

NO_TIMEOUT: Final = "none"
Timeout: TypeAlias = 'timedelta | Literal["none"] | None'

F = TypeVar("F", bound=CallbackFunction)
# What `on_status` and `on_artifact` register gets notifications that always have a task.
StatusFunction: TypeAlias = "Callable[[StatusNotification], Awaitable[None] | None]"
ArtifactFunction: TypeAlias = "Callable[[ArtifactNotification], Awaitable[None] | None]"
S = TypeVar("S", bound=StatusFunction)
A = TypeVar("A", bound=ArtifactFunction)

KINDS_WITH_STATE = (UpdateKind.STATUS_UPDATE, UpdateKind.TASK)
"""A status update, or a whole task: all that an A2A 0.3 agent ever sends."""


class Calling(TypedDict, total=False):
    """Whose notifications a callback gets, and how it is called; every member is optional."""

    senders: Iterable[str]  # names of trusted senders; all if empty
    tasks: Iterable[str]  # task ids; all if empty
    name: str | None  # what the inbox calls it; `module:function` if None
    timeout: Timeout  # how long a call may take; None for the receiver's, `"none"` for any time


class Wanted(Calling, total=False):
    """The members of `Calling`, and which updates a callback gets."""

    kinds: Iterable[UpdateKind | str]  # kinds of update; all if empty
    states: Iterable[TaskState | str]  # task states; all if empty
    gaps: bool  # only those before which updates are missing


@record(frozen=True, slots=True, kw_only=True)
class Callback:
    """A function, and which notifications it gets. An empty set stands for all."""

    name: str  # `module:function`, stable across restarts: the inbox records calls by it
    function: CallbackFunction  # a plain function (run in a thread) or a coroutine function
    kinds: frozenset[UpdateKind] = frozenset()  # kinds of update
    # Task states; if there are any, an update without a state is not wanted.
    states: frozenset[TaskState] = frozenset()
    senders: frozenset[str] = frozenset()  # names of trusted senders
    tasks: frozenset[str] = frozenset()  # task ids
    gaps: bool = False  # only those before which updates are missing
    timeout: Timeout = None  # of a call; None for the receiver's, `"none"` for any time
    is_async: bool  # whether it is a coroutine function

    def wants(self, notification: Notification) -> bool:
        """Return whether this callback gets a notification."""
        return (
            (not self.kinds or notification.kind in self.kinds)
            and (not self.states or notification.state in self.states)
            and (not self.senders or notification.sender in self.senders)
            and (not self.tasks or notification.task_id in self.tasks)
            and (not self.gaps or notification.follows_gap)
        )


class CallbackRegistry:
    """The callbacks, in the order in which they were registered."""

    def __init__(self) -> None:
        self._callbacks: dict[str, Callback] = {}
        # Whether more are refused: they would miss the notifications that are done by then.
        self.is_frozen = False

    @checked
    def add(
        self,
        function: CallbackFunction,
        *,
        kinds: Iterable[UpdateKind | str] = (),
        states: Iterable[TaskState | str] = (),
        gaps: bool = False,
        senders: Iterable[str] = (),
        tasks: Iterable[str] = (),
        name: str | None = None,
        timeout: Timeout = None,
    ) -> Callback:
        """Register a function.

        Args:
            function: A plain function (run in a thread) or a coroutine function.
            kinds: Kinds of updates, of `task`, `status-update`, `artifact-update`, `message` and
                `unknown`; all if empty.
            states: Task states; all if empty. If there are any, an update without a state is not
                wanted.
            gaps: Only notifications before which updates are missing (`Notification.follows_gap`).
            senders: Names of senders; all if empty.
            tasks: Ids of tasks; all if empty.
            name: What the inbox calls it; `module:function` if None.
            timeout: How long one call may take; `"none"` for any time, None for the receiver's.

        Raises:
            ConfigError: An unknown kind or state, a time-out that is not positive, nothing that can
                be called, a generator, a function that takes no notification, a name that is taken,
                or the registry is frozen.
        """
        if timeout is not None and timeout != NO_TIMEOUT:
            check_duration("timeout", timeout, otherwise=", or 'none'")
        callback = Callback(
            name=name or f"{function.__module__}:{getattr(function, '__qualname__', 'callback')}",
            function=function,
            kinds=frozenset(map(UpdateKind, kinds)),
            states=frozenset(map(TaskState, states)),
            senders=frozenset(senders),
            tasks=frozenset(tasks),
            gaps=gaps,
            timeout=timeout,
            is_async=_is(inspect.iscoroutinefunction, function),
        )
        if not _takes_one(function):
            raise ConfigError(
                f"callback {callback.name}: expected a function of one argument, the notification"
            )
        if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
            raise ConfigError(
                f"callback {callback.name}: found a generator, which a call would not run, expected"
                " a function without `yield`"
            )
        if self.is_frozen:
            raise ConfigError(
                f"callback {callback.name}: registered while the receiver runs, expected before it"
                " starts: it would miss the notifications that are done already"
            )
        if callback.name in self._callbacks:
            raise ConfigError(
                f"callback {callback.name} is registered twice: give each its own name="
            )
        self._callbacks[callback.name] = callback
        return callback

    @property
    def has_one(self) -> bool:
        """Whether there is at most one callback."""
        return len(self._callbacks) <= 1

    def warn_of_unknown(self, senders: Collection[str]) -> None:
        """Log a warning for each callback that names a sender which is not one of these."""
        for callback in self._callbacks.values():
            if unknown := callback.senders.difference(senders):
                _log.warning(
                    "callback %s: senders: found %s, expected some of the trusted %s: it is not"
                    " called for others",
                    callback.name,
                    ", ".join(map(repr, sorted(unknown))),
                    ", ".join(senders),
                )

    def wanting(self, notification: Notification) -> list[Callback]:
        """Return the callbacks that get a notification."""
        return [callback for callback in self._callbacks.values() if callback.wants(notification)]


class CallbackDecorators:
    """Registers functions, before the receiver starts. Each decorator also works without arguments.

    The arguments are those of `CallbackRegistry.add`.
    """

    callbacks: CallbackRegistry

    @overload
    def on_update(self, function: F, /) -> F: ...
    @overload
    def on_update(self, **wanted: Unpack[Wanted]) -> Callable[[F], F]: ...
    def on_update(self, *functions: CallbackFunction, **wanted: Unpack[Wanted]) -> object:
        """Register a callback for every update, or for those that the arguments name."""
        return self._registered(functions, **wanted)

    @overload
    def on_status(self, function: S, /) -> S: ...
    @overload
    def on_status(
        self, *states: TaskState | str, **calling: Unpack[Calling]
    ) -> Callable[[S], S]: ...
    def on_status(
        self, *states: TaskState | str | StatusFunction, **calling: Unpack[Calling]
    ) -> object:
        """Register a callback for task states: status updates, and whole tasks (A2A 0.3).

        It gets a `StatusNotification`, which always has a task and a state.
        """
        named = [each for each in states if isinstance(each, str)]
        functions = [each for each in states if not isinstance(each, str)]
        if len(functions) > 1 or (functions and named):
            raise ConfigError(f"on_status: found {functions[0]!r} among its states")
        return self._registered(functions, kinds=KINDS_WITH_STATE, states=named, **calling)

    @overload
    def on_artifact(self, function: A, /) -> A: ...
    @overload
    def on_artifact(self, **calling: Unpack[Calling]) -> Callable[[A], A]: ...
    def on_artifact(self, *functions: ArtifactFunction, **calling: Unpack[Calling]) -> object:
        """Register a callback for artifact updates: it gets an `ArtifactNotification`.

        An A2A 0.3 agent sends whole tasks instead: their artifacts come with `on_status`.
        """
        return self._registered(functions, kinds=[UpdateKind.ARTIFACT_UPDATE], **calling)

    def _registered(
        self, functions: Sequence[Callable[..., Any]], **wanted: Unpack[Wanted]
    ) -> object:
        """Register the one function there is; return it, or a decorator if there is none."""

        def register(function: Callable[..., Any]) -> object:
            self.callbacks.add(function, **wanted)
            return function

        return register(*functions) if functions else register

    @overload
    def on_unknown(self, function: F, /) -> F: ...
    @overload
    def on_unknown(self, **calling: Unpack[Calling]) -> Callable[[F], F]: ...
    def on_unknown(self, *functions: CallbackFunction, **calling: Unpack[Calling]) -> object:
        """Register a callback for kinds of updates that pushkit does not know (`UnknownUpdate`)."""
        return self._registered(functions, kinds=[UpdateKind.UNKNOWN], **calling)

    @overload
    def on_gap(self, function: F, /) -> F: ...
    @overload
    def on_gap(self, **calling: Unpack[Calling]) -> Callable[[F], F]: ...
    def on_gap(self, *functions: CallbackFunction, **calling: Unpack[Calling]) -> object:
        """Register a callback for updates before which others are missing, by `seq` or generation.

        It may ask the agent for the whole task (`GetTask`). Register it before the others, and they
        are called after it.
        """
        return self._registered(functions, gaps=True, **calling)


def _is(kind: Callable[[object], bool], function: CallbackFunction) -> bool:
    called = getattr(function, "__call__", None)  # noqa: B004  # of an object: `async def __call__`
    return kind(function) or kind(called)


def _takes_one(function: CallbackFunction) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a built-in function, whose arguments are not known
        return True
    try:
        signature.bind(object())
    except TypeError:
        return False
    return True
