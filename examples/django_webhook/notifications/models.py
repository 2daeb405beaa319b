"""The table of accepted notifications."""

from __future__ import annotations

from django.db import models


class Notification(models.Model):
    """An accepted notification; the constraint detects retries."""

    sender = models.TextField()
    delivery_id = models.TextField()
    body_sha256 = models.CharField(max_length=64)
    task_id = models.TextField(null=True)
    body = models.BinaryField()
    received_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        """One row for each delivery."""

        constraints = (
            models.UniqueConstraint(fields=["sender", "delivery_id"], name="one_row_a_delivery"),
        )
