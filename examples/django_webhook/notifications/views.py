"""The webhook: it verifies, stores and answers. Another process reads the table and acts."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from django.conf import settings
from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from notifications.models import Notification
from receiver import (
    Headers,
    InboundError,
    TrustedSender,
    WebhookRequest,
    load_trust,
    verify_notification,
)

logger = logging.getLogger(__name__)

# Load this again when the file changes, or use `fetch_trust` as in the Flask example.
TRUST = load_trust(
    settings.WEBHOOK_URL,
    [
        TrustedSender(
            name="agent",
            issuer=settings.AGENT_ISSUER,
            jwks_file=settings.AGENT_JWKS,
            tokens=[settings.AGENT_TOKEN],
        )
    ],
)


@csrf_exempt  # authenticated by the signature, not by a cookie
@require_POST
def push(request: HttpRequest) -> HttpResponse:
    """Verify and store a notification."""
    webhook = WebhookRequest(
        target=request.get_full_path(), headers=Headers(request.headers), body=request.body
    )
    try:
        verified = verify_notification(webhook, TRUST, now=datetime.now(UTC))
    except InboundError as refusal:
        logger.warning("refused %d %s: %s", refusal.status, refusal.code, refusal)
        return JsonResponse({"code": refusal.code}, status=refusal.status)
    delivery = {"sender": verified.sender, "delivery_id": verified.delivery_id}
    try:
        with transaction.atomic():
            Notification.objects.create(
                **delivery,
                body_sha256=verified.body_sha256,
                task_id=verified.task_id,
                body=webhook.body,
            )
    except IntegrityError:
        known = Notification.objects.get(**delivery)
        # The same body is a retry and gets a 2xx; another body with this id is refused.
        return HttpResponse(status=200 if known.body_sha256 == verified.body_sha256 else 409)
    return HttpResponse(status=202)
