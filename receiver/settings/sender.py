"""The `[[senders]]` tables, and reading the files that they name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pydantic import model_validator

from pushkit.bounded_json import JsonObject, read_json_object
from pushkit.errors import ConfigError, PushkitError
from pushkit.files import read_file
from pushkit.signing.scheme import Scheme
from pushkit.signing.standard_webhooks import generate_webhook_secret
from pushkit.terminal.tables import File, SettingsTable, with_options
from receiver.limits import RateLimit
from receiver.senders import TrustedSender
from receiver.settings.values import NotEmpty, Rate, Url, read_text


@with_options(
    TrustedSender,
    without="keys",
    types={"name": NotEmpty, "audience": list[Url], "card": File, RateLimit: Rate},
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
        return self.made(
            TrustedSender,
            tokens=[*self.tokens, *self._lines("tokens_file")],
            webhook_secrets=[*self.webhook_secrets, *self._lines("webhook_secrets_file")],
            card=self._card(),
        )

    @property
    def files(self) -> list[Path]:
        """The files that it names."""
        named = (self.tokens_file, self.webhook_secrets_file, self.jwks_file, self.card)
        return [path for path in named if path is not None]

    def _lines(self, setting: str) -> Sequence[str]:
        """Return the lines of a file of secrets; none if the setting is not given."""
        path: Path | None = getattr(self, setting)
        if path is None:
            return []
        lines = read_text(path, setting=f"sender {self.name!r}: {setting}").splitlines()
        return [line.strip() for line in lines if line.strip()]

    def _card(self) -> JsonObject | None:
        if self.card is None:
            return None
        try:
            return read_json_object(read_file(self.card))
        except (OSError, PushkitError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else exc
            raise ConfigError(f"sender {self.name!r}: card: {self.card}: {reason}") from exc
