"""`--scheme` and `--webhook-secrets-file`: which signatures notifications carry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from pushkit.errors import ConfigError
from pushkit.signing.scheme import Scheme

__all__ = ["read_webhook_secrets", "scheme_option", "signing_options"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_MAX_FILE_CHARS = 64 * 1024


def signing_options(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Add `--scheme` and `--webhook-secrets-file` to a command."""
    secrets = click.option(
        "--webhook-secrets-file",
        "secrets_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        envvar="PUSHKIT_WEBHOOK_SECRETS_FILE",
        show_envvar=True,
        help="For standard-webhooks: a file with a whsec_… or whsk_… per line, several while one"
        " is being replaced. These signatures name no audience.",
    )
    return scheme_option("A signature that notifications carry; may stand several times.")(
        secrets(command)
    )


def scheme_option(says: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Add `--scheme` to a command."""
    return click.option(
        "--scheme",
        "schemes",
        multiple=True,
        type=click.Choice([scheme.value for scheme in Scheme]),
        default=[Scheme.JWT.value],
        show_default=True,
        help=says,
    )


def read_webhook_secrets(path: Path | None) -> tuple[str, ...]:
    """Return the secrets in a file, one a line; none without a file.

    Raises:
        ConfigError: The file cannot be read, or holds no secret.
    """
    if path is None:
        return ()
    try:
        with path.open(encoding="utf-8") as file:
            lines = file.read(_MAX_FILE_CHARS).split("\n")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: expected a text file with one webhook secret a line") from exc
    secrets = tuple(line.strip() for line in lines if line.strip())
    if not secrets:
        raise ConfigError(f"{path}: expected one webhook secret a line, found none")
    return secrets
