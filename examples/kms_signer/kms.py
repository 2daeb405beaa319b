"""A stand-in for a key management service, with a key that never leaves it.

It answers as real services do: the public key as DER (SubjectPublicKeyInfo), signatures as DER.

python -m examples.kms_signer.kms
"""

from __future__ import annotations

from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

KEY = ec.generate_private_key(ec.SECP256R1())


async def public_key(_request: web.Request) -> web.Response:
    """Return the public key."""
    spki = KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return web.Response(body=spki)


async def sign(request: web.Request) -> web.Response:
    """Sign the body of the request, with ECDSA over P-256 and SHA-256."""
    return web.Response(body=KEY.sign(await request.read(), ec.ECDSA(SHA256())))


if __name__ == "__main__":
    app = web.Application()
    app.add_routes([web.get("/public-key", public_key), web.post("/sign", sign)])
    web.run_app(app, host="127.0.0.1", port=9000)
