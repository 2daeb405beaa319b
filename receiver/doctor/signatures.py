"""Verifies the signatures of a sender under test: by a receiver's steps 2 to 6, and by PyJWT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pushkit.errors import InboundError
from pushkit.keys.jwk import VerificationKey
from pushkit.signing.notification_jwt import find_jwt, read_unverified
from pushkit.signing.scheme import Scheme
from pushkit.signing.second_opinion import ask_pyjwt
from pushkit.signing.token import read_token
from receiver.doctor.sink import Visit
from receiver.options import Schemes
from receiver.senders import TaskPolicy, TrustedSender
from receiver.trust import load_trust
from receiver.verification import verify_notification

_UNSTATED = "urn:pushkit:unstated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signatures:
    """The keys and schemes that signatures are verified with."""

    # The sender's keys; None if no scheme has keys.
    keys: Mapping[str, VerificationKey] | None = field(repr=False)
    schemes: Schemes
    issuer: str | None = None  # the `iss` to expect; None for any

    def fault(self, visits: Sequence[Visit], *, url: str, opened: datetime) -> str:
        """Return why a receiver would refuse the first visit that it would; empty if none.

        Args:
            url: The base URL that was visited.
            opened: When the sink was opened, from which visits count their seconds.
        """
        for number, visit in enumerate(visits, 1):
            now = opened + timedelta(seconds=visit.at)
            try:
                trust = load_trust(url, [self._sender(visit)])
                token = read_token(visit.request.headers)
                tokens = [token] if token else []
                verify_notification(visit.request, trust, now=now, tokens=tokens)
                self._ask_pyjwt(visit)
            except InboundError as exc:
                return f"a receiver would refuse request {number} ({exc.code}): {exc}"
        return ""

    def _ask_pyjwt(self, visit: Visit) -> None:
        """Verify the JWT with another library, too."""
        compact = find_jwt(visit.request.headers)
        if Scheme.JWT not in self.schemes.names or compact is None or self.keys is None:
            return
        key = self.keys.get(read_unverified(compact).kid or "")
        if key is not None:
            ask_pyjwt(compact, key)

    def _sender(self, visit: Visit) -> TrustedSender:
        """Return the trusted sender of a receiver that expects just this issuer."""
        by_jwt = Scheme.JWT in self.schemes.names
        return TrustedSender(
            name="sender",
            issuer=(self.issuer or _stated_issuer(visit)) if by_jwt else None,
            keys=self.keys if self.schemes.by_key else None,
            path=visit.request.target.partition("?")[0],
            schemes=self.schemes.names,
            webhook_secrets=self.schemes.webhook_secrets,
            token_required=False,
            tasks=TaskPolicy.ANY,
        )


def _stated_issuer(visit: Visit) -> str:
    try:
        compact = find_jwt(visit.request.headers)
        return (read_unverified(compact).issuer if compact else None) or _UNSTATED
    except InboundError:
        return _UNSTATED
