"""Variables of the environment that hold secrets."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pushkit.errors import ConfigError


def secret_variable(name: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the value of a variable, None if it is not set.

    Raises:
        ConfigError: It is empty. That is a secret which did not arrive: who goes on without it
            stores in plain, or lets in, what it is there for.
    """
    value = environment.get(name)
    if value == "":
        raise ConfigError(f"{name}: it is set, but empty; unset it to go without")
    return value
