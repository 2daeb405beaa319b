"""Requests signed with each scheme, verified by the reference libraries."""

from __future__ import annotations

import asyncio
import base64
import copy
import logging
import pickle
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import http_message_signatures as oracle
import pytest
import standardwebhooks
import svix.webhooks
from cryptography.hazmat.primitives.asymmetric import ed25519

from pushkit import KeyRing, PushSender, Scheme, Signing, Subscription
from pushkit.delivery.signatures import BatchSigner
from pushkit.errors import ConfigError
from pushkit.keys.jwk import Algorithm, VerificationKey, generate_key
from pushkit.keys.primitives import signature_holds
from pushkit.signing.standard_webhooks import (
    check_webhook_signature,
    generate_webhook_secret,
    read_unverified_webhook,
    read_verifier,
)
from tests.clock import Clock
from tests.unit.pushkit.delivery.conftest import Received, Senders, Webhook, status

SECRET, NEW_SECRET = generate_webhook_secret(), generate_webhook_secret()
EVERY_SCHEME = Signing(schemes=list(Scheme), webhook_secrets=[SECRET])


@pytest.fixture
def present(clock: Clock) -> None:
    """Set the sender's clock to about the current time: the libraries read the real clock."""
    clock.now = datetime.now(UTC) - timedelta(seconds=30)


async def send(senders: Senders, webhook: Webhook, path: str = "/hook", **options: Any) -> Received:
    config = {"url": webhook.url(path), "token": "abc", **options.pop("config", {})}
    sender = await senders.open(**options)
    await sender.subscribe("task-1", config, version="1.0", owner="alice")
    await sender.notify(status())
    await sender.worker.run_once()
    return webhook.received[-1]


class Keys(oracle.HTTPSignatureKeyResolver):
    """The published keys, as a receiver has them."""

    def __init__(self, senders: Senders) -> None:
        self._keys = senders.public_keys()

    def resolve_public_key(self, key_id: str) -> Any:
        return self._keys[key_id].public_key

    def resolve_private_key(self, key_id: str) -> Any:
        raise NotImplementedError


def verify_http_message(
    request: Received,
    url: str,
    senders: Senders,
    algorithm: type = oracle.algorithms.ECDSA_P256_SHA256,
) -> dict[str, Any]:
    verifier = oracle.HTTPMessageVerifier(signature_algorithm=algorithm, key_resolver=Keys(senders))
    [result] = verifier.verify(
        SimpleNamespace(method="POST", url=url, headers=dict(request.headers)),
        expect_tag="a2a-push",
        require_components=(
            "@method",
            "@target-uri",
            "content-type",
            "content-digest",
            "webhook-id",
            "x-a2a-token",
            "x-a2a-notification-token",
        ),
        body=request.body,
    )
    return result.parameters


@pytest.mark.usefixtures("present")
async def test_all_schemes_can_be_used_together(senders: Senders, webhook: Webhook) -> None:
    request = await send(senders, webhook, "/Hook?a=%2F", signing=EVERY_SCHEME)
    headers = dict(request.headers)
    claims = request.claims(senders.public_keys())
    standardwebhooks.Webhook(SECRET).verify(request.body, headers)
    svix.webhooks.Webhook(SECRET).verify(request.body, headers)
    parameters = verify_http_message(request, webhook.url("/Hook?a=%2F"), senders)
    assert claims.delivery_id == request.id
    assert parameters["keyid"] == claims.kid
    assert parameters["created"] == int(claims.issued_at.timestamp())
    assert len(request.headers.all("webhook-id")) == 1


@pytest.mark.usefixtures("present")
async def test_another_scheme_can_replace_the_jwt(senders: Senders, webhook: Webhook) -> None:
    signing = Signing(schemes=["http-message-signatures"])
    request = await send(
        senders,
        webhook,
        signing=signing,
        config={"authentication": {"scheme": "Bearer", "credentials": "of-the-client"}},
    )
    verify_http_message(request, webhook.url(), senders)
    assert request.headers.one("Authorization") == "Bearer of-the-client"
    assert request.headers.one("X-A2A-Signature") is None
    assert request.headers.one("webhook-timestamp")


@pytest.mark.usefixtures("present")
async def test_the_key_of_the_ring_decides_the_algorithm(
    senders: Senders, webhook: Webhook, clock: Clock
) -> None:
    ring = KeyRing.create(clock.now, Algorithm.EDDSA)
    request = await send(senders, webhook, keys=ring, signing=EVERY_SCHEME)
    parameters = verify_http_message(request, webhook.url(), senders, oracle.algorithms.ED25519)
    assert parameters["alg"] == "ed25519"


