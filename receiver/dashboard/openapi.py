"""The OpenAPI description of the receiver's dashboard API."""

from __future__ import annotations

from typing import Final

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.webui.openapi import (
    LIMIT,
    api_document,
    get,
    one_of,
    operation,
    parameter,
    record,
    schema_of,
)
from receiver.dashboard.pages import CURSOR_PATTERN
from receiver.inbox.model import InboxStatus

_NUMBERED: Final[JsonObject] = {"type": "string", "pattern": "^[0-9]{1,18}$"}
_ID: Final = parameter("id", _NUMBERED, "Its number.", "path")
_BEFORE: Final = parameter("before", _NUMBERED, "`before` of the previous page.")
_AFTER: Final = parameter(
    "after", {"type": "string", "pattern": CURSOR_PATTERN}, "`after` of the previous page."
)

_SUMMARY: Final = (
    "id body_bytes attempts: integer",
    "sender delivery_id kid: text",
    "task_id config_id last_error: text?",
    "seq: integer?",
    "missing: integer # How many updates before it had not arrived when it did.",
    "late: flag",
    "status: Status",
    "issued_at received_at not_before: moment",
    "redriven_at finished_at: moment?",
    "unmatched: flag # It matched no callback.",
)
_REFUSAL: Final = (
    "number status: integer",
    "at: moment",
    "code peer: text",
    "sender: text? # None if no trusted sender was proven.",
    "task_id delivery_id: text?",
    "reason: text # What was found, and what was expected.",
)
_REASONS: Final = (
    "is_known: flag # Whether a receiver runs in this process.",
    "since: moment?",
    "process: integer?",
    "number: integer",
    "reasons: Reason[]",
)
_SCHEMAS: Final[dict[str, JsonValue]] = {
    "Status": one_of(InboxStatus),
    "Result": one_of(
        ("passed", "refused", "not_checked", "not_reached", "failed", "waits", "not_told")
    ),
    "Notification": record(*_SUMMARY),
    "Step": record("step: integer", "name checks found: text", "result: Result"),
    "Reason": record(
        "code means mend: text",
        "number status: integer",
        "steps: text[] # The steps of the verification that it can come from.",
    ),
    "Reasons": record(*_REASONS),
    "Came": record("at: moment", "done: integer # By a callback.", "other: integer"),
    "Overview": record(
        "now measured_since: moment",
        "verdict: Verdict",
        "says: text # The verdict in a sentence.",
        "findings: Finding[]",
        "received in_progress dead unmatched incomplete: AtMost",
        "oldest_unfinished_at: moment?",
        "accepted: integer",
        "accepted_per_minute: number",
        "seconds_until_called_back: Percentiles",
        "came: Came[]",
        "refusals: Reasons",
        "newest_dead newest: Notification[]",
    ),
    "Notifications": record("notifications: Notification[]", "before: text?", "is_cut: flag"),
    "CallbackState": record(
        "callback: text",
        "done: flag",
        "attempts: integer",
        "last_error: text?",
        "last_at: moment?",
    ),
    "NotificationReport": record(
        *_SUMMARY, "steps: Step[]", "callbacks: CallbackState[]", "body: text?"
    ),
    "IsGap": {"const": True},
    "IsNoGap": {"const": False},
    "Line": {
        "anyOf": [
            record("gap: IsGap", "sender: text", "first last: integer"),
            record("gap: IsNoGap", *_SUMMARY),
        ]
    },
    "Task": record("task_id: text", "lines: Line[]", "is_cut: flag"),
    "Queue": record(
        "id sender: text",
        "task_id: text?",
        "worker: text? # The process that leases it.",
        "leased_at lease_until: moment?",
        "epoch: integer # How many leases of it began or ended, from a first number on.",
        "due_at: moment? # When notifications are due that no process has.",
        "waiting: AtMost # Its unfinished notifications.",
    ),
    "Queues": record("queues: Queue[]", "after: text?"),
    "Trouble": record("error: text", "waiting dead newest: integer", "last_at: moment?"),
    "Failure": record("at: moment", "notification_id: integer", "task_id: text?", "error: text"),
    "Calls": record(
        "number failed: integer",
        "seconds: number[]",
        "latency_seconds: Percentiles",
        "failures: Failure[]",
    ),
    "Callback": record("callback: text", "troubles: Trouble[]", "calls: Calls?"),
    "Callbacks": record("since: moment?", "callbacks: Callback[]"),
    "OneRefusal": record(*_REFUSAL),
    "Refusals": record(*_REASONS, "refusals: OneRefusal[]", "before: text?"),
    "Refusal": record(*_REFUSAL, "means mend: text", "is_of_a_sender: flag", "steps: Step[]"),
    "Done": record("ids: integer[]", "skipped: integer"),
}


def openapi_document(server: str, *, with_actions: bool) -> JsonObject:
    """Return the description of the API below `server`."""
    of_sender = parameter("sender", "name", "Of this trusted sender.")
    paths: JsonObject = {
        "/overview": get("Overview", "Whether the receiver is healthy, and its main figures."),
        "/notifications": get(
            "Notifications",
            "Notifications, newest first. A page may not be full: `before` leads to the next one.",
            parameter("status", "Status", "With this status."),
            of_sender,
            parameter("task", "name", "Of this task."),
            parameter("unmatched", "shown", "1: those that matched no callback."),
            _BEFORE,
            LIMIT,
        ),
        "/notifications/{id}": get(
            "NotificationReport",
            "One notification with the steps of its verification and its callbacks.",
            _ID,
            parameter("body", "shown", "1: with the body."),
        ),
        "/task": get(
            "Task",
            "The newest 200 updates of a task, by `seq`, with the gaps between them.",
            parameter("task", {**schema_of("name"), "minLength": 1}, "The task.", required=True),
            of_sender,
        ),
        "/queues": get(
            "Queues",
            "The queues that a process leases, or in which notifications wait for one.",
            _AFTER,
            LIMIT,
        ),
        "/callbacks": get("Callbacks", "The callbacks: their failures, and their last calls."),
        "/refusals": get(
            "Refusals",
            "The refused requests by reason, each reason with its remedy.",
            parameter("code", "name", "For this reason."),
            _BEFORE,
            LIMIT,
        ),
        "/refusals/{id}": get("Refusal", "One refusal with every step.", _ID),
    }
    if with_actions:
        paths["/notifications/{id}/redrive"] = {
            "post": operation("Done", "Redrive a dead letter.", _ID)
        }
    return api_document(
        server,
        title="receiver dashboard",
        says="What the receiver's dashboard shows. Times are in UTC.",
        paths=paths,
        schemas=_SCHEMAS,
    )
