"""The OpenAPI description of the dashboard's API."""

from __future__ import annotations

from typing import Final

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.webui.openapi import (
    FLAG,
    INTEGER,
    LIMIT,
    MOMENT,
    NAME,
    NUMBER,
    NUMBERS,
    SHOWN,
    TEXT,
    api_document,
    each,
    get,
    list_of,
    nullable,
    operation,
    page_of,
    parameter,
    record,
    ref,
)
from receiver.inbox.model import InboxStatus

_STATUSES: Final[JsonObject] = {"type": "string", "enum": [*map(str, InboxStatus)]}
_NUMBERED: Final[JsonObject] = {"type": "string", "pattern": "^[0-9]{1,18}$"}
_ID: Final = parameter("id", _NUMBERED, "Its number.", "path")
_BEFORE: Final = parameter("before", _NUMBERED, "`before` of the page before.")

_SUMMARY: Final[dict[str, JsonValue]] = {
    **each(INTEGER, "id body_bytes attempts"),
    **each(TEXT, "sender delivery_id kid"),
    **each(nullable(TEXT), "task_id config_id last_error"),
    "seq": nullable(INTEGER),
    "missing": {**INTEGER, "description": "How many before it had not come when it did."},
    "late": FLAG,
    "status": _STATUSES,
    **each(MOMENT, "issued_at received_at not_before"),
    **each(nullable(MOMENT), "redriven_at finished_at"),
    "unmatched": {**FLAG, "description": "No callback wanted it."},
}
_REFUSAL: Final[dict[str, JsonValue]] = {
    **each(INTEGER, "number status"),
    "at": MOMENT,
    **each(TEXT, "code peer"),
    "sender": {**nullable(TEXT), "description": "None if nobody proved to be one."},
    **each(nullable(TEXT), "task_id delivery_id"),
    "reason": {**TEXT, "description": "What was found, and what was expected."},
}
_REASONS: Final[dict[str, JsonValue]] = {
    "is_known": {**FLAG, "description": "Whether a receiver runs in this process."},
    "since": nullable(MOMENT),
    "process": nullable(INTEGER),
    "number": INTEGER,
    "reasons": list_of(
        record(
            {
                **each(TEXT, "code means mend"),
                **each(INTEGER, "number status"),
                "step": nullable(INTEGER),
            }
        )
    ),
}
_GAP: Final[dict[str, JsonValue]] = {
    "gap": {"const": True},
    "sender": TEXT,
    **each(INTEGER, "first last"),
}
_SCHEMAS: Final[dict[str, JsonValue]] = {
    "Notification": record(_SUMMARY),
    "Step": record(
        {
            "step": INTEGER,
            **each(TEXT, "checks found"),
            "result": {
                "type": "string",
                "enum": ["passed", "failed", "waits", "not_reached", "not_told"],
            },
        }
    ),
    "Reasons": record(_REASONS),
    "Overview": record(
        {
            **each(MOMENT, "now measured_since"),
            "verdict": ref("Verdict"),
            "findings": ref("Findings"),
            **{
                name: ref("AtMost")
                for name in ("received", "in_progress", "dead", "unmatched", "incomplete")
            },
            "oldest_unfinished_at": nullable(MOMENT),
            "accepted": INTEGER,
            "accepted_per_minute": NUMBER,
            "seconds_until_called_back": ref("Percentiles"),
            "came": list_of(record({"at": MOMENT, **each(INTEGER, "done unfinished")})),
            "refusals": ref("Reasons"),
            "newest_dead": list_of(ref("Notification")),
            "newest": list_of(ref("Notification")),
        }
    ),
    "Notifications": page_of("notifications", "Notification"),
    "NotificationReport": record(
        {
            **_SUMMARY,
            "steps": list_of(ref("Step")),
            "callbacks": list_of(
                record(
                    {
                        "callback": TEXT,
                        "done": FLAG,
                        "attempts": INTEGER,
                        "last_error": nullable(TEXT),
                        "last_at": nullable(MOMENT),
                    }
                )
            ),
            "body": nullable(TEXT),
        }
    ),
    "Task": record(
        {
            "task_id": TEXT,
            "lines": list_of(
                {"anyOf": [record(_GAP), record({"gap": {"const": False}, **_SUMMARY})]}
            ),
            "is_cut": FLAG,
        }
    ),
    "Callbacks": record(
        {
            "since": nullable(MOMENT),
            "callbacks": list_of(
                record(
                    {
                        "callback": TEXT,
                        "troubles": list_of(
                            record(
                                {
                                    "error": TEXT,
                                    **each(INTEGER, "waiting dead newest"),
                                    "last_at": nullable(MOMENT),
                                }
                            )
                        ),
                        "calls": nullable(
                            record(
                                {
                                    **each(INTEGER, "number failed"),
                                    "seconds": NUMBERS,
                                    "latency_seconds": ref("Percentiles"),
                                    "failures": list_of(
                                        record(
                                            {
                                                "at": MOMENT,
                                                "notification_id": INTEGER,
                                                "task_id": nullable(TEXT),
                                                "error": TEXT,
                                            }
                                        )
                                    ),
                                }
                            )
                        ),
                    }
                )
            ),
        }
    ),
    "Refusals": record(
        {**_REASONS, "refusals": list_of(record(_REFUSAL)), "before": nullable(TEXT)}
    ),
    "Refusal": record(
        {
            **_REFUSAL,
            **each(TEXT, "means mend"),
            "is_of_a_sender": FLAG,
            "steps": list_of(ref("Step")),
        }
    ),
    "Done": record({"ids": list_of(INTEGER), "skipped": INTEGER}),
}


def openapi_document(server: str, *, with_actions: bool) -> JsonObject:
    """Return the description."""
    of_sender = parameter("sender", NAME, "Of this trusted sender.")
    paths: JsonObject = {
        "/overview": get("Overview", "Whether the receiver is healthy, in one look."),
        "/notifications": get(
            "Notifications",
            "Notifications, newest first. A page may end before it is full: go on by `before`.",
            parameter("status", _STATUSES, "Where it stands."),
            of_sender,
            parameter("task", NAME, "Of this task."),
            parameter("unmatched", SHOWN, "1: what no callback wanted."),
            _BEFORE,
            LIMIT,
        ),
        "/notifications/{id}": get(
            "NotificationReport",
            "One notification with the steps of its verification and its callbacks.",
            _ID,
            parameter("body", SHOWN, "1: with the body."),
        ),
        "/task": get(
            "Task",
            "The newest 200 updates of a task, by `seq`, with what had not come.",
            parameter("task", {**NAME, "minLength": 1}, "The task.", required=True),
            of_sender,
        ),
        "/callbacks": get("Callbacks", "The callbacks that fail, and how they end."),
        "/refusals": get(
            "Refusals",
            "What was refused, by reason, and what would mend it.",
            parameter("code", NAME, "For this reason."),
            _BEFORE,
            LIMIT,
        ),
        "/refusals/{id}": get("Refusal", "One refusal with every step.", _ID),
    }
    if with_actions:
        paths["/notifications/{id}/redrive"] = {
            "post": operation("Done", "Call a dead letter back again.", _ID)
        }
    return api_document(
        server,
        title="receiver dashboard",
        says="What the receiver's dashboard shows. Moments are in UTC.",
        paths=paths,
        schemas=_SCHEMAS,
    )
