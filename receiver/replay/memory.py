"""What both memories of accepted ids share: an id that arrived, and why it is refused.

Ids are remembered independently of the inbox and its purges, for longer than a sender retries by
itself (90 h): 96 h by default. The inbox keeps sender and id unique, too: if the memory is lost,
there is no second callback while the notification is in the inbox.
"""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from pushkit.errors import InboundError

MEMORY = timedelta(hours=96)


class ConflictError(InboundError, code="id_conflict", status=409):
    """The id was accepted before with another body."""


class BeingStoredError(InboundError, code="being_stored", status=503):
    """A copy with this id is being stored: its result decides about this one."""

    retry_after: timedelta = timedelta(seconds=1)


class Seen(NamedTuple):
    """The id of a notification that arrived, with its sender and body hash."""

    sender: str
    delivery_id: str
    body_sha256: str
    holder: str = ""  # of the reservation in Redis
