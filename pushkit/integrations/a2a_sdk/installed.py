"""The adapter of the installed a2a-sdk. Both have the same names; types are those of 1.x."""

from importlib.metadata import version
from typing import TYPE_CHECKING

from pushkit.lazy import from_extra

with from_extra("a2a", "the adapter of a2a-sdk needs it"):
    installed = version("a2a-sdk")

if TYPE_CHECKING or not installed.startswith("0."):
    from pushkit.integrations.a2a_sdk import v1 as adapter
else:
    from pushkit.integrations.a2a_sdk import v0_3 as adapter

__all__ = ["adapter"]
