"""The OpenAPI description of the dashboard's API."""

from __future__ import annotations

from typing import Final

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.dashboard.pages import CURSOR_PATTERN
from pushkit.outbox.cancelling import CancelledBy
from pushkit.outbox.states import DeliveryState
from pushkit.subscriptions.model import SubscriptionState
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
    get,
    list_of,
    nullable,
    operation,
    parameter,
    record,
    ref,
)

_DELIVERY_STATES: Final[JsonObject] = {"type": "string", "enum": [*map(str, DeliveryState)]}
_SUBSCRIPTION_STATES: Final[JsonObject] = {
    "type": "string",
    "enum": [*map(str, SubscriptionState)],
}


_SUMMARY: Final[dict[str, JsonValue]] = {
    "id": TEXT,
    "subscription_id": TEXT,
    "tenant": TEXT,
    "owner": TEXT,
    "task_id": TEXT,
    "config_id": TEXT,
    "seq": INTEGER,
    "origin": TEXT,
    "content_type": TEXT,
    "body_bytes": INTEGER,
    "state": _DELIVERY_STATES,
    "attempts": INTEGER,
    "notified_at": MOMENT,
    "redriven_at": nullable(MOMENT),
    "not_before": MOMENT,
    "finished_at": nullable(MOMENT),
    "last_status": nullable(INTEGER),
    "last_error": nullable(TEXT),
    "cancelled_by": nullable({"type": "string", "enum": [*map(str, CancelledBy)]}),
}
_SUBSCRIPTION: Final[dict[str, JsonValue]] = {
    "id": TEXT,
    "state": _SUBSCRIPTION_STATES,
    "tenant": TEXT,
    "task_id": TEXT,
    "owner": TEXT,
    "config_id": TEXT,
    "version": TEXT,
    "url": {"type": "string", "description": "Its query is masked."},
    "origin": TEXT,
    "profile": TEXT,
    "has_token": FLAG,
    "has_credentials": FLAG,
    "schemes": list_of(TEXT),
    "states": nullable(list_of(TEXT)),
    "kinds": nullable(list_of(TEXT)),
    "last_chunk_only": FLAG,
    "last_seq": INTEGER,
    "task_ended": FLAG,
    "failing_since": nullable(MOMENT),
    "disabled_by": nullable(TEXT),
    "disabled_at": nullable(MOMENT),
    "created_at": MOMENT,
}
_SCHEMAS: Final[dict[str, JsonValue]] = {
    "Overview": record(
        {
            "now": MOMENT,
            "verdict": ref("Verdict"),
            "findings": ref("Findings"),
            "pending": ref("AtMost"),
            "in_flight": ref("AtMost"),
            "dead": ref("AtMost"),
            "failing_destinations": ref("AtMost"),
            "oldest_pending_at": nullable(MOMENT),
            "measured_since": MOMENT,
            "delivered": INTEGER,
            "delivered_per_minute": NUMBER,
            "latency_seconds": ref("Percentiles"),
            "ended": list_of(record({"at": MOMENT, "delivered": INTEGER, "other": INTEGER})),
            "errors": list_of(
                record({"code": TEXT, "deliveries": INTEGER, "means": TEXT, "mend": TEXT})
            ),
            "signing_key": nullable(ref("Key")),
        }
    ),
    "DeliverySummary": record(_SUMMARY),
    "Deliveries": record(
        {
            "deliveries": list_of(ref("DeliverySummary")),
            "before": nullable(TEXT),
            "is_cut": FLAG,
        }
    ),
    "Attempt": record(
        {
            "number": INTEGER,
            "started_at": MOMENT,
            "duration_seconds": NUMBER,
            "resolve_seconds": nullable(NUMBER),
            "connect_seconds": nullable(NUMBER),
            "wait_seconds": nullable(NUMBER),
            "body_seconds": nullable(NUMBER),
            "address": nullable(TEXT),
            "outcome": TEXT,
            "status": nullable(INTEGER),
            "error": nullable(TEXT),
        }
    ),
    "Request": record(
        {
            "line": TEXT,
            "headers": list_of(record({"name": TEXT, "value": TEXT})),
            "jwt_header": nullable({"type": "object"}),
            "jwt_claims": {"type": "object"},
        }
    ),
    "Delivery": record(
        {
            **_SUMMARY,
            "log": list_of(ref("Attempt")),
            "answers": nullable(list_of(record({"number": INTEGER, "answer": nullable(TEXT)}))),
            "keeps_answers": FLAG,
            "body": nullable(TEXT),
            "is_sealed": FLAG,
            "why": nullable(record({"code": TEXT, "means": TEXT, "mend": TEXT})),
            "subscription": nullable(ref("Subscription")),
            "request": nullable(ref("Request")),
        }
    ),
    "Subscription": record(_SUBSCRIPTION),
    "Subscriptions": record(
        {
            "subscriptions": list_of(ref("Subscription")),
            "before": nullable(TEXT),
            "is_cut": FLAG,
        }
    ),
    "SubscriptionReport": record(
        {
            **_SUBSCRIPTION,
            "states_of_deliveries": {"type": "object", "additionalProperties": INTEGER},
            "newest": list_of(ref("DeliverySummary")),
        }
    ),
    "Destinations": record(
        {
            "destinations": list_of(
                record(
                    {
                        "tenant": TEXT,
                        "owner": TEXT,
                        "origin": TEXT,
                        "state": {
                            "type": "string",
                            "enum": ["closed", "waits", "open", "half_open"],
                        },
                        "failures": INTEGER,
                        "waits_until": nullable(MOMENT),
                        "attempt_seconds": NUMBERS,
                    }
                )
            ),
            "after": nullable(TEXT),
            "lately": list_of(
                record({"origin": TEXT, "attempt_seconds": NUMBERS, "p50": nullable(NUMBER)})
            ),
        }
    ),
    "Key": record(
        {
            "kid": TEXT,
            "alg": TEXT,
            "state": TEXT,
            "signs": FLAG,
            "published_at": MOMENT,
            "activates_at": nullable(MOMENT),
            "retires_at": nullable(MOMENT),
            "revoked_at": nullable(MOMENT),
        }
    ),
    "Keys": record({"is_known": FLAG, "keys": list_of(ref("Key"))}),
    "Done": record(
        {
            "ids": list_of(TEXT),
            "not_done": {
                "type": "object",
                "additionalProperties": INTEGER,
                "description": "How many were left as they are, by why.",
            },
        }
    ),
}


