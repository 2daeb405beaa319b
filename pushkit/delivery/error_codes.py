"""Every code that can stand in a delivery's `last_error`, and what it means."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pushkit.errors import PushkitError

ERROR_CODES: Final = {
    # What the webhook answered.
    "status_500": "the webhook answered 500; likewise any other status that has no line here",
    "redirect": "the webhook answered with a redirect, which is never followed",
    "rejected": "the webhook answered 400",
    "conflict": "the webhook answered 409",
    "gone": "the webhook answered 410: its subscription is disabled",
    "too_large": "the webhook answered 413",
    "unsupported_media_type": "the webhook answered 415",
    "unprocessable": "the webhook answered 422",
    # Why there was no answer.
    "timeout": "no answer in time",
    "dns_failure": "the webhook's name could not be looked up",
    "connection_refused": "nobody listens at the webhook's address",
    "tls_failure": "no TLS connection: certificate, name or version",
    "transport": "the connection broke, or the answer was no HTTP",
    # Why it was not asked.
    "address_refused": "the webhook's name leads to an address that may not be dialled",
    "destination_refused": "the webhook's URL breaks a rule of the destination policy",
    "ownership_unproven": "the webhook did not prove that it wants notifications",
    "too_old": "given up: older than the retry policy allows",
    "subscription_missing": "its subscription was gone when it was to be attempted",
    "superseded": "cancelled: a newer status says all that it said",
    # What failed on this side; any other code of an error of pushkit may stand here too.
    "egress_proxy": "the egress proxy was not reached, wants credentials, or is none",
    "resources_exhausted": "this process or machine has no socket or memory left to dial with",
    "oauth": "the authorization server gave no token",
    "no_signing_key": "no key is active for the algorithm",
    "key_file": "the key file cannot be used",
    "signing_failed": "the key outside this process, or the function that chooses, did not sign",
    "sealed_secret": "a sealed token, credential or body cannot be opened",
    "secret_key_missing": "a secret is sealed with a key that is not here",
    "invalid_configuration": "a setting is wrong",
    "storage": "the database refused",
    "unexpected_error": "something that nobody expected: the log has its traceback",
    "lease_expired": "its worker did not settle it in time",
    "worker_died": "its worker died",
}

_STATUS = re.compile(r"status_[1-5][0-9]{2}")


def is_error_code(code: str) -> bool:
    """Say whether a delivery may have this code."""
    return (
        code in ERROR_CODES
        or _STATUS.fullmatch(code) is not None
        or any(code == error.code for error in _below(PushkitError))
    )


def _below(error: type[PushkitError]) -> Iterator[type[PushkitError]]:
    for below in error.__subclasses__():
        yield below
        yield from _below(below)
