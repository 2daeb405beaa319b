"""The `[[callbacks]]`, `[[forwards]]` and `[[mailbox]]` tables: which notifications go where."""

from __future__ import annotations

import contextlib
import pkgutil
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from pushkit.errors import ConfigError, InvalidUrlError, PushkitError
from pushkit.net.destination import DestinationPolicy
from pushkit.programs import secret_variable
from pushkit.terminal.tables import File, SettingsTable, with_options
from pushkit.url import Url
from receiver.callbacks.registry import CallbackFunction, CallbackRegistry, Timeout
from receiver.forwards import (
    FORWARD_TIMEOUT,
    STREAM_SCHEMES,
    CommandForward,
    Forward,
    HttpForward,
    StreamForward,
)
from receiver.mailbox.service import MailboxOptions
from receiver.settings.values import (
    ModuleAndFunction,
    NotEmpty,
    Seconds,
    SecondsOrNone,
    read_text,
)


@with_options(
    CallbackRegistry.add, without="function name timeout", types={"tasks": list[NotEmpty]}
)
class WantedSettings(SettingsTable):
    """Which notifications a callback or a forward gets."""

    def wanted(self, *, name: str | None, timeout: Timeout) -> dict[str, Any]:
        """Return the arguments with which the callback is registered."""
        return {**self.given(CallbackRegistry.add), "name": name, "timeout": timeout}


class CallbackSettings(WantedSettings):
    """One `[[callbacks]]` table: the function to call, and which notifications it wants."""

    call: ModuleAndFunction  # `module:function`; the module may be in the folder of this file
    # How long one call may take; `"none"` for any time. The default is `callback_timeout_seconds`.
    timeout: SecondsOrNone = Field(None, alias="timeout_seconds")

    def load(self, folder: Path) -> CallbackFunction:
        """Import the function, also from the file's folder. Raises ConfigError: it has none."""
        _refuse_namesakes(folder)
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
        try:
            found: object = pkgutil.resolve_name(self.call)
        except PushkitError:
            raise
        except Exception as exc:
            raise ConfigError(f"{self.call}: {type(exc).__name__}: {exc}") from exc
        if not callable(found):
            raise ConfigError(f"{self.call}: found a {type(found).__name__}, expected a function")
        function: CallbackFunction = found
        return function


class ForwardSettings(WantedSettings):
    """One `[[forwards]]` table: a URL or a command, and which notifications it gets."""

    to: str | None = None  # a URL that notifications are posted to, or a Redis stream's
    command: list[str] | None = None  # a command that gets each on its standard input
    name: NotEmpty | None = None  # its name in the log and the inbox; by default its URL or command
    # How long one attempt may take.
    timeout: Seconds = Field(FORWARD_TIMEOUT, alias="timeout_seconds")

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.to is None) == (self.command is None):
            raise ValueError("expected exactly one of to and command")
        return self

    def build(
        self,
        folder: Path,
        *,
        allow: Sequence[str] = (),
        proxy: str | None = None,
        ca_file: Path | None = None,
    ) -> Forward:
        """Return the forward. Raises ConfigError: no such URL or command."""
        if self.command is not None:
            return CommandForward(self.command, folder=folder, timeout=self.timeout)
        to = self.to or ""
        if to.partition("://")[0] in STREAM_SCHEMES:
            return StreamForward(to, timeout=self.timeout)
        with contextlib.suppress(InvalidUrlError):  # which `HttpForward` refuses
            if DestinationPolicy(allow).allows_by_name(Url.parse(to)):
                proxy = None
        return HttpForward(to, timeout=self.timeout, proxy=proxy, ca_file=ca_file)


@with_options(MailboxOptions)
class MailboxSettings(WantedSettings):
    """One `[[mailbox]]` table: who fetches from it, and which notifications it gets."""

    # A file with a token per line; `RECEIVER_MAILBOX_TOKEN_` and its name may contain one instead.
    tokens_file: File | None = None

    def build(self) -> MailboxOptions:
        """Return the mailbox. Raises ConfigError: it has no token, or a file cannot be read."""
        tokens, setting = list(self.tokens), f"mailbox {self.name!r}: tokens_file"
        if self.tokens_file is not None:
            lines = read_text(self.tokens_file, setting=setting).splitlines()
            tokens += [line.strip() for line in lines if line.strip()]
        variable = f"RECEIVER_MAILBOX_TOKEN_{re.sub('[^A-Z0-9]', '_', self.name.upper())}"
        if (token := secret_variable(variable)) is not None:
            tokens.append(token)
        return self.made(MailboxOptions, tokens=tokens)


def _refuse_namesakes(folder: Path) -> None:
    """Refuse modules that hide ours: the configuration's folder comes first in `sys.path`."""
    ours = Path(__file__).resolve().parents[2]
    for name in ("pushkit", "receiver"):
        for path in (folder / f"{name}.py", folder / name / "__init__.py"):
            if path.exists() and not path.samefile(ours / name / "__init__.py"):
                raise ConfigError(f"{path} hides the package {name} itself: give it another name")
