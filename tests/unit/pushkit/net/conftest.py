"""Transports that are closed after the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import ConnectionOptions, Transport

MakeTransport = Callable[..., Transport]

LOOPBACK = DestinationPolicy(["127.0.0.1:*", "[::1]:*"])


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


@pytest.fixture
def transport(make_transport: MakeTransport) -> Transport:
    """Return a transport to servers on loopback."""
    return make_transport(LOOPBACK)
