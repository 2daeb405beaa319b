"""The service's configuration: a TOML file, and the environment over it.

`RECEIVER_URL`, `RECEIVER_LISTEN`, `RECEIVER_DATABASE` and so on replace the file's value. Every
mistake is reported with its line, what was found missing or wrong, and what was expected.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from pushkit.a2a import TaskState, UpdateKind
from pushkit.bounded_json import JsonValue, read_json
from pushkit.errors import ConfigError, PushkitError
from pushkit.keys.jwk import Algorithm
from pushkit.signing.audience import audience_of
from pushkit.signing.scheme import Scheme
from pushkit.signing.standard_webhooks import generate_webhook_secret
from receiver.callbacks.registry import CallbackFunction
from receiver.connections import ConnectionLimits
from receiver.forwards import CommandForward, Forward, HttpForward, StreamForward
from receiver.forwards.stream import SCHEMES as STREAM_SCHEMES
from receiver.inbox import InboxRetention
from receiver.limits import RateLimit
from receiver.peers import ForwardedHeader
from receiver.pipeline import Limits
from receiver.receiver import Receiver
from receiver.trust import DEFAULT_PATH, SenderProfile, TaskPolicy, TrustedSender

__all__ = ["CallbackSettings", "ReceiverSettings", "SenderSettings", "load_settings"]


def _absolute_url(value: str) -> str:
    try:
        audience_of(value)
    except ConfigError as exc:
        raise ValueError("expected an absolute http or https URL") from exc
    return value


def _host_and_port(value: str) -> str:
    host, _, port = value.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port[:6]) > _MAX_PORT:
        raise ValueError("expected host:port, for example 127.0.0.1:9000")
    return value


def _module_and_function(value: str) -> str:
    if not re.fullmatch(r"[\w.]+:[\w.]+", value):
        raise ValueError("expected module:function, for example handlers:completed")
    return value


_MAX_PORT = 65535
_Positive = Annotated[int, Field(gt=0)]
_Url = Annotated[str, AfterValidator(_absolute_url)]
_Location = tuple[int | str, ...]


class SenderSettings(BaseModel):
    """One `[[senders]]` table; see `receiver.trust.TrustedSender`."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    name: Annotated[str, Field(min_length=1)]
    issuer: str | None = None
    jwks_url: str | None = None
    jwks_file: Path | None = None
    path: str = DEFAULT_PATH
    audience: list[_Url] = []
    profile: SenderProfile = SenderProfile.STANDARD
    schemes: list[Scheme] = [Scheme.JWT]
    webhook_secrets: list[str] = []
    webhook_secrets_file: Path | None = None
    algorithms: list[Algorithm] = list(Algorithm)
    tolerance_seconds: Annotated[int, Field(gt=0, le=86400)] = 300
    tokens: list[str] = []
    tokens_file: Path | None = None
    token_required: bool = True
    credentials: list[str] = []
    tasks: TaskPolicy = TaskPolicy.REGISTERED
    max_body_bytes: _Positive | None = None
    rate: _Positive | None = None
    id_field: str | None = None
    card: Path | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Hold the rules of `TrustedSender` here, where the line of the table is known."""
        by_key = self.profile.signed and set(self.schemes) != {Scheme.STANDARD_WEBHOOKS}
        if by_key and (self.jwks_url is None) == (self.jwks_file is None):
            raise ValueError("expected exactly one of jwks_url and jwks_file")
        # A file is read later: until then a secret that nobody has stands for what is in it.
        in_file = [generate_webhook_secret()] if self.webhook_secrets_file else []
        try:
            _trusted(
                self,
                Path(),
                tokens=self.tokens,
                webhook_secrets=[*self.webhook_secrets, *in_file],
            )
        except ConfigError as exc:
            raise ValueError(str(exc).removeprefix(f"sender {self.name!r}: ")) from exc
        return self


class CallbackSettings(BaseModel):
    """One `[[callbacks]]` table: `call` is `module:function`, the rest says what it wants."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    call: Annotated[str, AfterValidator(_module_and_function)]
    kinds: list[UpdateKind] = []
    states: list[TaskState] = []
    senders: list[str] = []
    tasks: list[str] = []


