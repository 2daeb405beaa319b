"""The URL of the webhook."""

from __future__ import annotations

from django.urls import path
from notifications.views import push

urlpatterns = [path("a2a/push", push)]
