"""A real authorization server (oauthlib), and a resource that its tokens open."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus

from aiohttp import web
from oauthlib.common import Request
from oauthlib.oauth2 import BackendApplicationServer, RequestValidator

__all__ = ["AUTH", "AUTH_ADDRESS", "TOKEN_URL", "AuthorizationServer"]

AUTH = "auth.example.com"
AUTH_ADDRESS = "93.184.216.40"
TOKEN_URL = f"https://{AUTH}/token"


@dataclass
class Client:
    client_id: str


class Validator(RequestValidator):
    """One client, whose id and secret travel in the header or in the body."""

    def __init__(self, client_id: str, secret: str) -> None:
        self.known = (client_id, secret)
        self.tokens: list[str] = []
        self.methods: list[str] = []

    def authenticate_client(self, request: Request, *_: Any, **__: Any) -> bool:
        header = request.headers.get("Authorization", "")
        if header.startswith("Basic "):
            self.methods.append("client_secret_basic")
            shown: tuple[object, object] | None = _basic(header)
        else:
            self.methods.append("client_secret_post")
            shown = (request.client_id, request.client_secret)
        request.client = Client(self.known[0])
        return shown == self.known

    def client_authentication_required(self, *_: Any, **__: Any) -> bool:
        return True

    def validate_grant_type(self, _: str, grant_type: str, *__: Any, **___: Any) -> bool:  # type: ignore[override]
        return grant_type == "client_credentials"

    def get_default_scopes(self, *_: Any, **__: Any) -> list[str]:
        return ["push"]

    def validate_scopes(self, _: str, scopes: Sequence[str], *__: Any, **___: Any) -> bool:  # type: ignore[override]
        return set(scopes) <= {"push", "more"}

    def save_bearer_token(self, token: dict[str, Any], *_: Any, **__: Any) -> None:  # type: ignore[override]
        self.tokens.append(token["access_token"])

    def validate_bearer_token(self, token: str, *_: Any, **__: Any) -> bool:
        return token in self.tokens


def _basic(header: str) -> tuple[str, str] | None:
    try:
        pair = base64.b64decode(header.removeprefix("Basic "), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    client_id, _, secret = pair.partition(":")
    return unquote_plus(client_id), unquote_plus(secret)


@dataclass
class AuthorizationServer:
    """Issues tokens, and says whether one opens a resource."""

    client_id: str = "agent:1 %"  # the client that it knows
    secret: str = "s3cret&+:"
    life: int = 3600  # how long a token lives, in seconds
    bodies: list[dict[str, str]] = field(default_factory=list)  # what it was asked, parsed

    def __post_init__(self) -> None:
        self.validator = Validator(self.client_id, self.secret)
        self._server = BackendApplicationServer(self.validator, token_expires_in=self._life)

    @property
    def issued(self) -> list[str]:
        return self.validator.tokens

    def revoke(self) -> None:
        """Let no token open anything any more."""
        self.validator.tokens = [f"revoked {token}" for token in self.validator.tokens]

    async def token(self, request: web.Request) -> web.Response:
        """Answer the token endpoint."""
        text = await request.text()
        self.bodies.append({name: str(value) for name, value in (await request.post()).items()})
        headers, body, status = self._server.create_token_response(
            str(request.url), "POST", text, dict(request.headers)
        )
        return web.Response(status=status, headers=headers, text=body)

    def opens(self, request: web.Request) -> bool:
        """Say whether a request carries a good token."""
        valid, _ = self._server.verify_request(
            str(request.url), "POST", "", dict(request.headers), scopes=["push"]
        )
        return bool(valid)

    def _life(self, _: Request) -> int:
        return self.life
