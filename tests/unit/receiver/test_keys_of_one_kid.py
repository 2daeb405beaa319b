"""The key decides about the algorithm: which key, where several have one `kid` or none says it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pytest_aiohttp.plugin import AiohttpServer

from pushkit.cards import load_public_keys
from pushkit.errors import InvalidSignatureError, KeyFileError
from pushkit.keys.jwk import Algorithm, SigningKey, generate_key, public_jwk
from receiver import Receiver, Scheme, TaskPolicy, TrustedSender, load_trust, verify_notification
from receiver.testing import SigningAgent
from tests.refusals import refused_unless

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
RSA = generate_key(Algorithm.RS256)
KEYS = {
    "RS256": replace(RSA, kid="1"),
    "PS256": replace(RSA, kid="1", algorithm=Algorithm.PS256),
    "ES256": replace(generate_key(Algorithm.ES256), kid="1"),
    "EdDSA": replace(generate_key(Algorithm.EDDSA), kid="1"),
}


def silent(key: SigningKey) -> dict[str, Any]:
    """Return a public JWK that does not say which algorithm it is for."""
    return {name: value for name, value in public_jwk(key).items() if name != "alg"}


def verify(
    folder: Path,
    jwks: Sequence[object],
    key: SigningKey,
    scheme: Scheme = Scheme.JWT,
    **options: Any,
) -> str:
    """Verify a notification that a key signed; return its `kid`."""
    (folder / "jwks.json").write_text(json.dumps({"keys": jwks}))
    agent = SigningAgent(
        webhook_url="https://client.example.com/a2a/push", key=key, schemes=frozenset({scheme})
    )
    sender = TrustedSender(
        name="agent",
        issuer=agent.issuer,
        jwks_file=folder / "jwks.json",
        schemes=[scheme],
        tokens=[agent.token],
        tasks=TaskPolicy.ANY,
        **options,
    )
    trust = load_trust("https://client.example.com", [sender])
    request = replace(agent.draft("task-1"), issued_at=NOW).request()
    return verify_notification(replace(request, target="/a2a/push"), trust, now=NOW).kid or ""


@pytest.mark.parametrize("scheme", [Scheme.JWT, Scheme.HTTP_MESSAGE_SIGNATURES])
@pytest.mark.parametrize("signed", KEYS)
def test_of_keys_with_one_kid_that_of_the_headers_algorithm_is_used(
    tmp_path: Path, signed: str, scheme: Scheme
) -> None:
    for order in (list(KEYS.values()), list(KEYS.values())[::-1]):
        assert verify(tmp_path, [public_jwk(key) for key in order], KEYS[signed], scheme) == "1"


def test_no_key_of_the_kid_verifies_another_algorithm(tmp_path: Path) -> None:
    others = [public_jwk(key) for name, key in KEYS.items() if name != "PS256"]
    with pytest.raises(InvalidSignatureError, match="another algorithm"):
        verify(tmp_path, others, KEYS["PS256"])


@pytest.mark.parametrize(
    ("configured", "signed", "accepted"),
    [
        pytest.param(["PS256"], "PS256", True, id="as-configured"),
        pytest.param(["PS256", "ES256"], "PS256", True, id="the-only-one-that-fits"),
        pytest.param(["PS256"], "RS256", False, id="not-as-configured"),
        pytest.param(["RS256", "PS256"], "RS256", True, id="both"),
        pytest.param(["RS256", "PS256"], "PS256", False, id="both-and-the-other"),
    ],
)
def test_of_an_rsa_key_without_alg_the_configuration_says_what_it_is_for(
    tmp_path: Path, configured: list[str], signed: str, *, accepted: bool
) -> None:
    algorithms = frozenset(map(Algorithm, configured))
    with refused_unless(accepted, InvalidSignatureError, "another algorithm"):
        verify(tmp_path, [silent(KEYS["RS256"])], KEYS[signed], algorithms=algorithms)


async def test_the_configuration_counts_for_fetched_keys_too_and_may_change(
    aiohttp_server: AiohttpServer, tmp_path: Path
) -> None:
    app = web.Application()
    document = {"keys": [silent(KEYS["RS256"])]}

    async def jwks(_request: web.Request) -> web.Response:
        return web.json_response(document)

    app.router.add_get("/jwks.json", jwks)
    url = str((await aiohttp_server(app)).make_url("/jwks.json"))
    agent = SigningAgent(webhook_url="https://client.example.com/a2a/push", key=KEYS["PS256"])

    def senders(algorithm: Algorithm) -> list[TrustedSender]:
        sender = TrustedSender(
            name="agent",
            issuer=agent.issuer,
            jwks_url=url,
            tokens=[agent.token],
            tasks=TaskPolicy.ANY,
            algorithms=frozenset({algorithm}),
        )
        return [sender]

    receiver = Receiver(
        url="https://client.example.com",
        senders=senders(Algorithm.RS256),
        database=tmp_path / "inbox.db",
        allow=["127.0.0.1:*"],
    )
    async with receiver:
        for algorithm, status in ((Algorithm.RS256, 401), (Algorithm.PS256, 202)):
            await receiver.reload_senders(senders(algorithm))
            request = replace(agent.draft("task-1").request(), target="/a2a/push")
            assert (await receiver.receive(request, peer="192.0.2.1")).status == status


def test_alg_of_a_jwk_is_not_overruled(tmp_path: Path) -> None:
    only = frozenset({Algorithm.PS256})
    with pytest.raises(InvalidSignatureError, match="may not sign with RS256"):
        verify(tmp_path, [public_jwk(KEYS["RS256"])], KEYS["PS256"], algorithms=only)


def test_a_trust_file_says_what_a_key_without_alg_is_for(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [silent(KEYS["RS256"]), public_jwk(KEYS["EdDSA"])]}))
    found = load_public_keys(path, algorithm=Algorithm.PS256)
    assert [key.algorithm for key in found] == [Algorithm.PS256, Algorithm.EDDSA]
    with pytest.raises(KeyFileError, match="`kid` is for PEM"):
        load_public_keys(path, kid="1")
