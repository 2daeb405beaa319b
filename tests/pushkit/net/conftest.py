"""What speaks HTTP to destinations: every test of it runs over each of the two."""

from __future__ import annotations

from typing import TypeAlias

import pytest

from pushkit.net.transport import Transport
from pushkit.net.webhook_client import WebhookClient

AnyTransport: TypeAlias = Transport | WebhookClient
Client: TypeAlias = type[Transport] | type[WebhookClient]


@pytest.fixture(params=[Transport, WebhookClient])
def client(request: pytest.FixtureRequest) -> Client:
    """Return the class of a client that posts."""
    chosen: Client = request.param
    return chosen
