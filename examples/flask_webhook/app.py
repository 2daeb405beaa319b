"""A Flask application with one view: a receiver of A2A push notifications, in a thread.

flask --app examples/flask_webhook/app.py run --port 9000
gunicorn --chdir examples/flask_webhook --workers 2 --threads 8 --bind 127.0.0.1:9000 app:app

Each process has a thread of its own, on the same inbox: do not add `--preload`.
"""

from __future__ import annotations

import logging
import os

from flask import Flask, Response, request

from receiver import Headers, Notification, Receiver, TaskPolicy, TrustedSender, WebhookRequest

AGENT = TrustedSender(
    name="agent",
    path="/a2a/push",
    issuer=os.environ.get("AGENT_ISSUER", "http://127.0.0.1:8001"),
    jwks_url=os.environ.get("AGENT_JWKS", "http://127.0.0.1:8001/.well-known/jwks.json"),
    tokens=[os.environ.get("AGENT_TOKEN", "flask-token")],
    tasks=TaskPolicy.ANY,  # one token for all; better is `receiver.expect()` for each
)

logger = logging.getLogger(__name__)
receiver = Receiver(
    url=os.environ.get("WEBHOOK_URL", "http://127.0.0.1:9000"),
    senders=[AGENT],
    database=os.environ.get("DATABASE", "flask-webhook.db"),
    allow=["127.0.0.1:*"],  # for this example, whose agent is on this machine
)


@receiver.on_status("completed", "failed")
def finished(notification: Notification) -> None:
    """Run once for each, in a thread; `receiving.call` may be used here, too."""
    logger.warning("task %s: %s", notification.task_id, notification.state)


receiving = receiver.in_thread().start()
app = Flask(__name__)
app.config["MAX_CONTENT_LENGTH"] = 1024 * 1024  # Flask refuses larger bodies without reading them


@app.post("/a2a/push")
def push() -> Response:
    """Hand a notification to the receiver, and send its answer."""
    webhook = WebhookRequest(
        target=request.full_path, headers=Headers(request.headers.items()), body=request.get_data()
    )
    answer = receiving.call(receiver.receive(webhook, peer=request.remote_addr or ""))
    return Response(answer.body, answer.status, answer.headers)
