"""What outbox and inbox share: when to try again, and how work is pumped and shared."""

from tenacity import stop_after_attempt as stop_after_attempt
from tenacity import stop_after_delay as stop_after_delay