class ForwardSettings(BaseModel):
    """One `[[forwards]]` table: a URL or a command, and what is handed on to it."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    to: str | None = None
    command: list[str] | None = None
    name: str | None = None
    timeout_seconds: _Positive = 30
    kinds: list[UpdateKind] = []
    states: list[TaskState] = []
    senders: list[str] = []
    tasks: list[str] = []

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.to is None) == (self.command is None):
            raise ValueError("expected exactly one of to and command")
        return self

    def build(self, folder: Path) -> Forward:
        """Return what hands notifications on.

        Raises:
            ConfigError: The URL or the command is none.
        """
        timeout = (
            {"timeout": timedelta(seconds=self.timeout_seconds)} if self.timeout_seconds else {}
        )
        if self.command is not None:
            return CommandForward(self.command, folder=folder, **timeout)
        to = self.to or ""
        stream = to.partition("://")[0] in STREAM_SCHEMES
        return StreamForward(to, **timeout) if stream else HttpForward(to, **timeout)


class TlsSettings(BaseModel):
    """The `[tls]` table: PEM files, read again upon SIGHUP."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    certificate: Path
    key: Path


class RetentionSettings(BaseModel):
    """The `[retention]` table; see `receiver.inbox.InboxRetention`. Left out: kept for ever."""

    model_config = ConfigDict(extra="forbid")

    done_days: _Positive | None = 7
    dead_days: _Positive | None = None
    max_done: Annotated[int, Field(ge=0)] | None = None
    remember_hours: _Positive = 96

    def build(self) -> InboxRetention:
        """Return what a receiver is made with."""
        return InboxRetention(
            done=timedelta(days=self.done_days) if self.done_days else None,
            dead=timedelta(days=self.dead_days) if self.dead_days else None,
            max_done=self.max_done,
            ids=timedelta(hours=self.remember_hours),
        )


