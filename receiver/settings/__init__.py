"""The service's configuration: a TOML file, and environment variables that override it.

`RECEIVER_URL`, `RECEIVER_LISTEN`, `RECEIVER_DATABASE` and so on replace the file's values. Every
mistake is reported with its line, what was found, and what was expected.
"""

from receiver.settings.handlers import CallbackSettings
from receiver.settings.loading import load_settings
from receiver.settings.sender import SenderSettings
from receiver.settings.service import ReceiverSettings

__all__ = ["CallbackSettings", "ReceiverSettings", "SenderSettings", "load_settings"]
