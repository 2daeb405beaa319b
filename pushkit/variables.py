"""Environment variables that hold secrets."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pushkit.errors import ConfigError


def secret_variable(name: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the value of a variable, None if it is not set.

    Raises:
        ConfigError: The variable is empty: a secret was meant to be there. To continue without it
            would store secrets in plain text, or let strangers in.
    """
    value = environment.get(name)
    if value == "":
        raise ConfigError(
            f"{name}: found an empty value, expected a secret; unset it if there is none"
        )
    return value