class ReceiverSettings(BaseSettings):
    """The whole file.

    Attributes:
        url: The base URL at which agents reach this receiver.
        listen: `host:port` to listen on.
        database: A SQLite file, relative to the configuration file, or a PostgreSQL DSN.
        replay: A Redis URL, for the memory of ids alone.
        retention: How long things stay in the inbox.
        allow: Hosts named for development, as `host:port` or `host:*`.
        max_body_bytes: The largest body.
        peer_rate: Requests a second from one address, before the signature; twice that at once.
        sender_rate: Notifications a second from one sender, after it; twice that at once.
        callback_concurrency: How many callbacks at once.
        max_header_bytes: The largest header section.
        request_timeout_seconds: For the head of a request, and for its body.
        keep_alive_seconds: How long a connection may wait for its next request.
        stop_timeout_seconds: How long requests in flight are given at the end.
        max_connections: How many at once, in each process.
        max_connections_per_peer: How many from one address.
        trusted_proxies: Addresses and networks of the reverse proxies in front.
        forwarded_header: Which header they write: `X-Forwarded-For` or `Forwarded`.
        validation_echo: Whether `GET ?validationToken=` is answered with the token.
        tls: Certificate and key.
        senders: Who is trusted.
        callbacks: What is called.
        forwards: Where notifications are handed on to.
    """

    model_config = SettingsConfigDict(
        env_prefix="RECEIVER_", extra="forbid", hide_input_in_errors=True
    )

    url: _Url
    listen: Annotated[str, AfterValidator(_host_and_port)] = "127.0.0.1:9000"
    database: Annotated[str, Field(min_length=1)] = "inbox.db"
    replay: str | None = None
    retention: RetentionSettings = RetentionSettings()
    allow: list[str] = []
    max_body_bytes: _Positive = 1024 * 1024
    peer_rate: _Positive = 1000
    sender_rate: _Positive = 1000
    callback_concurrency: _Positive = 16
    max_header_bytes: _Positive = 16 * 1024
    request_timeout_seconds: _Positive = 10
    keep_alive_seconds: _Positive = 75
    stop_timeout_seconds: _Positive = 20
    max_connections: _Positive = 512
    max_connections_per_peer: _Positive = 128
    trusted_proxies: list[str] = []
    forwarded_header: ForwardedHeader = ForwardedHeader.X_FORWARDED_FOR
    validation_echo: bool = False
    tls: TlsSettings | None = None
    senders: Annotated[list[SenderSettings], Field(min_length=1)]
    callbacks: list[CallbackSettings] = []
    forwards: list[ForwardSettings] = []

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

    def inbox_location(self, folder: Path) -> str:
        """Return where the inbox is: a DSN as it stands, or a path in this folder."""
        return self.database if "://" in self.database else str(folder / self.database)

    @property
    def host_and_port(self) -> tuple[str, int]:
        """Where to listen."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def stop_timeout(self) -> timedelta:
        """How long requests in flight are given at the end."""
        return timedelta(seconds=self.stop_timeout_seconds)

    @property
    def connection_limits(self) -> ConnectionLimits:
        """What a connection may take."""
        timeout = timedelta(seconds=self.request_timeout_seconds)
        return ConnectionLimits(
            max_connections=self.max_connections,
            max_connections_per_peer=self.max_connections_per_peer,
            head_timeout=timeout,
            write_timeout=timeout,
            keep_alive=timedelta(seconds=self.keep_alive_seconds),
        )

    def trusted_senders(self, folder: Path) -> list[TrustedSender]:
        """Return the senders, their files of tokens and secrets read.

        Args:
            folder: Where relative paths are found.

        Raises:
            ConfigError: Such a file cannot be read, or holds no webhook secret.
        """
        return [
            _trusted(
                sender,
                folder,
                tokens=[*sender.tokens, *_lines(sender, "tokens_file", folder)],
                webhook_secrets=[
                    *sender.webhook_secrets,
                    *_lines(sender, "webhook_secrets_file", folder),
                ],
                card=_card(sender, folder),
            )
            for sender in self.senders
        ]

    def build(self, folder: Path) -> Receiver:
        """Return the receiver that this configuration describes, its callbacks loaded.

        Args:
            folder: Where relative paths and the callbacks' modules are found.

        Raises:
            ConfigError: A value that only shows when it is used: a key file, a module, a URL.
        """
        receiver = Receiver(
            url=self.url,
            senders=self.trusted_senders(folder),
            database=self.inbox_location(folder),
            replay=self.replay,
            retention=self.retention.build(),
            allow=self.allow,
            limits=Limits(
                max_body_bytes=self.max_body_bytes,
                max_header_bytes=self.max_header_bytes,
                request_timeout=timedelta(seconds=self.request_timeout_seconds),
                peer_rate=_rate(self.peer_rate),
                sender_rate=_rate(self.sender_rate),
            ),
            concurrency=self.callback_concurrency,
            trusted_proxies=self.trusted_proxies,
            forwarded_header=self.forwarded_header,
            validation_echo=self.validation_echo,
        )
        for callback in self.callbacks:
            receiver.callbacks.add(
                _load_function(callback.call, folder),
                kinds=callback.kinds,
                states=callback.states,
                senders=callback.senders,
                tasks=callback.tasks,
                name=callback.call,
            )
        for forward in self.forwards:
            receiver.forward(
                forward.build(folder),
                kinds=forward.kinds,
                states=forward.states,
                senders=forward.senders,
                tasks=forward.tasks,
                name=forward.name,
            )
        return receiver


def load_settings(path: Path) -> ReceiverSettings:
    """Read and check a configuration file.

    Raises:
        ConfigError: `file:line: member: what was expected`, one line per mistake.
    """
    try:
        text = path.read_text("utf-8")
        settings = ReceiverSettings(**tomllib.loads(text))
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: not UTF-8 at byte {exc.start}") from exc
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{path}: not TOML: {exc}") from exc
    except ValidationError as exc:
        raise ConfigError("\n".join(_mistakes(exc, path, text))) from exc
    except SettingsError as exc:
        field = re.search(r'field "(\w+)"', str(exc))
        variable = f"RECEIVER_{field[1].upper()}" if field else "the environment"
        raise ConfigError(f"{variable}: expected JSON") from exc
    strangers = [f"{_place(path, text, at)}: {says}" for at, says in _unknown_senders(settings)]
    if strangers:
        raise ConfigError("\n".join(strangers))
    return settings


def _unknown_senders(settings: ReceiverSettings) -> Iterator[tuple[_Location, str]]:
    """Find callbacks that would never be called, because they name a sender that is none."""
    known = [sender.name for sender in settings.senders]
    for table in ("callbacks", "forwards"):
        for number, wish in enumerate(getattr(settings, table)):
            for name in wish.senders:
                if name not in known:
                    says = f"found {name!r}, expected one of {', '.join(known)}"
                    yield (table, number, "senders"), says


def _mistakes(error: ValidationError, path: Path, text: str) -> list[str]:
    lines = []
    # Without input and URL: a value may be a token.
    for mistake in error.errors(include_input=False, include_url=False, include_context=False):
        location = mistake["loc"]
        message = mistake["msg"].removeprefix("Value error, ")
        if mistake["type"] == "extra_forbidden":
            message = "there is no such setting" + _did_you_mean(str(location[-1]))
        lines.append(f"{_place(path, text, location)}: {message}")
    return lines


def _place(path: Path, text: str, location: _Location) -> str:
    """Return where a member was set: the variable, or the line of the file, and its name."""
    variable = f"RECEIVER_{str(location[0]).upper()}" if location else ""
    if variable in os.environ:
        return variable
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return f"{path}:{line_of(text, location)}: {''.join(steps).lstrip('.')}"


def _did_you_mean(name: str) -> str:
    models = (
        *(ReceiverSettings, SenderSettings, CallbackSettings, ForwardSettings),
        *(TlsSettings, RetentionSettings),
    )
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


def _trusted(
    settings: SenderSettings,
    folder: Path,
    *,
    tokens: Sequence[str],
    webhook_secrets: Sequence[str],
    card: Mapping[str, JsonValue] | None = None,
) -> TrustedSender:
    return TrustedSender(
        name=settings.name,
        issuer=settings.issuer,
        jwks_url=settings.jwks_url,
        jwks_file=folder / settings.jwks_file if settings.jwks_file else None,
        path=settings.path,
        audience=settings.audience,
        profile=settings.profile,
        schemes=frozenset(settings.schemes),
        webhook_secrets=webhook_secrets,
        algorithms=frozenset(settings.algorithms),
        tolerance=timedelta(seconds=settings.tolerance_seconds),
        tokens=tokens,
        token_required=settings.token_required,
        credentials=settings.credentials,
        tasks=settings.tasks,
        max_body_bytes=settings.max_body_bytes,
        rate=_rate(settings.rate) if settings.rate else None,
        id_field=settings.id_field,
        card=card,
    )


def _rate(per_second: int) -> RateLimit:
    """Return a rate that lets twice as much through at once."""
    return RateLimit(per_second=per_second, burst=2 * per_second)


def _lines(
    settings: SenderSettings,
    member: Literal["tokens_file", "webhook_secrets_file"],
    folder: Path,
) -> Sequence[str]:
    """Return what stands in a file of secrets, one a line; nothing if there is no such file."""
    named: Path | None = getattr(settings, member)
    if named is None:
        return []
    path = folder / named
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"sender {settings.name!r}: {member}: cannot read {path}") from exc
    return [line.strip() for line in lines if line.strip()]


def _card(settings: SenderSettings, folder: Path) -> Mapping[str, JsonValue] | None:
    if settings.card is None:
        return None
    path = folder / settings.card
    try:
        document = read_json(path.read_bytes())
    except (OSError, PushkitError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise ConfigError(f"sender {settings.name!r}: card: {path}: {reason}") from exc
    if not isinstance(document, dict):
        raise ConfigError(f"sender {settings.name!r}: card: {path}: expected a JSON object")
    return document


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