@pytest.mark.usefixtures("present")
async def test_each_attempt_is_signed_anew_under_the_same_id(
    senders: Senders, webhook: Webhook, clock: Clock
) -> None:
    webhook.replies_with(500)
    await send(senders, webhook, signing=EVERY_SCHEME)
    clock.advance(7)
    await senders.made[0].worker.run_once()
    first, second = webhook.received
    assert first.id == second.id
    assert first.body == second.body
    for name in ("webhook-signature", "Signature", "Signature-Input", "Authorization"):
        assert first.headers.one(name) != second.headers.one(name)
    for request in (first, second):
        standardwebhooks.Webhook(SECRET).verify(request.body, dict(request.headers))
        verify_http_message(request, webhook.url(), senders)


@pytest.mark.usefixtures("present")
async def test_both_secrets_sign_during_a_rotation(senders: Senders, webhook: Webhook) -> None:
    signing = Signing(schemes=["standard-webhooks"], webhook_secrets=[NEW_SECRET, SECRET])
    request = await send(senders, webhook, signing=signing)
    for secret in (SECRET, NEW_SECRET):
        standardwebhooks.Webhook(secret).verify(request.body, dict(request.headers))


def test_a_choice_of_signatures_reaches_another_process() -> None:
    seed = bytes(range(32))
    public = ed25519.Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    private = "whsk_" + base64.b64encode(seed + public).decode()
    given = Signing(schemes=list(Scheme), webhook_secrets=[SECRET, private])

    found = pickle.loads(pickle.dumps(given))  # noqa: S301  # our own, from a line above

    assert found == given
    assert len(found.signers) == 2


async def test_each_subscription_can_have_its_own_secret(
    senders: Senders, webhook: Webhook
) -> None:
    secrets = {"alice": SECRET, "bob": NEW_SECRET}

    def signing(subscription: Subscription) -> Signing:
        secret = secrets[subscription.key.owner]
        return Signing(schemes=["jwt", "standard-webhooks"], webhook_secrets=[secret])

    sender = await senders.open(signing=signing)
    for owner in secrets:
        config = {"url": webhook.url(f"/{owner}")}
        await sender.subscribe("task-1", config, version="1.0", owner=owner)
    await sender.notify(status())
    await sender.worker.run_once()
    for owner, secret in secrets.items():
        [request] = webhook.at(f"/{owner}")
        check_webhook_signature(
            read_unverified_webhook(request.headers), request.body, [read_verifier(secret)]
        )


async def test_one_secret_for_every_webhook_logs_a_warning(
    senders: Senders, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="pushkit.delivery"):
        sender: PushSender = await senders.open(signing=EVERY_SCHEME)
    assert "name no audience" in caplog.text
    assert SECRET not in caplog.text + repr(sender.options)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param({"schemes": []}, "at least one", id="no scheme"),
        pytest.param({"schemes": ["hmac"]}, "'hmac'", id="unknown scheme"),
        pytest.param({"schemes": "jwt"}, "expected a list", id="a string of schemes"),
        pytest.param({"schemes": ["standard-webhooks"]}, "webhook_secrets", id="no secret"),
        pytest.param({"webhook_secrets": [SECRET]}, "webhook_secrets", id="no use for a secret"),
        pytest.param(
            {"schemes": ["standard-webhooks"], "webhook_secrets": SECRET},
            "expected a list",
            id="a string of secrets",
        ),
        pytest.param(
            {"schemes": ["standard-webhooks"], "webhook_secrets": ["whsec_AAAA"]},
            "3 bytes",
            id="a short secret",
        ),
    ],
)
def test_an_invalid_signing_is_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Signing(**arguments)


def test_a_secret_is_in_no_repr() -> None:
    assert SECRET not in repr(EVERY_SCHEME)
    assert "signers" not in repr(EVERY_SCHEME)


# --- what one round of the event loop signs ------------------------------------------------------


async def test_each_of_a_round_gets_the_signature_of_its_own_data_by_its_own_key() -> None:
    keys = [generate_key(Algorithm.ES256), generate_key(Algorithm.EDDSA)] * 3
    signer, data = BatchSigner(), [b"data %d" % number for number in range(6)]
    signing = [asyncio.ensure_future(signer.sign(*each)) for each in zip(data, keys, strict=True)]
    assert [each.done() for each in signing] == [True, False, False, False, False, False]
    for key, signed, signature in zip(keys, data, await asyncio.gather(*signing), strict=True):
        public = VerificationKey.of(key.private_key.public_key())
        assert [signature_holds(public, each, signature) for each in data] == [
            each == signed for each in data
        ]


async def test_a_key_that_fails_and_a_caller_that_is_cancelled_concern_nobody_else() -> None:
    class Broken:
        def sign(self, *_: object) -> bytes:
            raise ValueError("broken")

    key, signer = generate_key(Algorithm.ES256), BatchSigner()
    broken = copy.copy(key)
    object.__setattr__(broken, "private_key", Broken())
    first, cancelled, failed, last = (
        asyncio.ensure_future(signer.sign(b"data", each)) for each in (key, key, broken, key)
    )
    cancelled.cancel()
    assert [
        type(each) for each in await asyncio.gather(first, failed, last, return_exceptions=True)
    ] == [
        bytes,
        ValueError,
        bytes,
    ]
    assert cancelled.cancelled()
