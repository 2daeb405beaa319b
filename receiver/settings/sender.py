"""The `[[senders]]` tables, and reading the files that they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, model_validator

from pushkit.bounded_json import JsonValue, read_json_object
from pushkit.errors import ConfigError, PushkitError
from pushkit.files import read_file
from pushkit.keys.jwk import Algorithm
from pushkit.lifetimes import LONGEST_TOLERANCE, TOLERANCE
from pushkit.signing.scheme import Scheme
from pushkit.signing.standard_webhooks import generate_webhook_secret
from pushkit.terminal.toml import File
from receiver.senders import (
    DEFAULT_PATH,
    LONGEST_STALE,
    STALE_FOR,
    SenderProfile,
    TaskPolicy,
    TrustedSender,
)
from receiver.settings.values import (
    NotEmpty,
    NotNegative,
    Positive,
    Secrets,
    Url,
    rate,
    read_text,
    seconds_of,
)


class SenderSettings(BaseModel, extra="forbid", hide_input_in_errors=True):
    """One `[[senders]]` table; see `receiver.trust.TrustedSender`."""

    name: NotEmpty
    issuer: str | None = None
    jwks_url: str | None = None
    stale_for_seconds: Annotated[NotNegative, Field(le=seconds_of(LONGEST_STALE))] = seconds_of(
        STALE_FOR
    )
    jwks_file: File | None = None
    path: str = DEFAULT_PATH
    audience: list[Url] = []
    profile: SenderProfile = SenderProfile.STANDARD
    schemes: list[Scheme] = [Scheme.JWT]
    webhook_secrets: Secrets = []
    webhook_secrets_file: File | None = None
    algorithms: list[Algorithm] = list(Algorithm)
    tolerance_seconds: Annotated[Positive, Field(le=seconds_of(LONGEST_TOLERANCE))] = seconds_of(
        TOLERANCE
    )
    tokens: Secrets = []
    tokens_file: File | None = None
    token_required: bool = True
    credentials: Secrets = []
    tasks: TaskPolicy = TaskPolicy.REGISTERED
    max_body_bytes: Positive | None = None
    rate: Positive | None = None
    id_field: str | None = None
    card: File | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Check the rules of `TrustedSender` here, so that a mistake is reported with its line."""
        by_key = self.profile.signed and set(self.schemes) != {Scheme.STANDARD_WEBHOOKS}
        if by_key and (self.jwks_url is None) == (self.jwks_file is None):
            raise ValueError("expected exactly one of jwks_url and jwks_file")
        # The file is read later: until then a random secret stands for its content.
        in_file = [generate_webhook_secret()] if self.webhook_secrets_file else []
        try:
            self._trusted(
                Path(), tokens=self.tokens, webhook_secrets=[*self.webhook_secrets, *in_file]
            )
        except ConfigError as exc:
            raise ValueError(str(exc).removeprefix(f"sender {self.name!r}: ")) from exc
        return self

    def build(self, folder: Path) -> TrustedSender:
        """Read the sender's files; return the sender. Raises ConfigError: one cannot be read."""
        tokens = self._lines("tokens_file", folder)
        webhook_secrets = self._lines("webhook_secrets_file", folder)
        return self._trusted(
            folder,
            tokens=[*self.tokens, *tokens],
            webhook_secrets=[*self.webhook_secrets, *webhook_secrets],
            card=self._card(folder),
        )

    def _trusted(
        self,
        folder: Path,
        *,
        tokens: Sequence[str],
        webhook_secrets: Sequence[str],
        card: Mapping[str, JsonValue] | None = None,
    ) -> TrustedSender:
        return TrustedSender(
            name=self.name,
            issuer=self.issuer,
            jwks_url=self.jwks_url,
            stale_for=timedelta(seconds=self.stale_for_seconds),
            jwks_file=folder / self.jwks_file if self.jwks_file else None,
            path=self.path,
            audience=self.audience,
            profile=self.profile,
            schemes=frozenset(self.schemes),
            webhook_secrets=webhook_secrets,
            algorithms=frozenset(self.algorithms),
            tolerance=timedelta(seconds=self.tolerance_seconds),
            tokens=tokens,
            token_required=self.token_required,
            credentials=self.credentials,
            tasks=self.tasks,
            max_body_bytes=self.max_body_bytes,
            rate=rate(self.rate) if self.rate else None,
            id_field=self.id_field,
            card=card,
        )

    def _lines(
        self, member: Literal["tokens_file", "webhook_secrets_file"], folder: Path
    ) -> Sequence[str]:
        """Return the lines of a file of secrets; none if the setting is not given."""
        named: Path | None = getattr(self, member)
        if named is None:
            return []
        lines = read_text(folder / named, setting=f"sender {self.name!r}: {member}").splitlines()
        return [line.strip() for line in lines if line.strip()]

    def _card(self, folder: Path) -> Mapping[str, JsonValue] | None:
        if self.card is None:
            return None
        path = folder / self.card
        try:
            return read_json_object(read_file(path))
        except (OSError, PushkitError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else exc
            raise ConfigError(f"sender {self.name!r}: card: {path}: {reason}") from exc
