"""Options shared by several commands: the inbox, the key file, the sender, the schemes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import click
from click.core import ParameterSource

from pushkit.clock import utc_now
from pushkit.errors import ConfigError
from pushkit.keys.files import load_key_ring
from pushkit.keys.jwk import SigningKey
from pushkit.programs import secret_variable
from pushkit.signing.scheme import Scheme
from pushkit.signing.standard_webhooks import load_webhook_secrets
from pushkit.storage.location import file_exists, is_missing
from pushkit.terminal.options import (
    FILE,
    PATH,
    OptionDecorator,
    choice_option,
    gathered,
    variable_option,
)

config_option = variable_option(
    "--config",
    type=PATH,
    default=Path("receiver.toml"),
    envvar="RECEIVER_CONFIG",
    help="The configuration file.",
)


_DATABASE_VARIABLE = "RECEIVER_DATABASE"


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxOptions:
    """Where the inbox is."""

    config: Path
    database: str | None = field(repr=False)  # a DSN may hold a password

    def location(self) -> str:
        """Return a DSN, or the path of a file, which need not exist."""
        if self.database:
            return self.database
        source = click.get_current_context().get_parameter_source("config")
        if source is not ParameterSource.DEFAULT or file_exists(self.config):
            from receiver.settings import load_settings  # `receiver pin` starts without it

            return load_settings(self.config).inbox_location  # reads the variable, too
        if found := os.environ.get(_DATABASE_VARIABLE):
            return found
        raise ConfigError(
            f"{self.config}: there is no such file; name the configuration by --config or"
            f" RECEIVER_CONFIG, or the inbox by --database or {_DATABASE_VARIABLE}"
        )

    def existing(self) -> str:
        """Return the same. Raises ConfigError: the file does not exist: a mistyped path."""
        location = self.location()
        if is_missing(location):
            raise ConfigError(f"database: there is no file {location}, and it is no PostgreSQL DSN")
        return location


inbox_options: OptionDecorator = gathered(
    "where",
    InboxOptions,
    config=config_option,
    database=click.option(
        "--database",
        help="Instead: the path of a SQLite file, or a PostgreSQL DSN; without a configuration also"
        f" by {_DATABASE_VARIABLE}.",
    ),
)


def load_signing_key(path: Path) -> SigningKey:
    """Return the current signing key of a file.

    Raises:
        ConfigError: The variable of the passphrase is empty.
        KeyFileError: The file is unreadable, or has no such key.
    """
    passphrase = secret_variable("PUSHKIT_KEY_PASSPHRASE")
    ring = load_key_ring(path, None if passphrase is None else os.fsencode(passphrase))
    return ring.signing_key(utc_now())


_JWT_ALONE = (Scheme.JWT,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schemes:
    """The signatures that must all be valid."""

    names: tuple[Scheme, ...] = _JWT_ALONE
    webhook_secrets: tuple[str, ...] = field(default=(), repr=False)  # for Standard Webhooks

    @property
    def by_key(self) -> bool:
        """Whether keys of a JWK Set are needed."""
        return any(each is not Scheme.STANDARD_WEBHOOKS for each in self.names)

    @property
    def is_usual(self) -> bool:
        """Whether it is the JWT alone, the default."""
        return self.names == _JWT_ALONE


def _schemes(schemes: tuple[Scheme, ...], secrets_file: Path | None) -> Schemes:
    secrets = load_webhook_secrets(secrets_file)
    if bool(secrets) != (Scheme.STANDARD_WEBHOOKS in schemes):
        raise click.UsageError(
            f"--webhook-secrets-file: expected with --scheme {Scheme.STANDARD_WEBHOOKS}, and only"
            " there"
        )
    return Schemes(names=schemes, webhook_secrets=secrets)


scheme_options: OptionDecorator = gathered(
    "schemes",
    _schemes,
    schemes=choice_option(
        "--scheme",
        "schemes",
        of=Scheme,
        multiple=True,
        default=[Scheme.JWT.value],
        help="A signature that must be valid; may be given several times.",
    ),
    secrets_file=click.option(
        "--webhook-secrets-file",
        "secrets_file",
        type=FILE,
        help="For standard-webhooks: a file with a whsec_… or whpk_… per line.",
    ),
)
