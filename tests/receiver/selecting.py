"""Step 2 alone: which of the trusted senders a request is from."""

from __future__ import annotations

from pushkit.webhook import Headers
from receiver.selection import Selected, TrustSnapshot, select
from receiver.trusted_keys import Trust


def selected_of(trust: TrustSnapshot, path: str, headers: Headers) -> Selected:
    steps = select(trust.at(path), headers)
    try:
        steps.send(trust.keys_of(next(steps)))
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("it asks once")


async def selected_by(trust: Trust, path: str, headers: Headers) -> Selected:
    """Do the same with keys that are fetched where that is due."""
    steps = select(trust.at(path), headers)
    try:
        steps.send(await trust.keys_of(next(steps)))
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("it asks once")
