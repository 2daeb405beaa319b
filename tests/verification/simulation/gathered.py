"""What a delivery has to say that stands for gathered ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["says_all"]


def says_all(newer: bytes, older: bytes, shapes: Mapping[str, str]) -> bool:
    """Return whether a body says all that the one before it in its queue said.

    Args:
        newer: The body: a chunk of A2A 1.0, or a whole task of 0.3.
        older: The one that it stands for.
        shapes: The shapes of updates, by marker.
    """
    document, before = json.loads(newer), json.loads(older)
    if "artifactUpdate" not in document:
        return _status(document) == _status(before)
    marker = document["artifactUpdate"]["metadata"]["marker"]  # of the newest chunk
    parts, said = _parts(document), _parts(before)
    return shapes.get(marker) == "artifact" or parts[: len(said)] == said


def _status(task: dict[str, Any]) -> tuple[Any, Any]:
    return task["status"]["state"], task["status"].get("message")


def _parts(chunk: dict[str, Any]) -> list[Any]:
    parts: list[Any] = chunk["artifactUpdate"]["artifact"]["parts"]
    return parts
