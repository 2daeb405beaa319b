"""The extensions of push configs: their URIs, and how a card declares them."""

from __future__ import annotations

from typing import Final

from pushkit.bounded_json import JsonObject
from pushkit.subscriptions.filters import FILTER_EXTENSION

STATE_EXTENSION: Final = "urn:pushkit:delivery-state:v1"
"""Clients ask how far the deliveries of a config are, and enable one that failures disabled."""
RECOVER_EXTENSION: Final = "urn:pushkit:recover:v1"
"""Clients have notifications of a config sent again."""
SNAPSHOT_EXTENSION: Final = "urn:pushkit:push-snapshot:v1"
"""A member of a config, `true`: the task as it stands is the first notification."""

_DESCRIPTIONS: Final = {
    FILTER_EXTENSION: "a push config says which updates it wants",
    SNAPSHOT_EXTENSION: "a push config asks for the task as it stands, ahead of its updates",
    RECOVER_EXTENSION: "notifications of a push config are sent again, by `seq` or time",
    STATE_EXTENSION: "how far the notifications of a push config are, and enabling it again",
}


def declarations(*, has_snapshots: bool) -> list[JsonObject]:
    """Return the extensions as members of a card's `capabilities.extensions`; none is required."""
    return [
        {"uri": uri, "description": description, "required": False}
        for uri, description in _DESCRIPTIONS.items()
        if has_snapshots or uri != SNAPSHOT_EXTENSION
    ]
