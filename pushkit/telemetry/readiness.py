"""The text of `/readyz`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


def readiness(
    unready: Mapping[str, str], degraded: Mapping[str, str] = MappingProxyType({})
) -> tuple[int, bytes]:
    """Return status and body: 503 with any fault, by part, that stops all service."""
    lines = ["not ready" if unready else "ready"]
    lines += [*unready.values(), *(f"degraded: {each}" for each in degraded.values())]
    text = "".join(f"{' '.join(line.split())}\n" for line in lines)
    # A path of the file system may contain surrogates, which UTF-8 cannot encode.
    return 503 if unready else 200, text.encode("utf-8", "backslashreplace")
