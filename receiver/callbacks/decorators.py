"""The decorators that register callbacks: `@receiver.on_status("completed")`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar, overload

from pushkit.a2a import TaskState, UpdateKind
from pushkit.errors import ConfigError
from receiver.callbacks.registry import (
    KINDS_WITH_STATE,
    CallbackFunction,
    CallbackRegistry,
    Timeout,
)

__all__ = ["CallbackDecorators"]

F = TypeVar("F", bound=CallbackFunction)


class CallbackDecorators:
    """Registers functions, before callbacks are called. Each decorator also works bare.

    `timeout` is for one call: a timedelta, `"none"` for any time, None for what the receiver says.

    Attributes:
        callbacks: Where.
    """

    callbacks: CallbackRegistry

    @overload
    def on_update(self, function: F, /) -> F: ...
    @overload
    def on_update(
        self,
        *,
        kinds: Iterable[UpdateKind | str] = (),
        states: Iterable[TaskState | str] = (),
        senders: Iterable[str] = (),
        tasks: Iterable[str] = (),
        name: str | None = None,
        timeout: Timeout = None,
    ) -> Callable[[F], F]: ...
    def on_update(
        self,
        function: CallbackFunction | None = None,
        *,
        kinds: Iterable[UpdateKind | str] = (),
        states: Iterable[TaskState | str] = (),
        senders: Iterable[str] = (),
        tasks: Iterable[str] = (),
        name: str | None = None,
        timeout: Timeout = None,
    ) -> object:
        """Register a callback for every update, or for those that are named."""

        def register(function: F) -> F:
            self.callbacks.add(
                function,
                kinds=kinds,
                states=states,
                senders=senders,
                tasks=tasks,
                name=name,
                timeout=timeout,
            )
            return function

        return register if function is None else register(function)

    @overload
    def on_status(self, function: F, /) -> F: ...
    @overload
    def on_status(
        self,
        *states: TaskState | str,
        senders: Iterable[str] = (),
        tasks: Iterable[str] = (),
        name: str | None = None,
        timeout: Timeout = None,
    ) -> Callable[[F], F]: ...
    def on_status(
        self,
        *states: TaskState | str | CallbackFunction,
        senders: Iterable[str] = (),
        tasks: Iterable[str] = (),
        name: str | None = None,
        timeout: Timeout = None,
    ) -> object:
        """Register a callback for task states: status updates, and whole tasks (A2A 0.3)."""
        named = [each for each in states if isinstance(each, str)]
        functions = [each for each in states if not isinstance(each, str)]
        if len(functions) > 1 or (functions and named):
            raise ConfigError(f"on_status: found {functions[0]!r} among its states")
        register = self.on_update(
            kinds=KINDS_WITH_STATE,
            states=named,
            senders=senders,
            tasks=tasks,
            name=name,
            timeout=timeout,
        )
        return register(functions[0]) if functions else register

    @overload
    def on_artifact(self, function: F, /) -> F: ...
    @overload
    def on_artifact(
        self,
        *,
        senders: Iterable[str] = (),
        tasks: Iterable[str] = (),
        name: str | None = None,
        timeout: Timeout = None,
    ) -> Callable[[F], F]: ...
    def on_artifact(
        self,
        function: CallbackFunction | None = None,
        *,
        senders: Iterable[str] = (),
        tasks: Iterable[str] = (),
        name: str | None = None,
        timeout: Timeout = None,
    ) -> object:
        """Register a callback for artifact updates.

        An A2A 0.3 agent sends whole tasks instead: their artifacts come with `on_status`.
        """
        register = self.on_update(
            kinds=[UpdateKind.ARTIFACT_UPDATE],
            senders=senders,
            tasks=tasks,
            name=name,
            timeout=timeout,
        )
        return register if function is None else register(function)
