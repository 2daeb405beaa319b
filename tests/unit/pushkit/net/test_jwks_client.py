from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pushkit.errors import (
    ConfigError,
    DestinationRefusedError,
    JwksError,
    KeysUnavailableError,
    PushkitError,
    TransportError,
)
from pushkit.keys.jwk import Algorithm, generate_key, public_jwk
from pushkit.keys.jwks import jwks_response
from pushkit.keys.ring import KeyRing
from pushkit.net import jwks_client
from pushkit.net.connection import HttpAnswer
from pushkit.net.jwks_client import (
    JwksClient,
    fetch_jwks,
    load_jwks,
)
from pushkit.net.transport import Transport
from pushkit.scheduling import renewing
from pushkit.webhook import Headers
from tests.clock import START, Clock
from tests.eventually import eventually
from tests.served import answering, served
from tests.unit.pushkit.net.test_transport import HEAD, keeps_silent, says, serving

URL = "https://agent.example/.well-known/jwks.json"
KEY = generate_key(Algorithm.ES256)
OTHER = generate_key(Algorithm.EDDSA)


def jwks(*keys: Any) -> bytes:
    return json.dumps({"keys": keys}).encode()


def fetched(status: int, body: bytes = b"", **headers: str) -> HttpAnswer:
    fields = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return HttpAnswer(status=status, headers=Headers(fields), body=body)


def answer(*keys: Any, cache_control: str = "max-age=300", **more: str) -> HttpAnswer:
    return fetched(200, jwks(*keys), cache_control=cache_control, **more)


