"""A Flask application with one view: a webhook for A2A push notifications.

flask --app examples/flask_webhook/app.py run --port 9000
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime

from flask import Flask, Response, jsonify, request

from receiver import (
    Headers,
    InboundError,
    TrustedSender,
    TrustSnapshot,
    WebhookRequest,
    fetch_trust,
    verify_notification,
)

WEBHOOK_URL = os.environ.get("WEBHOOK_URL", "http://127.0.0.1:9000")
DATABASE = os.environ.get("DATABASE", "flask-webhook.db")
AGENT = TrustedSender(
    name="agent",
    issuer=os.environ.get("AGENT_ISSUER", "http://127.0.0.1:8001"),
    jwks_url=os.environ.get("AGENT_JWKS", "http://127.0.0.1:8001/.well-known/jwks.json"),
    tokens=[os.environ.get("AGENT_TOKEN", "flask-token")],
)
TABLE = """
    CREATE TABLE IF NOT EXISTS notifications (
        sender TEXT NOT NULL, delivery_id TEXT NOT NULL, body_sha256 TEXT NOT NULL,
        task_id TEXT, body BLOB NOT NULL,
        UNIQUE (sender, delivery_id)
    )
"""

logger = logging.getLogger(__name__)
app = Flask(__name__)
app.config["MAX_CONTENT_LENGTH"] = 1024 * 1024  # Flask refuses larger bodies without reading them

with closing(sqlite3.connect(DATABASE)) as connection, connection:
    connection.execute(TABLE)


@functools.lru_cache(maxsize=1)
def _trust(_period: int) -> TrustSnapshot:
    return asyncio.run(fetch_trust(WEBHOOK_URL, [AGENT]))


def trust() -> TrustSnapshot:
    """Return the keys, fetched every minute; pushkit publishes new ones long before they sign."""
    return _trust(int(time.time() // 60))


@app.post("/a2a/push")
def push() -> tuple[Response | str, int]:
    """Verify and store a notification."""
    webhook = WebhookRequest(
        target=request.full_path, headers=Headers(request.headers.items()), body=request.get_data()
    )
    try:
        verified = verify_notification(webhook, trust(), now=datetime.now(UTC))
    except InboundError as refusal:
        logger.warning("refused %d %s: %s", refusal.status, refusal.code, refusal)
        return jsonify(code=refusal.code), refusal.status
    delivery = (verified.sender, verified.delivery_id)
    row = (*delivery, verified.body_sha256, verified.task_id, webhook.body)
    with closing(sqlite3.connect(DATABASE)) as connection, connection:
        inserted = connection.execute(
            "INSERT INTO notifications VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", row
        )
        if inserted.rowcount == 1:
            return "", 202
        known = connection.execute(
            "SELECT body_sha256 FROM notifications WHERE sender = ? AND delivery_id = ?", delivery
        ).fetchone()
    # The same body is a retry and gets a 2xx; another body with this id is refused.
    return "", 200 if known == (verified.body_sha256,) else 409
