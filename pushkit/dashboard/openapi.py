"""The OpenAPI description of the dashboard's API."""

from __future__ import annotations

from typing import Final

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.dashboard.pages import CURSOR_PATTERN, MAX_CHARS, TEXT_PATTERN
from pushkit.outbox import CancelledBy, DeliveryState
from pushkit.subscriptions import SubscriptionState
from pushkit.version import __version__

__all__ = ["openapi_document"]

_TEXT: Final[JsonObject] = {"type": "string"}
_NUMBER: Final[JsonObject] = {"type": "number"}
_INTEGER: Final[JsonObject] = {"type": "integer"}
_FLAG: Final[JsonObject] = {"type": "boolean"}
_MOMENT: Final[JsonObject] = {"type": "string", "format": "date-time"}
_NUMBERS: Final[JsonObject] = {"type": "array", "items": _NUMBER}
_DELIVERY_STATES: Final[JsonObject] = {"type": "string", "enum": [*map(str, DeliveryState)]}
_SUBSCRIPTION_STATES: Final[JsonObject] = {
    "type": "string",
    "enum": [*map(str, SubscriptionState)],
}


def _nullable(schema: JsonObject) -> JsonObject:
    return {"anyOf": [schema, {"type": "null"}]}


def _ref(name: str) -> JsonObject:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(schema: JsonObject) -> JsonObject:
    return {"type": "array", "items": schema}


def _record(properties: dict[str, JsonValue], *optional: str) -> JsonObject:
    required: list[JsonValue] = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


