"""Options that several commands of `pushkit` share."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click

from pushkit.delivery.error_codes import ERROR_CODES, is_error_code
from pushkit.delivery.signatures import Signing
from pushkit.errors import InvalidUrlError, KeyFileError
from pushkit.files import read_file
from pushkit.keys.files import create_key_ring, load_key_ring, update_key_ring
from pushkit.keys.ring import KeyRing
from pushkit.programs import secret_variable
from pushkit.signing.scheme import Scheme
from pushkit.signing.standard_webhooks import load_webhook_secrets
from pushkit.terminal.options import (
    FILE,
    PATH,
    OptionDecorator,
    choice_option,
    gathered,
    read_by,
    variable_option,
)
from pushkit.url import Url

_PASSPHRASE_VARIABLE: Final = "PUSHKIT_KEY_PASSPHRASE"  # noqa: S105 - the name of the variable


# --- files and keys -----------------------------------------------------------------------------

_passphrase_option = click.option(
    "--passphrase-file",
    type=FILE,
    help=f"A file with the passphrase of the private keys.  [env var: {_PASSPHRASE_VARIABLE}"
    " holds the passphrase itself]",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFile:
    """A key file, and the passphrase of its private keys."""

    path: Path
    passphrase: bytes | None = field(repr=False)

    def ring(self) -> KeyRing:
        """Read the keys. Raises KeyFileError."""
        return load_key_ring(self.path, self.passphrase)

    def create(self, ring: KeyRing) -> KeyRing:
        """Make the file. Raises KeyFileError."""
        create_key_ring(self.path, ring, self.passphrase)
        return ring

    def update(self, change: Callable[[KeyRing], KeyRing]) -> KeyRing:
        """Change the keys, and return the new ones. Raises KeyFileError."""
        return update_key_ring(self.path, change, self.passphrase)


def key_file_options(
    says: str = "The key file.", default: Path | None = Path("keys.json")
) -> OptionDecorator:
    """Add `--keys` and `--passphrase-file`, as `key_file`: None without a file and a default."""
    keys = variable_option("--keys", type=PATH, default=default, envvar="PUSHKIT_KEYS", help=says)
    return gathered("key_file", _key_file, keys=keys, passphrase_file=_passphrase_option)


def _key_file(keys: Path | None, passphrase_file: Path | None) -> KeyFile | None:
    if keys is None:
        return None
    return KeyFile(path=keys, passphrase=read_passphrase(passphrase_file))


def read_passphrase(file: Path | None) -> bytes | None:
    """Return the passphrase from a file, else from the environment, else None."""
    if file is None:
        given = secret_variable(_PASSPHRASE_VARIABLE)
        return None if given is None else os.fsencode(given)
    try:
        passphrase = read_file(file).rstrip(b"\r\n")
    except OSError as exc:
        raise KeyFileError(f"{file}: {exc.strerror}") from exc
    if not passphrase:
        raise KeyFileError(f"{file}: empty, expected a passphrase")
    return passphrase


# --- which signatures ----------------------------------------------------------------------------


def scheme_option(says: str) -> OptionDecorator:
    """Add `--scheme`, which may be given several times, as `schemes`."""
    return choice_option(
        "--scheme", "schemes", of=Scheme, multiple=True, default=[Scheme.JWT.value], help=says
    )


def _signing(schemes: tuple[Scheme, ...], secrets_file: Path | None) -> Signing:
    return Signing(schemes=schemes, webhook_secrets=load_webhook_secrets(secrets_file))


signing_options = gathered(
    "signing",
    _signing,
    schemes=scheme_option("A signature that notifications carry; may be given several times."),
    secrets_file=variable_option(
        "--webhook-secrets-file",
        "secrets_file",
        type=FILE,
        envvar="PUSHKIT_WEBHOOK_SECRETS_FILE",
        help="For standard-webhooks: a file with a whsec_… or whsk_… per line; several while a"
        " secret is being replaced. These signatures name no audience.",
    ),
)


# --- which deliveries, which subscriptions -------------------------------------------------------


def _error_code(value: str) -> str:
    if is_error_code(value):
        return value
    from pushkit.terminal.tables import did_you_mean  # only now: it needs pydantic

    raise click.BadParameter(
        f"there is no code {value!r}, expected one of"
        f" {', '.join(ERROR_CODES)}{did_you_mean(value, ERROR_CODES)}"
    )


def _origin(value: str) -> str:
    """Return an origin as it is stored: in lower case, with its port."""
    try:
        return Url.parse(value).origin
    except InvalidUrlError as exc:
        raise click.BadParameter("expected https://host or https://host:port") from exc


_FILTERS: Final = {
    "tenant": click.option("--tenant", help="Only those of this tenant."),
    "owner": click.option("--owner", help="Only those of this owner."),
    "task_id": click.option("--task", "task_id", help="Only those of this task."),
    "subscription_id": click.option(
        "--subscription", "subscription_id", help="Only those of this subscription."
    ),
    "origin": click.option(
        "--origin",
        callback=read_by(_origin),
        help="Only those to this destination: https://host[:port].",
    ),
    "error": click.option(
        "--error",
        callback=read_by(_error_code),
        help="Only those whose last error has this code, see `pushkit outbox errors`.",
    ),
}


def filter_options(kind: Callable[..., object], **more: OptionDecorator) -> OptionDecorator:
    """Add the options of a filter of this kind, and `more` of its members, as `wanted`."""
    known = inspect.signature(kind).parameters
    options = {name: option for name, option in _FILTERS.items() if name in known}
    return gathered("wanted", kind, **more, **options)
