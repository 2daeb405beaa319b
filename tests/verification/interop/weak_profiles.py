"""What sends and verifies by weak profiles, rebuilt from descriptions: nothing of pushkit is used.

The first A2A samples: RS256 over `iat` and `request_body_sha256` alone. The hash is of the compact
re-serialisation of the JSON, not of the bytes on the wire. The verifier decodes without an
audience, so that PyJWT refuses every token that has one; it looks at the age last, and remembers
nothing.

trpc-a2a-go: the same, the hash being of the raw body. `encoding/json` sorts a map's members and
escapes `<`, `>`, `&`, U+2028 and U+2029. The verifier takes any claim beside those two, compares
the scheme without regard to case, and keeps the JWK Set for an hour without asking again for a kid
that it does not know.
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

__all__ = [
    "SamplesSender",
    "SamplesWebhook",
    "TrpcSender",
    "TrpcWebhook",
    "compact",
    "marshal",
    "spaced_and_escaped",
]

_MAX_AGE_SECONDS = 60 * 5
_JWKS_CACHE_SECONDS = 3600
_RSA_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"]
_GO_ESCAPES = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


# --- the samples --------------------------------------------------------------------------------


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
        """Return the webhook."""
        app = web.Application()
        app.router.add_post("/notify", self._receive)
        return app

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


# --- trpc-a2a-go --------------------------------------------------------------------------------


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
