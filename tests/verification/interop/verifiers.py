"""Webhooks that verify what pushkit sends, by the reference libraries of each scheme, in Python."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
import http_message_signatures
import standardwebhooks
import svix.webhooks
from aiohttp import web

from pushkit.keys.jwks import parse_jwks
from tests.served import answering, served

__all__ = ["COVERED", "LIBRARIES", "REFUSALS", "SECRET", "Library", "verifying"]

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # the specification's example
# What an RFC 9421 signature has to cover.
COVERED = (
    *("@method", "@target-uri", "content-type", "content-digest", "webhook-id", "x-a2a-token"),
    "x-a2a-notification-token",
)
REFUSALS = (
    standardwebhooks.WebhookVerificationError,
    svix.webhooks.WebhookVerificationError,
    http_message_signatures.HTTPMessageSignaturesException,
)

Library = Callable[[web.Request, bytes, str], Awaitable[None]]


async def by_standardwebhooks(request: web.Request, body: bytes, _issuer: str) -> None:
    """Standard Webhooks, by its reference library."""
    standardwebhooks.Webhook(SECRET).verify(body, dict(request.headers))


async def by_svix(request: web.Request, body: bytes, _issuer: str) -> None:
    """Standard Webhooks, by Svix."""
    svix.webhooks.Webhook(SECRET).verify(body, dict(request.headers))


async def by_http_message_signatures(request: web.Request, body: bytes, issuer: str) -> None:
    """RFC 9421, with the keys of the sender's JWK Set."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{issuer}/.well-known/jwks.json") as answer,
    ):
        keys = {key.kid: key for key in parse_jwks(await answer.read()).keys}

    class Keys(http_message_signatures.HTTPSignatureKeyResolver):
        def resolve_public_key(self, key_id: str) -> Any:
            return keys[key_id].public_key

        def resolve_private_key(self, key_id: str) -> Any:
            raise NotImplementedError

    verifier = http_message_signatures.HTTPMessageVerifier(
        signature_algorithm=http_message_signatures.algorithms.ECDSA_P256_SHA256,
        key_resolver=Keys(),
    )
    url = f"http://{request.host}{request.raw_path}"
    message = SimpleNamespace(method=request.method, url=url, headers=dict(request.headers))
    verifier.verify(message, expect_tag="a2a-push", require_components=COVERED, body=body)


LIBRARIES: dict[str, Library] = {
    "standardwebhooks (Python)": by_standardwebhooks,
    "svix (Python)": by_svix,
    "http-message-signatures (Python)": by_http_message_signatures,
}


@asynccontextmanager
async def verifying(
    library: Library, issuer: str, port: int
) -> AsyncIterator[asyncio.Queue[str | None]]:
    """Run a webhook; yield a queue with None for each notification that held, else the reason."""
    said: asyncio.Queue[str | None] = asyncio.Queue()

    async def receive(request: web.Request) -> web.Response:
        try:
            await library(request, await request.read(), issuer)
        except REFUSALS as exc:
            said.put_nowait(f"{type(exc).__name__}: {exc}")
            return web.Response(status=401)
        said.put_nowait(None)
        return web.Response(status=202)

    async with served(answering(receive), port):
        yield said