_CURSOR: Final[JsonObject] = {"type": "string", "pattern": CURSOR_PATTERN}
_ID: Final = parameter(
    "id", {"type": "string", "minLength": 1, "maxLength": 128}, "Its id.", "path"
)
_BEFORE: Final = parameter("before", NAME, "`before` of the page before.")
_OF: Final = (
    parameter("task", NAME, "Of this task; without `tenant`, of the tenant without a name."),
    parameter("tenant", NAME, "Of this tenant."),
    parameter("owner", NAME, "Of this owner."),
    parameter("origin", NAME, "To this destination: https://host:port."),
)


def openapi_document(server: str, *, with_actions: bool) -> JsonObject:
    """Return the description."""
    paths: JsonObject = {
        "/overview": get("Overview", "Whether the sender is healthy, in one look."),
        "/deliveries": get(
            "Deliveries",
            "Deliveries, newest first. A page may end before it is full: go on by `before`.",
            parameter("state", _DELIVERY_STATES, "In this state."),
            *_OF,
            parameter("subscription", NAME, "Of this subscription."),
            parameter("error", NAME, "Whose last error has this code."),
            _BEFORE,
            LIMIT,
        ),
        "/deliveries/{id}": get(
            "Delivery",
            "One delivery with its attempts, and its request rebuilt.",
            _ID,
            parameter("body", SHOWN, "1: with the body."),
            parameter("answers", SHOWN, "1: with the answers that were kept."),
        ),
        "/subscriptions": get(
            "Subscriptions",
            "Subscriptions, newest first, without secrets.",
            parameter("state", _SUBSCRIPTION_STATES, "In this state; all but withdrawn ones."),
            *_OF,
            _BEFORE,
            LIMIT,
        ),
        "/subscriptions/{id}": get("SubscriptionReport", "One subscription.", _ID),
        "/destinations": get(
            "Destinations",
            "Destinations that have failed, with their breakers.",
            parameter("after", _CURSOR, "`after` of the page before."),
            LIMIT,
        ),
        "/keys": get("Keys", "The signing keys and their states."),
    }
    if with_actions:
        for name, says in (
            ("redrive", "Bring a dead letter back."),
            ("resend", "Send again what was delivered or cancelled."),
            ("retry", "Try what is pending now."),
            ("cancel", "Cancel what is pending."),
        ):
            paths[f"/deliveries/{{id}}/{name}"] = {"post": operation("Done", says, _ID)}
    return api_document(
        server,
        title="pushkit dashboard",
        says="What the sender's dashboard shows. Moments are in UTC.",
        paths=paths,
        schemas=_SCHEMAS,
    )
