"""The service's configuration: a TOML file, and environment variables that override it.

`RECEIVER_URL`, `RECEIVER_LISTEN`, `RECEIVER_DATABASE` and so on replace the file's values. Every
mistake is reported with its line, what was found, and what was expected.
"""

from receiver.settings.service import ReceiverSettings, load_settings
from receiver.settings.tables import CallbackSettings, SenderSettings

__all__ = ["CallbackSettings", "ReceiverSettings", "SenderSettings", "load_settings"]
