"""The adapter of the installed a2a-sdk. Both have the same names; types are those of 1.x."""

from importlib.metadata import version
from typing import TYPE_CHECKING

from pushkit.lazy import from_extra

with from_extra("a2a", "the adapter of a2a-sdk needs it"):
    IS_V1 = not version("a2a-sdk").startswith("0.")

if TYPE_CHECKING or IS_V1:
    from pushkit.integrations.a2a_sdk.v1 import PushkitConfigStore, PushkitNotificationSender
else:
    from pushkit.integrations.a2a_sdk.v0_3 import PushkitConfigStore, PushkitNotificationSender

__all__ = ["IS_V1", "PushkitConfigStore", "PushkitNotificationSender"]
