"""The callbacks that `receiver.toml` names."""

from __future__ import annotations

from receiver import Notification


def every_update(notification: Notification) -> None:
    """Print one line per update."""
    state = notification.state.value if notification.state else notification.kind.value
    print(
        f"{state:12} task {notification.task_id} seq {notification.seq}"
        f" signed by {notification.sender}",
        flush=True,
    )


async def completed(notification: Notification) -> None:
    """Print a completed task; called once for each, however often its notification arrives."""
    print(f"done         task {notification.task_id}", flush=True)
