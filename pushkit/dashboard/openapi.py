"""The OpenAPI description of the sender's dashboard API."""

from __future__ import annotations

from typing import Final

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.dashboard.pages import CURSOR_PATTERN
from pushkit.outbox.states import CancelledBy, DeliveryState
from pushkit.subscriptions.model import SubscriptionState
from pushkit.webui.openapi import LIMIT, api_document, get, one_of, operation, parameter, record

_SUMMARY: Final = (
    "id subscription_id tenant owner task_id config_id origin content_type: text",
    "seq body_bytes attempts: integer",
    "state: DeliveryState",
    "notified_at not_before: moment",
    "redriven_at finished_at: moment?",
    "last_status: integer?",
    "last_error: text?",
    "cancelled_by: CancelledBy?",
)
_SUBSCRIPTION: Final = (
    "id tenant task_id owner config_id version origin profile: text",
    "state: SubscriptionState",
    "url: text # Its query is masked.",
    "has_token has_credentials last_chunk_only task_ended: flag",
    "schemes: text[]",
    "states kinds: text[]?",
    "last_seq: integer",
    "failing_since disabled_at: moment?",
    "disabled_by: text?",
    "created_at: moment",
)
_SCHEMAS: Final[dict[str, JsonValue]] = {
    "DeliveryState": one_of(DeliveryState),
    "SubscriptionState": one_of(SubscriptionState),
    "BreakerState": one_of(("failing", "waits", "open", "half_open")),
    "CancelledBy": one_of(CancelledBy),
    "Overview": record(
        "now measured_since: moment",
        "verdict: Verdict",
        "says: text # The verdict in a sentence.",
        "findings: Finding[]",
        "pending in_flight dead failing_destinations: AtMost",
        "oldest_pending_at: moment?",
        "delivered: integer",
        "delivered_per_minute: number",
        "latency_seconds: Percentiles",
        "ended: Ended[]",
        "errors: ErrorCount[]",
        "refused_configs: RefusedConfigs? # Null: this process registers none.",
        "signing_key: Key?",
    ),
    "Ended": record("at: moment", "delivered other: integer"),
    "Error": record("code means mend: text", "answer: text?"),
    "ErrorCount": record("code means mend: text", "deliveries: integer"),
    "RefusedConfig": record("at: moment", "code reason tenant owner task_id host: text"),
    "RefusedConfigs": record("since: moment", "counts: counts", "newest: RefusedConfig[]"),
    "DeliverySummary": record(*_SUMMARY),
    "Deliveries": record("deliveries: DeliverySummary[]", "before: text?", "is_cut: flag"),
    "Attempt": record(
        "number: integer",
        "started_at: moment",
        "duration_seconds: number",
        "resolve_seconds connect_seconds wait_seconds body_seconds: number?",
        "address error: text?",
        "outcome: text",
        "status: integer?",
    ),
    "Answer": record("number: integer", "answer: text?"),
    "Field": record("name value: text"),
    "Request": record(
        "line: text", "headers: Field[]", "jwt_header: object?", "jwt_claims: object"
    ),
    "Delivery": record(
        *_SUMMARY,
        "log: Attempt[]",
        "answers: Answer[]?",
        "is_sealed: flag",
        "body: text?",
        "why: Error?",
        "subscription: Subscription?",
        "request: Request?",
    ),
    "Subscription": record(*_SUBSCRIPTION),
    "Subscriptions": record("subscriptions: Subscription[]", "before: text?", "is_cut: flag"),
    "SubscriptionReport": record(
        *_SUBSCRIPTION, "states_of_deliveries: counts", "newest: DeliverySummary[]"
    ),
    "Destination": record(
        "tenant owner origin: text",
        "state: BreakerState",
        "failures: integer",
        "waits_until: moment?",
        "attempt_seconds: number[]",
    ),
    "Speed": record("origin: text", "attempt_seconds: number[]", "p50: number?"),
    "Destinations": record("destinations: Destination[]", "after: text?", "lately: Speed[]"),
    "Key": record(
        "kid alg state: text",
        "signs: flag",
        "published_at: moment",
        "activates_at retires_at revoked_at: moment?",
    ),
    "Keys": record("is_known: flag", "keys: Key[]"),
    "Done": record("ids: text[]", "not_done: counts # How many were not changed, by reason."),
}


_CURSOR: Final[JsonObject] = {"type": "string", "pattern": CURSOR_PATTERN}
_ID: Final = parameter(
    "id", {"type": "string", "minLength": 1, "maxLength": 128}, "Its id.", "path"
)
_BEFORE: Final = parameter("before", "name", "`before` of the previous page.")
_OF: Final = (
    parameter("task", "name", "Of this task; without `tenant`, of the unnamed tenant."),
    parameter("tenant", "name", "Of this tenant."),
    parameter("owner", "name", "Of this owner."),
    parameter("origin", "name", "To this destination: https://host:port."),
)


def openapi_document(server: str, *, with_actions: bool) -> JsonObject:
    """Return the description of the API below `server`."""
    paths: JsonObject = {
        "/overview": get("Overview", "Whether the sender is healthy, and its main figures."),
        "/deliveries": get(
            "Deliveries",
            "Deliveries, newest first. A page may not be full: `before` leads to the next one.",
            parameter("state", "DeliveryState", "In this state."),
            *_OF,
            parameter("subscription", "name", "Of this subscription."),
            parameter("error", "name", "With this code as their last error."),
            _BEFORE,
            LIMIT,
        ),
        "/deliveries/{id}": get(
            "Delivery",
            "One delivery with its attempts, and its request rebuilt.",
            _ID,
            parameter("body", "shown", "1: with the body."),
            parameter("answers", "shown", "1: with the webhook's answers, if they were stored."),
        ),
        "/subscriptions": get(
            "Subscriptions",
            "Subscriptions, newest first, without secrets.",
            parameter(
                "state", "SubscriptionState", "In this state; by default all but `withdrawn`."
            ),
            *_OF,
            _BEFORE,
            LIMIT,
        ),
        "/subscriptions/{id}": get("SubscriptionReport", "One subscription.", _ID),
        "/destinations": get(
            "Destinations",
            "Destinations that failed last or asked to wait, with their breakers.",
            parameter("after", _CURSOR, "`after` of the previous page."),
            LIMIT,
        ),
        "/keys": get("Keys", "The signing keys and their states."),
    }
    if with_actions:
        for name, says in (
            ("redrive", "Redrive a dead letter."),
            ("resend", "Send a delivered or cancelled delivery again."),
            ("retry", "Attempt a pending delivery now."),
            ("cancel", "Cancel a pending delivery."),
        ):
            paths[f"/deliveries/{{id}}/{name}"] = {"post": operation("Done", says, _ID)}
    return api_document(
        server,
        title="pushkit dashboard",
        says="What the sender's dashboard shows. Times are in UTC.",
        paths=paths,
        schemas=_SCHEMAS,
    )
