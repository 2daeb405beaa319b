"""The adapter of the installed a2a-sdk. Both have the same names; types are those of 1.x."""

from importlib.metadata import version
from typing import TYPE_CHECKING

from pushkit.lazy import from_extra

with from_extra("a2a", "the adapter of a2a-sdk needs it"):
    installed = version("a2a-sdk")

if TYPE_CHECKING or not installed.startswith("0."):
    from pushkit.integrations.a2a_sdk.v1 import (
        PushkitConfigStore,
        PushkitNotificationSender,
        agent_routes,
        read_card,
        with_push,
    )
else:
    from pushkit.integrations.a2a_sdk.v0_3 import (
        PushkitConfigStore,
        PushkitNotificationSender,
        agent_routes,
        read_card,
        with_push,
    )

__all__ = [
    "PushkitConfigStore",
    "PushkitNotificationSender",
    "agent_routes",
    "read_card",
    "with_push",
]