class Publisher:
    """A scripted publisher and its clients: the test sets its answers, it records the requests."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.client = JwksClient(URL, fetch=self, clock=self.clock)
        # Its set may be used for an hour after it is no longer fresh.
        hour = timedelta(hours=1)
        self.patient = JwksClient(URL, fetch=self, clock=self.clock, stale_for=hour)
        self.answer: HttpAnswer | Exception = answer(public_jwk(KEY))
        self.etags: list[str | None] = []
        self.open = asyncio.Event()
        self.open.set()
        self.asked = asyncio.Event()

    @property
    def hits(self) -> int:
        return len(self.etags)

    async def __call__(self, url: str, etag: str | None) -> HttpAnswer:
        assert url == URL
        self.etags.append(etag)
        self.asked.set()
        await self.open.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
async def publisher() -> AsyncIterator[Publisher]:
    publisher = Publisher()
    yield publisher
    await publisher.client.close()
    await publisher.patient.close()


# --- the cache ---------------------------------------------------------------------------------


async def test_the_age_counts_from_the_start_of_the_fetch(publisher: Publisher) -> None:
    publisher.open.clear()
    loading = asyncio.create_task(publisher.client.keys())
    await publisher.asked.wait()
    publisher.clock.advance(4)
    publisher.open.set()
    await loading
    publisher.clock.advance(296)
    await publisher.client.keys()
    assert publisher.hits == 2


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        pytest.param({}, 300, id="absent"),
        pytest.param({"cache_control": "public, max-age=120"}, 120, id="given"),
        pytest.param({"cache_control": 'Max-Age="120"'}, 120, id="quoted"),
        pytest.param({"cache_control": "s-maxage=9000"}, 300, id="for shared caches"),
        pytest.param({"cache_control": "x-max-age=9000"}, 300, id="another directive"),
        pytest.param({"cache_control": "max-age=-5"}, 300, id="malformed"),
        pytest.param({"cache_control": "max-age=2"}, 2, id="short"),
        pytest.param({"cache_control": "max-age=0"}, 1, id="too short"),
        pytest.param({"cache_control": "no-store, max-age=900"}, 1, id="no-store"),
        pytest.param({"cache_control": "max-age=9999999999"}, 86400, id="too long"),
        pytest.param({"cache_control": "max-age=300", "age": "200"}, 100, id="aged"),
        pytest.param({"cache_control": "max-age=300", "age": "9" * 99}, 300, id="absurd age"),
        pytest.param({"cache_control": "max-age=300", "age": "2147483648"}, 1, id="oldest age"),
    ],
)
async def test_how_long_a_set_is_kept(
    publisher: Publisher, headers: dict[str, str], seconds: int
) -> None:
    publisher.answer = fetched(200, jwks(), **headers)
    await publisher.client.keys()
    publisher.clock.advance(seconds - 0.5)
    await publisher.client.keys()
    assert publisher.hits == 1
    publisher.clock.advance(0.5)
    await publisher.client.keys()
    assert publisher.hits == 2


async def test_a_set_that_has_not_changed_is_kept_on(publisher: Publisher) -> None:
    publisher.answer = answer(public_jwk(KEY), etag='"1"')
    await publisher.client.keys()
    publisher.answer = fetched(304, cache_control="max-age=600")
    publisher.clock.advance(300)
    assert await publisher.client.find(KEY.kid)
    publisher.clock.advance(599)
    assert await publisher.client.find(KEY.kid)
    publisher.clock.advance(1)
    await publisher.client.keys()
    assert publisher.etags == [None, '"1"', '"1"']


async def test_after_a_failure_the_set_is_fetched_without_its_tag(publisher: Publisher) -> None:
    publisher.answer = answer(public_jwk(KEY), etag=f'"{"x" * 20_000}"')
    await publisher.client.keys()
    publisher.clock.advance(300)
    publisher.answer = fetched(431)
    with pytest.raises(KeysUnavailableError):
        await publisher.client.keys()
    publisher.clock.advance(1)
    publisher.answer = answer(public_jwk(KEY))
    await publisher.client.keys()
    assert [etag is None for etag in publisher.etags] == [True, False, True]


async def test_a_withdrawn_key_is_gone_with_the_next_set(publisher: Publisher) -> None:
    await publisher.client.keys()
    publisher.answer = answer()
    publisher.clock.advance(300)
    assert not await publisher.client.find(KEY.kid)


async def test_a_refused_key_is_logged(
    publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    publisher.answer = answer(public_jwk(KEY), {**public_jwk(OTHER), "d": "c2VjcmV0"})
    assert list(await publisher.client.keys()) == [KEY.kid]
    assert OTHER.kid in caplog.text
    assert "c2VjcmV0" not in caplog.text


async def test_a_publisher_of_other_unusable_keys_at_each_fetch_gets_one_line_a_minute(
    publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(10):
        publisher.answer = answer({"kty": "oct", "kid": f"key-{number}"}, cache_control="no-store")
        await publisher.client.keys()
        publisher.clock.advance(1)
    assert publisher.hits == 10
    assert len(caplog.records) == 1


# --- unknown kids ------------------------------------------------------------------------------


async def test_an_unknown_kid_fetches_again_and_finds_a_new_key(publisher: Publisher) -> None:
    await publisher.client.keys()
    publisher.answer = answer(public_jwk(KEY), public_jwk(OTHER))
    assert await publisher.client.find(OTHER.kid) == [OTHER.to_verification_key()]
    assert publisher.hits == 2


async def test_unknown_kids_fetch_at_most_once_in_thirty_seconds(publisher: Publisher) -> None:
    await publisher.client.keys()
    for number in range(100):
        assert not await publisher.client.find(f"unknown-{number}")
    assert publisher.hits == 2
    publisher.clock.advance(30)
    assert not await publisher.client.find("unknown")
    assert publisher.hits == 3


async def test_an_unknown_kid_in_a_set_just_fetched_does_not_fetch_again(
    publisher: Publisher,
) -> None:
    assert not await publisher.client.find("unknown")
    assert publisher.hits == 1


# --- outages -----------------------------------------------------------------------------------


async def test_without_stale_for_an_expired_set_counts_no_longer(publisher: Publisher) -> None:
    await publisher.client.keys()
    publisher.answer = TransportError("down")
    publisher.clock.advance(299)
    assert await publisher.client.find(KEY.kid)
    publisher.clock.advance(1)
    for _ in range(2):
        with pytest.raises(KeysUnavailableError, match="older than may be trusted: down"):
            await publisher.client.find(KEY.kid)
    assert publisher.hits == 2


async def test_a_set_that_has_just_been_fetched_counts_however_short_its_life(
    publisher: Publisher,
) -> None:
    publisher.answer = answer(public_jwk(KEY), cache_control="no-store")
    publisher.open.clear()
    finding = asyncio.create_task(publisher.client.find(KEY.kid))
    await publisher.asked.wait()
    publisher.clock.advance(4)
    publisher.open.set()
    assert await finding is not None


async def test_keys_stay_good_for_stale_for_through_an_outage(publisher: Publisher) -> None:
    await publisher.patient.keys()
    publisher.answer = TransportError("down")
    publisher.clock.advance(300 + 3599)
    assert await publisher.patient.find(KEY.kid)
    publisher.clock.advance(1)
    with pytest.raises(KeysUnavailableError, match="older than may be trusted: down"):
        await publisher.patient.find(KEY.kid)


@pytest.fixture
def short_lived(monkeypatch: pytest.MonkeyPatch) -> Callable[[Publisher], JwksClient]:
    """Make clients whose sets end at once, and may be used for an hour more."""
    monkeypatch.setattr(jwks_client, "LONGEST_JWKS_MAX_AGE", timedelta(0))
    monkeypatch.setattr(renewing, "_LEAST_PAUSE", timedelta(milliseconds=10))
    return lambda publisher: JwksClient(URL, fetch=publisher, stale_for=timedelta(hours=1))


async def renewed(publisher: Publisher) -> None:
    await eventually(lambda: publisher.hits >= 4)


async def test_an_unused_set_is_renewed_at_its_end(
    publisher: Publisher, short_lived: Callable[[Publisher], JwksClient]
) -> None:
    client = short_lived(publisher)
    await client.keys()
    await renewed(publisher)
    publisher.answer = TransportError("down")
    publisher.etags.clear()
    await renewed(publisher)  # during an outage, too
    await client.close()
    publisher.etags.clear()
    client.load()  # it has usable keys
    await renewed(publisher)
    await client.close()


async def test_a_closed_client_renews_nothing_by_itself(
    publisher: Publisher, short_lived: Callable[[Publisher], JwksClient]
) -> None:
    others = Publisher()
    closed, other = short_lived(publisher), short_lived(others)
    await closed.close()
    assert await closed.find(KEY.kid)  # for a request that has it already
    await other.keys()
    await renewed(others)
    assert publisher.hits == 1
    await other.close()


async def test_an_unknown_kid_waits_for_the_fetch_under_way(publisher: Publisher) -> None:
    await publisher.patient.keys()
    publisher.open.clear()
    publisher.asked.clear()
    publisher.answer = answer(public_jwk(KEY), public_jwk(OTHER))
    publisher.clock.advance(300)
    finding = asyncio.create_task(publisher.patient.find(OTHER.kid))
    await publisher.asked.wait()
    publisher.open.set()
    assert await finding == [OTHER.to_verification_key()]
    assert publisher.hits == 2


async def test_missing_keys_are_reported_without_a_fetch(publisher: Publisher) -> None:
    assert "no keys from" in str(publisher.client.missing())
    assert publisher.hits == 0
    await publisher.client.keys()
    assert publisher.client.missing() is None
    publisher.clock.advance(300)
    assert "older than may be trusted" in str(publisher.client.missing())


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(TransportError("down"), id="transport"),
        pytest.param(fetched(500), id="status 500"),
        pytest.param(fetched(301), id="redirect"),
        pytest.param(fetched(200, b"<html>"), id="html"),
    ],
)
async def test_a_failure_is_not_repeated_for_every_request(
    publisher: Publisher, failure: HttpAnswer | Exception
) -> None:
    await publisher.patient.keys()
    publisher.answer = failure
    publisher.clock.advance(300)
    for _ in range(10):
        assert await publisher.patient.find(KEY.kid)
        assert not await publisher.patient.find("unknown")
    assert publisher.hits == 2


async def test_an_outage_is_logged_once_a_minute(
    publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    publisher.answer = TransportError("down")
    for _ in range(10):
        with pytest.raises(KeysUnavailableError, match="yet: down"):
            await publisher.patient.keys()
        publisher.clock.advance(30)
    assert publisher.hits == 10
    assert caplog.text.count("could not be fetched") == 1


async def test_not_modified_without_a_set_is_a_failure(publisher: Publisher) -> None:
    publisher.answer = fetched(304)
    with pytest.raises(KeysUnavailableError, match="found 304"):
        await publisher.client.keys()


async def test_a_defect_of_the_fetch_is_not_hidden(publisher: Publisher) -> None:
    publisher.answer = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await publisher.client.keys()


async def test_keys_left_out_of_an_operators_set_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks(public_jwk(KEY), {"kty": "oct", "kid": "shared", "k": "c2VjcmV0"}))

    assert [key.kid for key in await load_jwks(str(path))] == [KEY.kid]
    assert f"{path}: left out: shared (" in caplog.text


async def test_an_operators_file_without_a_usable_key_is_refused_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks({"kty": "oct", "kid": "shared", "k": "c2VjcmV0"}))
    with pytest.raises(ConfigError, match=r"no usable key.*: shared \(the key is symmetric"):
        await load_jwks(str(path))
    assert caplog.messages == []


# --- over HTTP ---------------------------------------------------------------------------------


async def test_a_key_ring_is_served_fetched_and_revalidated(transport: Transport) -> None:
    clock, ring = Clock(), KeyRing.create(START)
    statuses = []

    async def handler(request: web.Request) -> web.Response:
        response = jwks_response(ring, clock(), request.headers.get("If-None-Match"))
        statuses.append(response.status)
        assert request.headers["Accept-Encoding"] == "identity"
        assert "application/jwk-set+json" in request.headers["Accept"]
        return web.Response(status=response.status, headers=response.headers, body=response.body)

    kid = ring.signing_key(START).kid
    async with served(answering(handler)) as url:
        client = JwksClient(url, fetch=partial(fetch_jwks, transport), clock=clock)
        assert await client.find(kid) == [ring.signing_key(START).to_verification_key()]
        clock.advance(300)
        assert await client.find(kid)
    assert statuses == [200, 304]


async def _refusal(url: str, transport: Transport) -> PushkitError:
    client = JwksClient(url, fetch=partial(fetch_jwks, transport))
    with pytest.raises(KeysUnavailableError):
        await client.keys()
    assert client._set.failure is not None
    return client._set.failure


async def test_a_slow_answer_ends_in_time(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwks_client, "_FETCH_TIMEOUT", timedelta(seconds=0.3))

    async def body_comes_too_late() -> bool:  # on a busy machine its head may be late, too
        refusal = await _refusal(server.url, transport)
        return isinstance(refusal, JwksError) and "broke off" in str(refusal)

    async with serving(says(HEAD, b"\r\n{", then=keeps_silent)) as server:
        await eventually(body_comes_too_late)


async def test_a_broken_url_is_refused(transport: Transport) -> None:
    assert isinstance(await _refusal("http://[", transport), DestinationRefusedError)


@pytest.mark.parametrize(
    ("answered", "message"),
    [
        pytest.param({"body": b"<html>"}, "not a JWK Set", id="html"),
        pytest.param({"body": jwks(*[public_jwk(KEY)] * 33)}, "33 keys", id="33 keys"),
        pytest.param({"body": b" " * 65537}, "longer than", id="64 KiB and one byte"),
        pytest.param(
            {"body": b"\x1f\x8b", "headers": {"Content-Encoding": "gzip"}}, "compressed", id="gzip"
        ),
        pytest.param(
            {"status": 302, "headers": {"Location": "/other"}},
            "found 302; redirects are not followed",
            id="moved",
        ),
    ],
)
async def test_an_answer_that_is_not_a_set_is_refused(
    transport: Transport, answered: dict[str, Any], message: str
) -> None:
    paths = []

    async def handler(request: web.Request) -> web.Response:
        paths.append(request.path)
        return web.Response(**answered)

    async with served(answering(handler)) as origin:
        assert message in str(await _refusal(f"{origin}/jwks.json", transport))
    assert paths == ["/jwks.json"]
