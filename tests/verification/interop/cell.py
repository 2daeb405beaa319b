"""A cell of `make interop`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum

__all__ = ["Cause", "Cell", "Direction"]


class Direction(Enum):
    """Who sends to whom; and the column in which the matrix of the page counts it."""

    ITS_SENDER = "its sender → receiver", "it sends"
    INSIDE = "its agent, pushkit inside → receiver", "pushkit inside"
    BEHIND = "its agent, `pushkit gateway` in front → receiver", "gateway in front"
    ITS_WEBHOOK = "pushkit → its webhook", "pushkit sends"
    ITS_VERIFIER = "pushkit → its verifier", "pushkit sends"
    VECTORS = (
        "[vectors](vectors/README.md) → its program in `examples/verify`",
        "pushkit sends",
    )
    ITS_CARDS = "its signed cards → pushkit", "its cards"
    OUR_CARDS = "pushkit's signed cards → its verifier", "pushkit's cards"
    AT_ITS_AGENT = "a config → its agent, which then sends", "configs"
    ITS_CLIENT = "its client's configs → pushkit, which then sends", "configs"

    def __init__(self, told: str, column: str) -> None:
        self.told = told
        self.column = column


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a cell fails because of a defect of the peer.

    Attributes:
        why: The explanation for readers, and what users can do.
        shows: Part of the message of that failure. Any other message is another failure.
    """

    why: str
    shows: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One thing that is tried.

    Attributes:
        peer: What stands at the other end.
        direction: Who sends to whom.
        version: The A2A version on the wire.
        scheme: What the receiving end verifies.
        attempt: Raises if it does not work; may return how far it does.
        cause: Why it cannot, where the cause lies on the other side.
    """

    peer: str
    direction: Direction
    version: str
    scheme: str
    attempt: Callable[[], Awaitable[str | None]]
    cause: Cause | None = None
