"""The tables of the configuration file, and the types of settings that only a file has."""

from __future__ import annotations

import contextlib
import ipaddress
import pkgutil
import re
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, TypeAlias

from pydantic import AfterValidator, Field, PlainSerializer, model_validator

from pushkit.alerts import AlertOptions
from pushkit.bounded_json import JsonObject, read_json_object
from pushkit.errors import ConfigError, InvalidUrlError, PushkitError
from pushkit.files import read_file, read_text
from pushkit.net.destination import DestinationPolicy
from pushkit.net.dialling import EgressProxy
from pushkit.options import Bounds
from pushkit.programs import find_program, secret_variable
from pushkit.signing.scheme import Scheme
from pushkit.signing.standard_webhooks import generate_webhook_secret
from pushkit.terminal.options import DashboardOptions
from pushkit.terminal.tables import File, SettingsTable, whole, with_options
from pushkit.url import Url, audience_of, parse_host_and_port
from receiver.callbacks.registry import NO_TIMEOUT, CallbackFunction, CallbackRegistry, Timeout
from receiver.forwards import (
    FORWARD_TIMEOUT,
    STREAM_SCHEMES,
    CommandForward,
    Forward,
    HttpForward,
    StreamForward,
)
from receiver.inbox.retention import InboxRetention
from receiver.limits import RateLimit
from receiver.mailbox.service import MailboxOptions
from receiver.senders import TrustedSender

# --- values ---------------------------------------------------------------------------------------


def _read_by(read: Callable[[str], object], says: str = "") -> AfterValidator:
    """Refuse a text that cannot be read; `says` is the message, else that of `read`."""

    def check(value: str) -> str:
        try:
            found = read(value)
        except (ConfigError, ValueError) as exc:
            raise ValueError(says or str(exc).partition(": ")[2]) from exc
        if found is None:
            raise ValueError(says)
        return value

    return AfterValidator(check)


_FUNCTION = re.compile(r"[\w.]+:[\w.]+")
NotEmpty = Annotated[str, Field(min_length=1)]
HttpUrl = Annotated[str, _read_by(audience_of, "expected an absolute http or https URL")]
Proxy = Annotated[str, _read_by(EgressProxy.parse)]
HostAndPort = Annotated[
    str, _read_by(parse_host_and_port, "expected host:port, for example 127.0.0.1:9000")
]
Network = Annotated[
    str, _read_by(ipaddress.ip_network, "expected an address or a network, like 10.0.0.0/8")
]
ModuleAndFunction = Annotated[
    str, _read_by(_FUNCTION.fullmatch, "expected module:function, for example handlers:completed")
]

_SECOND = timedelta(seconds=1)
if TYPE_CHECKING:
    Rate: TypeAlias = RateLimit
    Seconds: TypeAlias = timedelta
    SecondsOrNone: TypeAlias = Timeout
else:
    Rate = Annotated[
        whole(Bounds(least=1)),
        AfterValidator(lambda number: RateLimit(per_second=number, burst=2 * number)),
        PlainSerializer(lambda rate: rate and int(rate.per_second)),
    ]
    Seconds = whole(Bounds(above=timedelta(0)), unit=_SECOND)
    SecondsOrNone = Annotated[
        whole(Bounds(above=timedelta(0)), unit=_SECOND, word_for_none=NO_TIMEOUT),
        AfterValidator(lambda timeout: NO_TIMEOUT if timeout is None else timeout),
        PlainSerializer(
            lambda timeout: timeout // _SECOND if isinstance(timeout, timedelta) else timeout
        ),
    ]


def read_lines(path: Path | None, *, setting: str) -> list[str]:
    """Return the lines of a file of secrets; none without a file.

    Raises:
        ConfigError: It cannot be read.
    """
    lines = [] if path is None else read_text(path, setting=setting).splitlines()
    return [line.strip() for line in lines if line.strip()]


# --- [[senders]] ----------------------------------------------------------------------------------