_SUMMARY: Final[dict[str, JsonValue]] = {
    "id": _TEXT,
    "subscription_id": _TEXT,
    "tenant": _TEXT,
    "owner": _TEXT,
    "task_id": _TEXT,
    "config_id": _TEXT,
    "seq": _INTEGER,
    "origin": _TEXT,
    "content_type": _TEXT,
    "body_bytes": _INTEGER,
    "state": _DELIVERY_STATES,
    "attempts": _INTEGER,
    "notified_at": _MOMENT,
    "redriven_at": _nullable(_MOMENT),
    "not_before": _MOMENT,
    "finished_at": _nullable(_MOMENT),
    "last_status": _nullable(_INTEGER),
    "last_error": _nullable(_TEXT),
    "cancelled_by": _nullable({"type": "string", "enum": [*map(str, CancelledBy)]}),
}
_SUBSCRIPTION: Final[dict[str, JsonValue]] = {
    "id": _TEXT,
    "state": _SUBSCRIPTION_STATES,
    "tenant": _TEXT,
    "task_id": _TEXT,
    "owner": _TEXT,
    "config_id": _TEXT,
    "version": _TEXT,
    "url": {"type": "string", "description": "Its query is masked."},
    "origin": _TEXT,
    "profile": _TEXT,
    "has_token": _FLAG,
    "has_credentials": _FLAG,
    "schemes": _list(_TEXT),
    "states": _nullable(_list(_TEXT)),
    "kinds": _nullable(_list(_TEXT)),
    "last_chunk_only": _FLAG,
    "last_seq": _INTEGER,
    "task_ended": _FLAG,
    "failing_since": _nullable(_MOMENT),
    "disabled_by": _nullable(_TEXT),
    "disabled_at": _nullable(_MOMENT),
    "created_at": _MOMENT,
}
_SCHEMAS: Final[dict[str, JsonValue]] = {
    "AtMost": _record(
        {"number": _INTEGER, "more": {**_FLAG, "description": "Counting ended at the number."}}
    ),
    "Overview": _record(
        {
            "now": _MOMENT,
            "verdict": {"type": "string", "enum": ["healthy", "attention", "failing"]},
            "findings": _list(
                _record(
                    {
                        "severity": {"type": "string", "enum": ["note", "warning", "failure"]},
                        "says": _TEXT,
                        "mend": _TEXT,
                        "link": _TEXT,
                    }
                )
            ),
            "pending": _ref("AtMost"),
            "in_flight": _ref("AtMost"),
            "dead": _ref("AtMost"),
            "failing_destinations": _ref("AtMost"),
            "oldest_pending_at": _nullable(_MOMENT),
            "measured_since": _MOMENT,
            "delivered": _INTEGER,
            "delivered_per_minute": _NUMBER,
            "latency_seconds": _record(
                {name: _nullable(_NUMBER) for name in ("p50", "p95", "p99")}
            ),
            "ended": _list(_record({"at": _MOMENT, "delivered": _INTEGER, "other": _INTEGER})),
            "errors": _list(
                _record({"code": _TEXT, "deliveries": _INTEGER, "means": _TEXT, "mend": _TEXT})
            ),
            "signing_key": _nullable(_ref("Key")),
        }
    ),
    "DeliverySummary": _record(_SUMMARY),
    "Deliveries": _record(
        {
            "deliveries": _list(_ref("DeliverySummary")),
            "before": _nullable(_TEXT),
            "is_cut": _FLAG,
        }
    ),
    "Attempt": _record(
        {
            "number": _INTEGER,
            "started_at": _MOMENT,
            "duration_seconds": _NUMBER,
            "resolve_seconds": _nullable(_NUMBER),
            "connect_seconds": _nullable(_NUMBER),
            "wait_seconds": _nullable(_NUMBER),
            "body_seconds": _nullable(_NUMBER),
            "address": _nullable(_TEXT),
            "outcome": _TEXT,
            "status": _nullable(_INTEGER),
            "error": _nullable(_TEXT),
        }
    ),
    "Request": _record(
        {
            "line": _TEXT,
            "headers": _list(_record({"name": _TEXT, "value": _TEXT})),
            "jwt_header": _nullable({"type": "object"}),
            "jwt_claims": {"type": "object"},
        }
    ),
    "Delivery": _record(
        {
            **_SUMMARY,
            "log": _list(_ref("Attempt")),
            "answers": _nullable(_list(_record({"number": _INTEGER, "answer": _nullable(_TEXT)}))),
            "keeps_answers": _FLAG,
            "body": _nullable(_TEXT),
            "is_sealed": _FLAG,
            "why": _nullable(_record({"code": _TEXT, "means": _TEXT, "mend": _TEXT})),
            "subscription": _nullable(_ref("Subscription")),
            "request": _nullable(_ref("Request")),
        }
    ),
    "Subscription": _record(_SUBSCRIPTION),
    "Subscriptions": _record(
        {
            "subscriptions": _list(_ref("Subscription")),
            "before": _nullable(_TEXT),
            "is_cut": _FLAG,
        }
    ),
    "SubscriptionReport": _record(
        {
            **_SUBSCRIPTION,
            "states_of_deliveries": {"type": "object", "additionalProperties": _INTEGER},
            "newest": _list(_ref("DeliverySummary")),
        }
    ),
    "Destinations": _record(
        {
            "destinations": _list(
                _record(
                    {
                        "tenant": _TEXT,
                        "owner": _TEXT,
                        "origin": _TEXT,
                        "state": {
                            "type": "string",
                            "enum": ["closed", "waits", "open", "half_open"],
                        },
                        "failures": _INTEGER,
                        "waits_until": _nullable(_MOMENT),
                        "attempt_seconds": _NUMBERS,
                    }
                )
            ),
            "after": _nullable(_TEXT),
            "lately": _list(
                _record({"origin": _TEXT, "attempt_seconds": _NUMBERS, "p50": _nullable(_NUMBER)})
            ),
        }
    ),
    "Key": _record(
        {
            "kid": _TEXT,
            "alg": _TEXT,
            "state": _TEXT,
            "signs": _FLAG,
            "published_at": _MOMENT,
            "activates_at": _nullable(_MOMENT),
            "retires_at": _nullable(_MOMENT),
            "revoked_at": _nullable(_MOMENT),
        }
    ),
    "Keys": _record({"is_known": _FLAG, "keys": _list(_ref("Key"))}),
    "Done": _record(
        {
            "ids": _list(_TEXT),
            "not_done": {
                "type": "object",
                "additionalProperties": _INTEGER,
                "description": "How many were left as they are, by why.",
            },
        }
    ),
    "Problem": _record({"type": _TEXT, "status": _INTEGER, "detail": _TEXT}),
}


