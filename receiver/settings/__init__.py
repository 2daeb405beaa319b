"""The service's configuration: a TOML file, and the environment over it.

`RECEIVER_URL`, `RECEIVER_LISTEN`, `RECEIVER_DATABASE` and so on replace the file's value. Every
mistake is reported with its line, what was found missing or wrong, and what was expected.
"""

from receiver.settings.handlers import CallbackSettings
from receiver.settings.loading import load_settings
from receiver.settings.sender import SenderSettings
from receiver.settings.service import ReceiverSettings

__all__ = ["CallbackSettings", "ReceiverSettings", "SenderSettings", "load_settings"]
