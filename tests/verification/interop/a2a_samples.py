"""The push-notification handshake of the first A2A samples, rebuilt from its description.

RS256 over `iat` and `request_body_sha256` alone. The hash is of the compact re-serialisation of the
JSON, not of the bytes on the wire. The verifier decodes without an audience, so that PyJWT refuses
every token that has one; it looks at the age last, and remembers nothing.

Nothing of pushkit is used here: this is the other side.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa

__all__ = ["SamplesSender", "SamplesWebhook", "compact", "spaced_and_escaped"]

_MAX_AGE_SECONDS = 60 * 5


def compact(data: Any) -> bytes:
    """Write JSON as the samples hash it, and as httpx 0.28 and newer sends it."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, indent=None, separators=(",", ":"))
    return text.encode("utf-8")


def spaced_and_escaped(data: Any) -> bytes:
    """Write JSON as httpx up to 0.27 sends it: other bytes than those that were hashed."""
    return json.dumps(data).encode("utf-8")


class SamplesSender:
    """The agent's side: one RSA key under a random name, and no retries."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.kid = str(uuid.uuid4())

    def jwks(self) -> dict[str, Any]:
        """Return what `/.well-known/jwks.json` serves: no `alg`."""
        public = jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        members = {name: public[name] for name in ("kty", "n", "e")}
        return {"keys": [{**members, "kid": self.kid, "use": "sig"}]}

    def token(self, data: Any, *, issued_at: int | None = None) -> str:
        """Return the JWT for a payload."""
        return self.signed(compact(data), issued_at=issued_at)

    def signed(self, body: bytes, *, issued_at: int | None = None, **others: int) -> str:
        """Return the JWT for the bytes that are hashed."""
        claims = others | {
            "iat": int(time.time()) if issued_at is None else issued_at,
            "request_body_sha256": hashlib.sha256(body).hexdigest(),
        }
        return jwt.encode(claims, self._key, algorithm="RS256", headers={"kid": self.kid})

    async def send(self, url: str, body: bytes, token: str, **others: str) -> int:
        """Post once, with other header fields, and return the status."""
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"} | others
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=body, headers=headers) as answer,
        ):
            return answer.status


@dataclass
class SamplesWebhook:
    """The client's side: it answers 200, or 500 for whatever it does not believe."""

    jwks_url: str
    url: str = ""
    accepted: list[Any] = field(default_factory=list)
    refused: list[Exception] = field(default_factory=list)

    def app(self) -> web.Application:
        """Return the webhook: notifications, and the question whose URL this is."""
        app = web.Application()
        app.router.add_get("/notify", self._validate_url)
        app.router.add_post("/notify", self._receive)
        return app

    async def _validate_url(self, request: web.Request) -> web.Response:
        token = request.query.get("validationToken")
        return web.Response(text=token) if token else web.Response(status=400)

    async def _receive(self, request: web.Request) -> web.Response:
        data = json.loads(await request.read())
        try:
            # PyJWKClient fetches with urllib, which blocks.
            await asyncio.to_thread(self._verify, request.headers.get("Authorization"), data)
        except Exception as exc:  # noqa: BLE001  # whatever it is, it is refused
            self.refused.append(exc)
            return web.Response(status=500)
        self.accepted.append(data)
        return web.Response()

    def _verify(self, authorization: str | None, data: Any) -> None:
        if authorization is None or not authorization.startswith("Bearer "):
            raise ValueError("no Bearer token")
        token = authorization.removeprefix("Bearer ")
        key = jwt.PyJWKClient(self.jwks_url).get_signing_key_from_jwt(token)
        claims = jwt.decode(
            token,
            key,
            options={"require": ["iat", "request_body_sha256"]},
            algorithms=["RS256"],
        )
        if claims["request_body_sha256"] != hashlib.sha256(compact(data)).hexdigest():
            raise ValueError("the payload digest does not match")
        if time.time() - claims["iat"] > _MAX_AGE_SECONDS:
            raise ValueError("the token is too old")
