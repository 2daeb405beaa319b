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

_DELIVERY_STATES: Final[JsonObject] = {"type": "string", "enum": [*map(str, DeliveryState)]}
_SUBSCRIPTION_STATES: Final[JsonObject] = {"type": "string", "enum": [*map(str, SubscriptionState)]}


_SUMMARY: Final[dict[str, JsonValue]] = {
    **each(TEXT, "id subscription_id tenant owner task_id config_id origin content_type"),
    **each(INTEGER, "seq body_bytes attempts"),
    "state": _DELIVERY_STATES,
    **each(MOMENT, "notified_at not_before"),
    **each(nullable(MOMENT), "redriven_at finished_at"),
    "last_status": nullable(INTEGER),
    "last_error": nullable(TEXT),
    "cancelled_by": nullable({"type": "string", "enum": [*map(str, CancelledBy)]}),
}
_SUBSCRIPTION: Final[dict[str, JsonValue]] = {
    **each(TEXT, "id tenant task_id owner config_id version origin profile"),
    "state": _SUBSCRIPTION_STATES,
    "url": {"type": "string", "description": "Its query is masked."},
    **each(FLAG, "has_token has_credentials last_chunk_only task_ended"),
    "schemes": list_of(TEXT),
    "states": nullable(list_of(TEXT)),
    "kinds": nullable(list_of(TEXT)),
    "last_seq": INTEGER,
    **each(nullable(MOMENT), "failing_since disabled_at"),
    "disabled_by": nullable(TEXT),
    "created_at": MOMENT,
}
_SCHEMAS: Final[dict[str, JsonValue]] = {
    "Overview": record(
        {
            **each(MOMENT, "now measured_since"),
            "verdict": ref("Verdict"),
            "findings": ref("Findings"),
            **each(ref("AtMost"), "pending in_flight dead failing_destinations"),
            "oldest_pending_at": nullable(MOMENT),
            "delivered": INTEGER,
            "delivered_per_minute": NUMBER,
            "latency_seconds": ref("Percentiles"),
            "ended": list_of(record({"at": MOMENT, **each(INTEGER, "delivered other")})),
            "errors": list_of(record({**each(TEXT, "code means mend"), "deliveries": INTEGER})),
            "signing_key": nullable(ref("Key")),
        }
    ),
    "DeliverySummary": record(_SUMMARY),
    "Deliveries": page_of("deliveries", "DeliverySummary"),
    "Attempt": record(
        {
            "number": INTEGER,
            "started_at": MOMENT,
            "duration_seconds": NUMBER,
            **each(nullable(NUMBER), "resolve_seconds connect_seconds wait_seconds body_seconds"),
            **each(nullable(TEXT), "address error"),
            "outcome": TEXT,
            "status": nullable(INTEGER),
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
            **each(FLAG, "keeps_answers is_sealed"),
            "body": nullable(TEXT),
            "why": nullable(record(each(TEXT, "code means mend"))),
            "subscription": nullable(ref("Subscription")),
            "request": nullable(ref("Request")),
        }
    ),
    "Subscription": record(_SUBSCRIPTION),
    "Subscriptions": page_of("subscriptions", "Subscription"),
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
                        **each(TEXT, "tenant owner origin"),
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
            **each(TEXT, "kid alg state"),
            "signs": FLAG,
            "published_at": MOMENT,
            **each(nullable(MOMENT), "activates_at retires_at revoked_at"),
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