def _parameter(name: str, schema: JsonObject, says: str, where: str = "query") -> JsonObject:
    return {
        "name": name,
        "in": where,
        "required": where == "path",
        "description": says,
        "schema": schema,
    }


_NAME: Final[JsonObject] = {"type": "string", "maxLength": MAX_CHARS, "pattern": TEXT_PATTERN}
_CURSOR: Final[JsonObject] = {"type": "string", "pattern": CURSOR_PATTERN}
_ID: Final = _parameter(
    "id", {"type": "string", "minLength": 1, "maxLength": 128}, "Its id.", "path"
)
_LIMIT: Final = _parameter(
    "limit", {"type": "integer", "minimum": 1, "maximum": 200}, "How many at most; 50 by default."
)
_BEFORE: Final = _parameter("before", _NAME, "`before` of the page before.")
_OF: Final = (
    _parameter("task", _NAME, "Of this task; without `tenant`, of the tenant without a name."),
    _parameter("tenant", _NAME, "Of this tenant."),
    _parameter("owner", _NAME, "Of this owner."),
    _parameter("origin", _NAME, "To this destination: https://host:port."),
)
_SHOWN: Final[JsonObject] = {"type": "string", "enum": ["0", "1"]}


def openapi_document(server: str, *, with_actions: bool) -> JsonObject:
    """Return the description.

    Args:
        server: The path under which the API stands.
        with_actions: Whether anything may be changed.
    """
    paths: JsonObject = {
        "/overview": _get("Overview", "Whether the sender is healthy, in one look."),
        "/deliveries": _get(
            "Deliveries",
            "Deliveries, newest first. A page may end before it is full: go on by `before`.",
            _parameter("state", _DELIVERY_STATES, "In this state."),
            *_OF,
            _parameter("subscription", _NAME, "Of this subscription."),
            _parameter("error", _NAME, "Whose last error has this code."),
            _BEFORE,
            _LIMIT,
        ),
        "/deliveries/{id}": _get(
            "Delivery",
            "One delivery with its attempts, and its request rebuilt.",
            _ID,
            _parameter("body", _SHOWN, "1: with the body."),
            _parameter("answers", _SHOWN, "1: with the answers that were kept."),
        ),
        "/subscriptions": _get(
            "Subscriptions",
            "Subscriptions, newest first, without secrets.",
            _parameter("state", _SUBSCRIPTION_STATES, "In this state; all but withdrawn ones."),
            *_OF,
            _BEFORE,
            _LIMIT,
        ),
        "/subscriptions/{id}": _get("SubscriptionReport", "One subscription.", _ID),
        "/destinations": _get(
            "Destinations",
            "Destinations that have failed, with their breakers.",
            _parameter("after", _CURSOR, "`after` of the page before."),
            _LIMIT,
        ),
        "/keys": _get("Keys", "The signing keys and their states."),
    }
    if with_actions:
        for name, says in (
            ("redrive", "Bring a dead letter back."),
            ("resend", "Send again what was delivered or cancelled."),
            ("retry", "Try what is pending now."),
            ("cancel", "Cancel what is pending."),
        ):
            paths[f"/deliveries/{{id}}/{name}"] = {"post": _operation("Done", says, _ID)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pushkit dashboard",
            "version": __version__,
            "description": "What the sender's dashboard shows. Moments are in UTC.",
        },
        "servers": [{"url": server}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _get(schema: str, says: str, *parameters: JsonObject) -> JsonObject:
    return {"get": _operation(schema, says, *parameters)}


def _operation(schema: str, says: str, *parameters: JsonObject) -> JsonObject:
    problem: JsonObject = {"application/problem+json": {"schema": _ref("Problem")}}
    refusals = {
        "400": "A parameter is wrong.",
        "401": "No token, or a wrong one.",
        "403": "Not allowed.",
        "404": "There is none.",
        "503": "The database cannot be read.",
    }
    return {
        "summary": says,
        "parameters": [*parameters],
        "responses": {
            "200": {
                "description": "Found.",
                "content": {"application/json": {"schema": _ref(schema)}},
            },
            **{
                status: {"description": text, "content": problem}
                for status, text in refusals.items()
            },
        },
    }
