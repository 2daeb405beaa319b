"""A Django project with one view: a webhook for A2A push notifications."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).resolve().parent

# The trusted sender. Its keys are in a file: `pushkit keys export`, or a copy of its JWK Set.
WEBHOOK_URL = os.environ.get("WEBHOOK_URL", "http://127.0.0.1:9000")
AGENT_ISSUER = os.environ.get("AGENT_ISSUER", "http://127.0.0.1:8001")
AGENT_JWKS = Path(os.environ.get("AGENT_JWKS", HERE / "jwks.json"))
AGENT_TOKEN = os.environ.get("AGENT_TOKEN", "django-token")

SECRET_KEY = "for development"
ALLOWED_HOSTS = ["127.0.0.1"]
INSTALLED_APPS = ["notifications"]
ROOT_URLCONF = "urls"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE", HERE / "db.sqlite3"),
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
DATA_UPLOAD_MAX_MEMORY_SIZE = 1024 * 1024  # Django refuses larger bodies without reading them
LOGGING = {
    "version": 1,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
}
