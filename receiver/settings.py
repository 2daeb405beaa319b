"""The service's configuration: a TOML file, and the environment over it.

`RECEIVER_URL`, `RECEIVER_LISTEN`, `RECEIVER_DATABASE` and so on replace the file's value. Every
mistake is reported with its line, what was found missing or wrong, and what was expected.
"""

from __future__ import annotations

import difflib
import importlib
import re
import sys
import tomllib
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from pushkit.errors import ConfigError, PushkitError
from pushkit.keys.jwk import Algorithm
from receiver.callbacks.registry import CallbackFunction
from receiver.pipeline import Limits
from receiver.receiver import Receiver
from receiver.trust import DEFAULT_PATH, SenderProfile, TaskPolicy, TrustedSender

__all__ = ["CallbackSettings", "ReceiverSettings", "SenderSettings", "load_settings"]

_Positive = Annotated[int, Field(gt=0)]
_Location = tuple[int | str, ...]


class SenderSettings(BaseModel):
    """One `[[senders]]` table; see `receiver.trust.TrustedSender`."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1)]
    issuer: str | None = None
    jwks_url: str | None = None
    jwks_file: Path | None = None
    path: str = DEFAULT_PATH
    audience: list[str] = []
    profile: SenderProfile = SenderProfile.STANDARD
    algorithms: list[Algorithm] = list(Algorithm)
    tolerance_seconds: _Positive = 300
    tokens: list[str] = []
    tokens_file: Path | None = None
    token_required: bool = True
    credentials: list[str] = []
    tasks: TaskPolicy = TaskPolicy.REGISTERED


class CallbackSettings(BaseModel):
    """One `[[callbacks]]` table: `call` is `module:function`, the rest says what it wants."""

    model_config = ConfigDict(extra="forbid")

    call: Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")]
    kinds: list[str] = []
    states: list[str] = []
    senders: list[str] = []


class ReceiverSettings(BaseSettings):
    """The whole file.

    Attributes:
        url: The base URL at which agents reach this receiver.
        listen: `host:port` to listen on.
        database: The SQLite file; relative to the configuration file.
        allow: Hosts named for development, as `host:port` or `host:*`.
        max_body_bytes: The largest body.
        callback_concurrency: How many callbacks at once.
        senders: Who is trusted.
        callbacks: What is called.
    """

    model_config = SettingsConfigDict(env_prefix="RECEIVER_", extra="forbid")

    url: str
    listen: Annotated[str, Field(pattern=r"^.+:[0-9]{1,5}$")] = "127.0.0.1:9000"
    database: Path = Path("inbox.db")
    allow: list[str] = []
    max_body_bytes: _Positive = 1024 * 1024
    callback_concurrency: _Positive = 16
    senders: Annotated[list[SenderSettings], Field(min_length=1)]
    callbacks: list[CallbackSettings] = []

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003  # the library's signature
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Put the environment over the file."""
        return env_settings, init_settings

    @property
    def host_and_port(self) -> tuple[str, int]:
        """Where to listen."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)

    def build(self, folder: Path) -> Receiver:
        """Return the receiver that this configuration describes, its callbacks loaded.

        Args:
            folder: Where relative paths and the callbacks' modules are found.

        Raises:
            ConfigError: A value that only shows when it is used: a key file, a module, a URL.
        """
        receiver = Receiver(
            url=self.url,
            senders=[_trusted(sender, folder) for sender in self.senders],
            database=folder / self.database,
            allow=self.allow,
            limits=Limits(max_body_bytes=self.max_body_bytes),
            concurrency=self.callback_concurrency,
        )
        for callback in self.callbacks:
            receiver.callbacks.add(
                _load_function(callback.call, folder),
                kinds=callback.kinds,
                states=callback.states,
                senders=callback.senders,
                name=callback.call,
            )
        return receiver


def load_settings(path: Path) -> ReceiverSettings:
    """Read and check a configuration file.

    Raises:
        ConfigError: `file:line: member: what was expected`, one line per mistake.
    """
    try:
        text = path.read_text("utf-8")
        document = tomllib.loads(text)
        return ReceiverSettings(**document)
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: not UTF-8 at byte {exc.start}") from exc
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{path}: not TOML: {exc}") from exc
    except ValidationError as exc:
        raise ConfigError("\n".join(_mistakes(exc, path, text))) from exc


def _mistakes(error: ValidationError, path: Path, text: str) -> list[str]:
    lines = []
    # Without input and URL: a value may be a token.
    for mistake in error.errors(include_input=False, include_url=False, include_context=False):
        location = mistake["loc"]
        member = ".".join(str(step) for step in location).replace(".0", "[0]")
        message = mistake["msg"]
        if mistake["type"] == "extra_forbidden":
            message = "there is no such setting" + _did_you_mean(str(location[-1]))
        lines.append(f"{path}:{line_of(text, location)}: {member}: {message}")
    return lines


def _did_you_mean(name: str) -> str:
    models = (ReceiverSettings, SenderSettings, CallbackSettings)
    known = [field for model in models for field in model.model_fields]
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


_TABLE = re.compile(r"^\s*(\[\[?)\s*([\w.\"-]+)\s*\]\]?")
_KEY = re.compile(r"^\s*([\w\"-]+)\s*=")


def line_of(text: str, location: _Location) -> int:
    """Return the line of a TOML document where a member stands, or the nearest one above it.

    Args:
        text: The document.
        location: The member's path, for example `("senders", 0, "issuer")`.
    """
    best, best_depth = 1, 0
    table: _Location = ()
    here: _Location
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE.match(line):
            name = header[2].strip('"')
            table = (name,)
            if header[1] == "[[":
                counts[name] = counts.get(name, -1) + 1
                table = (name, counts[name])
            here = table
        elif key := _KEY.match(line):
            here = (*table, key[1].strip('"'))
        else:
            continue
        depth = len(here) if location[: len(here)] == here else 0
        if depth > best_depth:
            best, best_depth = number, depth
    return best


def _trusted(settings: SenderSettings, folder: Path) -> TrustedSender:
    return TrustedSender(
        name=settings.name,
        issuer=settings.issuer,
        jwks_url=settings.jwks_url,
        jwks_file=folder / settings.jwks_file if settings.jwks_file else None,
        path=settings.path,
        audience=settings.audience,
        profile=settings.profile,
        algorithms=frozenset(settings.algorithms),
        tolerance=timedelta(seconds=settings.tolerance_seconds),
        tokens=[*settings.tokens, *_tokens_in_file(settings, folder)],
        token_required=settings.token_required,
        credentials=settings.credentials,
        tasks=settings.tasks,
    )


def _tokens_in_file(settings: SenderSettings, folder: Path) -> Sequence[str]:
    if settings.tokens_file is None:
        return []
    path = folder / settings.tokens_file
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"sender {settings.name!r}: tokens_file: cannot read {path}") from exc
    return [line.strip() for line in lines if line.strip()]


def _load_function(call: str, folder: Path) -> CallbackFunction:
    """Import `module:function`, looking beside the configuration file first."""
    module_name, _, function_name = call.partition(":")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        found: object = importlib.import_module(module_name)
        for step in function_name.split("."):
            found = getattr(found, step)
    except PushkitError:
        raise
    except Exception as exc:
        raise ConfigError(f"callback {call}: {type(exc).__name__}: {exc}") from exc
    if not callable(found):
        raise ConfigError(f"callback {call}: found a {type(found).__name__}, expected a function")
    function: CallbackFunction = found
    return function
