"""The beginning of a webhook's answer, kept with its attempt, without the secrets it may repeat."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pushkit.outbox.states import Outcome

if TYPE_CHECKING:
    from pushkit.delivery.route import Route

_KEPT_BYTES: Final = 1024
_MASK: Final = b"***"
_NO_SECRETS: Final = ("User-Agent", "Accept-Encoding")
_SHORTEST_PARAMETER: Final = 8  # a shorter one would mask half of the text
# JWTs, also ones that are cut off, and the signatures of Standard Webhooks and of RFC 9421. Some
# JSON encoders write `\/` for `/`.
_SIGNATURES: Final = re.compile(
    rb"eyJ[\w.-]{16,}|\bv1a?,(?:[\w+/]|\\/){40,}=*|:(?:[\w+/]|\\/){40,}=*:"
)


class KeepAnswers(StrEnum):
    """Of which attempts the first KiB of the webhook's answer is kept."""

    NONE = "none"
    FAILED = "failed"
    ALL = "all"

    def includes(self, outcome: Outcome) -> bool:
        """Return whether the answer to an attempt with this outcome is kept."""
        if self is KeepAnswers.FAILED:
            return outcome is not Outcome.DELIVERED
        return self is KeepAnswers.ALL


def kept_answer(answer: bytes, route: Route, token: str | None) -> bytes:
    """Return the beginning of an answer to be stored.

    The secrets that were sent, the parameters of the URL, and everything that looks like a JWT or
    another signature are masked.

    Args:
        answer: The body of the answer.
        route: Where the request was sent.
        token: The token of the operator's OAuth client, if there is one.
    """
    query = route.destination.url.target.partition("?")[2]
    parameters = [each.partition("=")[2] for each in query.split("&")]
    secrets = {query, *(each for each in parameters if len(each) >= _SHORTEST_PARAMETER)}
    sent = [value for name, value in route.headers if name not in _NO_SECRETS]
    for value in (*sent, token or ""):
        secrets |= {value, value.partition(" ")[2]}  # credentials follow their scheme
    # The longest first: one may be a part of another.
    for secret in sorted(secrets - {""}, key=len, reverse=True):
        for written in (secret, secret.replace("/", r"\/")):
            answer = answer.replace(written.encode(), _MASK)
    return _SIGNATURES.sub(_MASK, answer)[:_KEPT_BYTES]
