"""A clock that the test moves, and transports that are closed after it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import ConnectionOptions, Transport

MakeTransport = Callable[..., Transport]


@pytest.fixture
async def make_transport() -> AsyncIterator[MakeTransport]:
    """Make transports under a policy (every rule if None), with options of connections."""
    made: list[Transport] = []

    def make(policy: DestinationPolicy | None = None, **options: Any) -> Transport:
        made.append(Transport(policy or DestinationPolicy(), ConnectionOptions(**options)))
        return made[-1]

    yield make
    for transport in made:
        await transport.close()
