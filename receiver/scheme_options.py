"""`--scheme` and `--webhook-secrets-file` of commands that verify: what must hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import click

from pushkit.errors import ConfigError
from pushkit.signing.scheme import Scheme
from pushkit.terminal.options import FILE, Given, choice_option, gathered

_JWT_ALONE = (Scheme.JWT,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schemes:
    """Which signatures must hold, each of them."""

    names: tuple[Scheme, ...] = _JWT_ALONE
    webhook_secrets: tuple[str, ...] = field(default=(), repr=False)  # for Standard Webhooks

    @property
    def by_key(self) -> bool:
        """Whether keys of a JWK Set are needed."""
        return any(each is not Scheme.STANDARD_WEBHOOKS for each in self.names)

    @property
    def is_usual(self) -> bool:
        """Whether it is the JWT alone, which everybody has who does not say otherwise."""
        return self.names == _JWT_ALONE


def _schemes(schemes: tuple[Scheme, ...], secrets_file: Path | None) -> Schemes:
    secrets: tuple[str, ...] = ()
    if secrets_file is not None:
        try:
            lines = secrets_file.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(
                f"{secrets_file}: expected a text file with one webhook secret a line"
            ) from exc
        secrets = tuple(line.strip() for line in lines if line.strip())
    if bool(secrets) != (Scheme.STANDARD_WEBHOOKS in schemes):
        raise click.UsageError(
            f"--webhook-secrets-file: expected with --scheme {Scheme.STANDARD_WEBHOOKS}, and only"
            " there"
        )
    return Schemes(names=schemes, webhook_secrets=secrets)


scheme_options: Given = gathered(
    "schemes",
    _schemes,
    schemes=choice_option(
        "--scheme",
        "schemes",
        of=Scheme,
        multiple=True,
        default=[Scheme.JWT.value],
        help="A signature that must hold; may stand several times.",
    ),
    secrets_file=click.option(
        "--webhook-secrets-file",
        "secrets_file",
        type=FILE,
        help="For standard-webhooks: a file with a whsec_… or whpk_… per line.",
    ),
)
