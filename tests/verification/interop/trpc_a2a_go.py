"""The push-notification authentication of trpc-a2a-go, rebuilt from its description.

RS256 over `iat` and `request_body_sha256` alone, the hash being of the raw body. `encoding/json`
sorts a map's members and escapes `<`, `>`, `&`, U+2028 and U+2029. The verifier takes any claim
beside those two, compares the scheme without regard to case, and keeps the JWK Set for an hour
without asking again for a kid that it does not know.

Nothing of pushkit is used here: this is the other side.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import jwt
from aiohttp import web

from tests.verification.interop.a2a_samples import SamplesSender

__all__ = ["TrpcSender", "TrpcWebhook", "marshal"]

_MAX_AGE_SECONDS = 5 * 60
_JWKS_CACHE_SECONDS = 3600
_RSA_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"]
_GO_ESCAPES = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


def marshal(data: Any) -> bytes:
    """Write JSON as Go's `json.Marshal` writes a map."""
    text = json.dumps(data, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.translate(_GO_ESCAPES).encode("utf-8")


class TrpcSender(SamplesSender):
    """`PushNotificationAuthenticator`: a key that is named after the second of its making."""

    def __init__(self) -> None:
        super().__init__()
        self.kid = f"key-{int(time.time())}"

    def jwks(self) -> dict[str, Any]:
        """Return what `/.well-known/jwks.json` serves."""
        [key] = super().jwks()["keys"]
        return {"keys": [{**key, "alg": "RS256"}]}

    def token(self, data: Any, *, issued_at: int | None = None) -> str:
        """Return the JWT for a payload."""
        return self.signed(marshal(data), issued_at=issued_at)


@dataclass
class TrpcWebhook:
    """`VerifyPushNotification`: it answers 200, or 401 for what it does not believe."""

    jwks_url: str
    url: str = ""
    accepted: list[bytes] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    fetches: int = 0
    _keys: dict[str, Any] = field(default_factory=dict)
    _fetched_at: float = float("-inf")

    def app(self) -> web.Application:
        """Return the webhook."""
        app = web.Application()
        app.router.add_post("/notify", self._receive)
        return app

    async def _receive(self, request: web.Request) -> web.Response:
        body = await request.read()
        try:
            await self._verify(request.headers.get("Authorization", ""), body)
        except (ValueError, jwt.PyJWTError) as exc:
            self.refused.append(str(exc))
            return web.Response(status=401)
        self.accepted.append(body)
        return web.Response()

    async def _verify(self, authorization: str, body: bytes) -> None:
        parts = authorization.split(" ")
        if len(parts) != 2 or parts[0].lower() != "bearer":
            raise ValueError("the Authorization header is no Bearer token")
        key = (await self._jwk_set()).get(str(jwt.get_unverified_header(parts[1]).get("kid")))
        if key is None:
            raise ValueError("the key is not in the set")
        # golang-jwt holds `exp` and `nbf` against the clock; neither `iat` nor `aud`, unasked.
        claims = jwt.decode(
            parts[1],
            key,
            algorithms=_RSA_ALGORITHMS,
            options={"verify_aud": False, "verify_iat": False},
        )
        if claims.get("request_body_sha256") != hashlib.sha256(body).hexdigest():
            raise ValueError("the payload hash does not match")
        issued_at = claims.get("iat")
        if not isinstance(issued_at, int | float):
            raise ValueError("iat is no number")  # noqa: TRY004  # a refusal, not a bug
        if time.time() - issued_at > _MAX_AGE_SECONDS:
            raise ValueError("the token has expired")

    async def _jwk_set(self) -> dict[str, Any]:
        if time.monotonic() - self._fetched_at > _JWKS_CACHE_SECONDS:
            async with (
                aiohttp.ClientSession() as session,
                session.get(self.jwks_url) as answer,
            ):
                found = jwt.PyJWKSet.from_dict(json.loads(await answer.read()))
            self._keys = {str(key.key_id): key for key in found.keys}
            self._fetched_at = time.monotonic()
            self.fetches += 1
        return self._keys
