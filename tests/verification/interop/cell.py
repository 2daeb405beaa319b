"""A cell of `make interop`, and the column of the matrix in which it counts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

__all__ = [
    "AT_ITS_AGENT",
    "BEHIND",
    "COLUMNS",
    "INSIDE",
    "ITS_CARDS",
    "ITS_CLIENT",
    "ITS_SENDER",
    "ITS_VERIFIER",
    "ITS_WEBHOOK",
    "OUR_CARDS",
    "VECTORS",
    "Cause",
    "Cell",
]

ITS_SENDER = "its sender → receiver"
INSIDE = "its agent, pushkit inside → receiver"
BEHIND = "its agent, `pushkit gateway` in front → receiver"
ITS_WEBHOOK = "pushkit → its webhook"
ITS_VERIFIER = "pushkit → its verifier"
VECTORS = "[vectors](vectors/README.md) → its program in `examples/verify`"
ITS_CARDS = "its signed cards → pushkit"
OUR_CARDS = "pushkit's signed cards → its verifier"
AT_ITS_AGENT = "a config → its agent, which then sends"
ITS_CLIENT = "its client's configs → pushkit, which then sends"

# The matrix of the page has one row per peer. The column in which each direction counts:
COLUMNS = {
    ITS_SENDER: "it sends",
    INSIDE: "pushkit inside",
    BEHIND: "gateway in front",
    ITS_WEBHOOK: "pushkit sends",
    ITS_VERIFIER: "pushkit sends",
    VECTORS: "pushkit sends",
    ITS_CARDS: "its cards",
    OUR_CARDS: "pushkit's cards",
    AT_ITS_AGENT: "configs",
    ITS_CLIENT: "configs",
}


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
    direction: str
    version: str
    scheme: str
    attempt: Callable[[], Awaitable[str | None]]
    cause: Cause | None = None
