"""The decorators that register callbacks: `@receiver.on_status("completed")`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, Unpack, overload

from pushkit.a2a import TaskState, UpdateKind
from pushkit.errors import ConfigError
from receiver.callbacks.registry import (
    KINDS_WITH_STATE,
    CallbackFunction,
    CallbackRegistry,
    Calling,
    Wanted,
)

F = TypeVar("F", bound=CallbackFunction)


class CallbackDecorators:
    """Registers functions, before callbacks are called. Each decorator also works bare.

    What may be named is what `CallbackRegistry.add` takes.
    """

    callbacks: CallbackRegistry

    @overload
    def on_update(self, function: F, /) -> F: ...
    @overload
    def on_update(self, **wanted: Unpack[Wanted]) -> Callable[[F], F]: ...
    def on_update(self, *functions: CallbackFunction, **wanted: Unpack[Wanted]) -> object:
        """Register a callback for every update, or for those that are named."""

        def register(function: F) -> F:
            self.callbacks.add(function, **wanted)
            return function

        return register(*functions) if functions else register

    @overload
    def on_status(self, function: F, /) -> F: ...
    @overload
    def on_status(
        self, *states: TaskState | str, **calling: Unpack[Calling]
    ) -> Callable[[F], F]: ...
    def on_status(
        self, *states: TaskState | str | CallbackFunction, **calling: Unpack[Calling]
    ) -> object:
        """Register a callback for task states: status updates, and whole tasks (A2A 0.3)."""
        named = [each for each in states if isinstance(each, str)]
        functions = [each for each in states if not isinstance(each, str)]
        if len(functions) > 1 or (functions and named):
            raise ConfigError(f"on_status: found {functions[0]!r} among its states")
        register = self.on_update(kinds=KINDS_WITH_STATE, states=named, **calling)
        return register(functions[0]) if functions else register

    @overload
    def on_artifact(self, function: F, /) -> F: ...
    @overload
    def on_artifact(self, **calling: Unpack[Calling]) -> Callable[[F], F]: ...
    def on_artifact(self, *functions: CallbackFunction, **calling: Unpack[Calling]) -> object:
        """Register a callback for artifact updates.

        An A2A 0.3 agent sends whole tasks instead: their artifacts come with `on_status`.
        """
        register = self.on_update(kinds=[UpdateKind.ARTIFACT_UPDATE], **calling)
        return register(*functions) if functions else register
