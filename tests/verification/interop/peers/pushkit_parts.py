"""pushkit's parts for an a2a-sdk agent of any release."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pushkit import KeyRing, PushSender
from pushkit.integrations.a2a_sdk import A2AIntegration


def pushkit_parts(port: int, folder: Path, *, task_store: Any) -> A2AIntegration:
    """Return the parts of an agent at a port."""
    push = PushSender(
        issuer=f"http://127.0.0.1:{port}",
        keys=KeyRing.create(datetime.now(UTC)),
        database=folder / "outbox.db",
        allow=["127.0.0.1:*"],
    )
    return A2AIntegration(push, task_store=task_store)
