"""The `[alerts]` table: where alerts go."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, model_validator

from pushkit.alerts.alerts import AlertOptions
from pushkit.errors import ConfigError
from pushkit.programs import find_program
from receiver.settings.values import Positive, Url


class AlertSettings(BaseModel):
    """The `[alerts]` table; see `pushkit.AlertOptions`.

    Attributes:
        webhook_secret_file: A file with the secret, `whsec_…`, that the webhook is signed with.
        every_minutes: The same alert is sent once in this time; then it says how many more.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", hide_input_in_errors=True)

    log: bool = False
    command: list[str] = []
    webhook: Url | None = None
    webhook_secret_file: Path | None = None
    every_minutes: Positive = 60

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if not (self.log or self.command or self.webhook):
            raise ValueError("expected log, command or webhook")
        if (self.webhook is None) != (self.webhook_secret_file is None):
            raise ValueError("expected webhook and webhook_secret_file together")
        return self

    def build(self, folder: Path) -> AlertOptions:
        """Return what a receiver is made with.

        Raises:
            ConfigError: There is no such program, or the file cannot be read.
        """
        secret = None
        if self.webhook_secret_file is not None:
            path = folder / self.webhook_secret_file
            try:
                secret = path.read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError) as exc:
                raise ConfigError(f"alerts: webhook_secret_file: cannot read {path}") from exc
        command = self.command
        return AlertOptions(
            log=self.log,
            command=find_program(command, setting="alerts: command", folder=folder)
            if command
            else (),
            webhook=self.webhook,
            webhook_secret=secret,
            every=timedelta(minutes=self.every_minutes),
        )