@with_options(
    TrustedSender,
    without="keys",
    types={"name": NotEmpty, "audience": list[HttpUrl], "card": File, RateLimit: Rate},
)
class SenderSettings(SettingsTable):
    """One `[[senders]]` table; see `receiver.trust.TrustedSender`."""

    webhook_secrets_file: File | None = None
    tokens_file: File | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Check the rules of `TrustedSender` here, so that a mistake is reported with its line."""
        by_key = self.profile.signed and set(self.schemes) != {Scheme.STANDARD_WEBHOOKS}
        if by_key and (self.jwks_url is None) == (self.jwks_file is None):
            raise ValueError("expected exactly one of jwks_url and jwks_file")
        # The files are read later: until then a random secret stands for their content.
        in_file = [generate_webhook_secret()] if self.webhook_secrets_file else []
        secrets = [*self.webhook_secrets, *in_file]
        try:
            self.made(TrustedSender, webhook_secrets=secrets, card=None)
        except ConfigError as exc:
            raise ValueError(str(exc).removeprefix(f"sender {self.name!r}: ")) from exc
        return self

    def build(self) -> TrustedSender:
        """Read the sender's files; return the sender. Raises ConfigError: one cannot be read."""
        said, secrets_file = f"sender {self.name!r}", self.webhook_secrets_file
        tokens = read_lines(self.tokens_file, setting=f"{said}: tokens_file")
        secrets = read_lines(secrets_file, setting=f"{said}: webhook_secrets_file")
        return self.made(
            TrustedSender,
            tokens=[*self.tokens, *tokens],
            webhook_secrets=[*self.webhook_secrets, *secrets],
            card=self._card(),
        )

    @property
    def files(self) -> list[Path]:
        """The files that it names."""
        named = (self.tokens_file, self.webhook_secrets_file, self.jwks_file, self.card)
        return [path for path in named if path is not None]

    def _card(self) -> JsonObject | None:
        if self.card is None:
            return None
        try:
            return read_json_object(read_file(self.card))
        except (OSError, PushkitError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else exc
            raise ConfigError(f"sender {self.name!r}: card: {self.card}: {reason}") from exc


# --- [[callbacks]], [[forwards]], [[mailbox]]: which notifications go where -----------------------


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
        except (Exception, SystemExit) as exc:
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
        said = f"mailbox {self.name!r}: tokens_file"
        tokens = [*self.tokens, *read_lines(self.tokens_file, setting=said)]
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


# --- tables that a file has at most once ----------------------------------------------------------


LISTEN: Final = "127.0.0.1:8091"
VARIABLE: Final = "RECEIVER_DASHBOARD_TOKEN"


class TlsSettings(SettingsTable):
    """The `[tls]` table: PEM files, reloaded upon SIGHUP."""

    certificate: File  # the certificate and its intermediates
    key: File  # its private key


@with_options(
    InboxRetention,
    without="sequences",
    names={
        "done": "done_days",
        "dead": "dead_days",
        "ids": "remember_hours",
        "expected": "expected_days",
    },
)
class RetentionSettings(SettingsTable):
    """The `[retention]` table; see `receiver.InboxRetention`."""


@with_options(DashboardOptions, without="variable", types={"hosts": list[NotEmpty]})
class DashboardSettings(SettingsTable):
    """The `[dashboard]` table. Without it, `receiver serve` has no dashboard.

    It needs `pip install '.[dashboard]'`.
    """

    # `host:port` of its own listener. Beyond loopback a token is required.
    listen: HostAndPort = LISTEN
    # A file with the token, mode 0600; `RECEIVER_DASHBOARD_TOKEN` may contain it instead.
    token_file: File | None = None

    def build(self) -> DashboardOptions:
        """Return the options that a dashboard is served with."""
        return self.made(DashboardOptions, variable=VARIABLE)


@with_options(
    AlertOptions,
    without="webhook_token webhook_secret look_every",
    names={"every": "every_minutes"},
    types={"command": list[str], "webhook": HttpUrl},
)
class AlertSettings(SettingsTable):
    """The `[alerts]` table; see `pushkit.AlertOptions`."""

    # A file with the secret, `whsec_…`, that signs alerts to the webhook.
    webhook_secret_file: File | None = None

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if not (self.log or self.command or self.webhook):
            raise ValueError("expected log, command or webhook")
        if (self.webhook is None) != (self.webhook_secret_file is None):
            raise ValueError("expected webhook and webhook_secret_file together")
        return self

    def build(self, folder: Path) -> AlertOptions:
        """Return the receiver's alerts. Raises ConfigError: no such program or file."""
        secret, command = None, self.command
        if self.webhook_secret_file is not None:
            setting = "alerts: webhook_secret_file"
            secret = read_text(self.webhook_secret_file, setting=setting).strip()
        if command:
            command = find_program(command, setting="alerts: command", folder=folder)
        return self.made(AlertOptions, command=command, webhook_secret=secret)
