"""When work runs: retries, the pump that claims it, deadlines, and periodic housekeeping."""

from tenacity import stop_after_attempt as stop_after_attempt
from tenacity import stop_after_delay as stop_after_delay
