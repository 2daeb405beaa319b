"""Scheduling: retries, the pump that claims and processes items, deadlines, housekeeping."""

from tenacity import stop_after_attempt as stop_after_attempt
from tenacity import stop_after_delay as stop_after_delay
