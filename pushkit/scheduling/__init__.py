"""Scheduling: retries, deadlines, batches of a round of the event loop, housekeeping."""

from tenacity import stop_after_attempt as stop_after_attempt
from tenacity import stop_after_delay as stop_after_delay
