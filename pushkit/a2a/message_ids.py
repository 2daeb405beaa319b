"""Ids of messages (and contexts) that came from a version without, so that 0.3 and 1.0 can say it.

A2A 0.1 and AgentVault know no ids of messages, and contexts only where a client named a session.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from pushkit.a2a.members import MESSAGE
from pushkit.a2a.table import Writing, json_copy
from pushkit.a2a.updates import (
    ArtifactUpdate,
    Message,
    MessageUpdate,
    StatusUpdate,
    TaskSnapshot,
    TaskStatus,
    TaskUpdate,
    WireVersion,
)


def with_ids(update: TaskUpdate) -> TaskUpdate:
    """Return an update with the ids that it lacks.

    A message gets one that is derived from its content, so that the same message, sent again, keeps
    it; a task without a context is its own.
    """
    match update:
        case TaskSnapshot(task=task):
            history = tuple(_message(message) for message in task.history)
            context_id, status = task.context_id or task.id, _status(task.status)
            task = replace(task, context_id=context_id, status=status, history=history)
            return replace(update, task=task)
        case StatusUpdate():
            context_id = update.context_id or update.task_id
            return replace(update, context_id=context_id, status=_status(update.status))
        case ArtifactUpdate():
            return replace(update, context_id=update.context_id or update.task_id)
        case MessageUpdate():
            return replace(update, message=_message(update.message))


def _status(status: TaskStatus) -> TaskStatus:
    return replace(status, message=_message(status.message)) if status.message else status


def _message(message: Message) -> Message:
    if message.message_id:
        return message
    # Read again: what it holds is JSON then, and its names can be sorted.
    written = json_copy(MESSAGE[WireVersion.V0_1].write(message, Writing(True)))
    said = json.dumps(written, sort_keys=True)
    return replace(message, message_id=f"msg-{hashlib.sha256(said.encode()).hexdigest()[:32]}")
