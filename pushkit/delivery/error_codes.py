"""The codes of a delivery's `last_error`, with their meanings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pushkit.errors import PushkitError

ERROR_CODES: Final = {
    # Answers of the webhook.
    "status_500": "the webhook answered 500; likewise any other status that has no code of its own",
    "redirect": "the webhook answered with a redirect, which is never followed",
    "rejected": "the webhook answered 400",
    "conflict": "the webhook answered 409",
    "gone": "the webhook answered 410: its subscription is disabled",
    "too_large": "the webhook answered 413",
    "unsupported_media_type": "the webhook answered 415",
    "unprocessable": "the webhook answered 422",
    # No answer.
    "timeout": "no answer in time",
    "dns_failure": "the webhook's name could not be looked up",
    "connection_refused": "no server listens at the webhook's address",
    "tls_failure": "no TLS connection: certificate, name or version",
    "transport": "the connection broke, or the answer was not HTTP",
    # Not posted.
    "address_refused": "the webhook's name resolves to an address that is not allowed",
    "destination_refused": "the webhook's URL breaks a rule of the destination policy",
    "ownership_unproven": "the webhook did not prove that it wants notifications",
    "too_old": "given up: older than the retry policy allows",
    "subscription_missing": "its subscription was removed before it could be attempted",
    "superseded": "cancelled: a newer status replaces it",
    # Faults of this side; the code of any other pushkit error may occur too.
    "egress_proxy": "the egress proxy was not reached, wants credentials or fewer requests, or is"
    " not a proxy",
    "resources_exhausted": "this process or machine has no socket or memory left to dial with",
    "oauth": "the authorization server gave no token",
    "no_signing_key": "no key is active for the algorithm",
    "key_file": "the key file cannot be used",
    "signing_failed": "the remote key did not sign, or the `signing` function failed",
    "sealed_secret": "a sealed token, credential or body cannot be opened",
    "secret_key_missing": "a secret is sealed with a key that this sender does not have",
    "invalid_configuration": "a setting is wrong",
    "storage": "the database refused",
    "unexpected_error": "an unexpected error: the log has its traceback",
    "lease_expired": "its worker did not settle it in time",
    "worker_died": "its worker died",
}

_STATUS = re.compile(r"status_[1-5][0-9]{2}")


def is_error_code(code: str) -> bool:
    """Return whether a delivery may have this code."""
    return (
        code in ERROR_CODES
        or _STATUS.fullmatch(code) is not None
        or any(code == error.code for error in _below(PushkitError))
    )


def _below(error: type[PushkitError]) -> Iterator[type[PushkitError]]:
    for below in error.__subclasses__():
        yield below
        yield from _below(below)
