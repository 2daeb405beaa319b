"""A sender whose signing key never leaves a key management service.

python -m examples.quickstart.receiving   # in one terminal
python -m examples.kms_signer.kms         # in another
python -m examples.kms_signer.sender      # in a third
"""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime
from typing import cast

import aiohttp
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_der_public_key
from jwt.algorithms import ECAlgorithm

from pushkit import PushSender, RemoteSigner, StatusUpdate, TaskState, TaskStatus
from pushkit.integrations.aiohttp import jwks_route

ISSUER = "http://127.0.0.1:8001"
WEBHOOK = "http://127.0.0.1:9001/a2a/push"
KMS = "http://127.0.0.1:9000"


class KmsSigner:
    """A key in the service, as pushkit's `RemoteSigner`.

    With a real service, `sign` is one call of its asynchronous client, or of a blocking one:
    `await asyncio.to_thread(client.sign, ...)`. Pass the data, not its hash (AWS KMS:
    `MessageType="RAW"`, `SigningAlgorithm="ECDSA_SHA_256"`).
    """

    def __init__(self, service: aiohttp.ClientSession, public_key: bytes) -> None:
        self._service = service
        key = cast("ec.EllipticCurvePublicKey", load_der_public_key(public_key))
        self.public_jwk = ECAlgorithm.to_jwk(key, as_dict=True)

    @classmethod
    async def connect(cls, service: aiohttp.ClientSession) -> KmsSigner:
        """Fetch the public key once; the private key stays in the service."""
        async with service.get("/public-key") as answer:
            return cls(service, await answer.read())

    async def sign(self, data: bytes) -> bytes:
        """Return the service's signature in DER, which pushkit converts and verifies."""
        async with self._service.post("/sign", data=data) as answer:
            answer.raise_for_status()
            return await answer.read()


async def main() -> None:
    """Serve the public key, subscribe the webhook, and notify it."""
    async with aiohttp.ClientSession(KMS) as service:
        signer: RemoteSigner = await KmsSigner.connect(service)
        async with PushSender(
            issuer=ISSUER,
            keys=signer,
            database="kms-outbox.db",
            allow=["127.0.0.1:*"],  # for development: otherwise webhooks must be https and public
        ) as push:
            app = web.Application()
            app.add_routes([jwks_route(push)])
            runner = web.AppRunner(app)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 8001).start()

            task_id = f"task-{uuid.uuid4().hex[:8]}"
            config = {"id": "1", "url": WEBHOOK, "token": "quickstart-token"}
            await push.subscribe(task_id, config, version="1.0", owner="alice")
            done = TaskStatus(state=TaskState.COMPLETED, timestamp=datetime.now(UTC))
            await push.notify(StatusUpdate(task_id=task_id, context_id="kms", status=done))
            while any(row.state != "delivered" for row in await push.deliveries(task_id)):
                await asyncio.sleep(0.1)
            print("delivered  signed by the service")
            await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
