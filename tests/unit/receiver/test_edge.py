"""Health, readiness and the check of who owns the URL: the same at both edges."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from pushkit.storage.script import Script, Statement
from receiver import Limits, RateLimit
from receiver.request_handler import _READINESS_HOLDS

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory


async def test_alive_and_ready(world_behind: World) -> None:
    for path, state in (("/healthz", "alive"), ("/readyz", "ready")):
        answer = await world_behind.get(path)
        assert (answer.status, json.loads(answer.text)) == (200, {"status": state})


async def test_a_sender_without_keys_is_said_and_is_no_reason_to_stop(
    make_world_behind: WorldFactory, unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = f"http://127.0.0.1:{unused_tcp_port}/jwks.json"
    world = make_world_behind({"allow": ["127.0.0.1:*"]}, keys=None, jwks_url=nowhere)
    refused = await world.post(world.draft())
    ready = await world.get("/readyz")
    assert (refused.status, refused.code) == (503, "keys_unavailable")
    assert ready.status == 200
    assert json.loads(ready.text) == {"status": "ready", "degraded": ["keys"]}
    assert "degraded: keys of sender agent: no keys from http://127.0.0.1" in caplog.text


async def test_a_full_disk_is_no_readiness(
    world_behind: World, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await world_behind.post(world_behind.draft())).status == 202
    await world_behind.receiver._database.write(_full())
    draft = world_behind.draft(2)
    draft = replace(draft, body=draft.body.replace(b"{", b"{" + b" " * 200_000, 1))
    refused = await world_behind.post(draft)
    assert (refused.status, refused.code) == (503, "storage")
    assert (await world_behind.get("/readyz")).status == 503
    assert "not ready: storage: it cannot be written: database or disk is full" in caplog.text


def _full() -> Script[None]:
    # SQLite answers a file at its limit as it answers a full disk.
    rows = yield Statement("PRAGMA page_count")
    yield Statement(f"PRAGMA max_page_count = {rows[0]['page_count'] + 4}")


@pytest.mark.parametrize(("holds", "status"), [(3600.0, 200), (0.0, 503)])
async def test_the_result_of_readiness_is_cached(
    world_behind: World,
    monkeypatch: pytest.MonkeyPatch,
    *,
    holds: float,
    status: int,
) -> None:
    monkeypatch.setattr("receiver.request_handler._READINESS_HOLDS", timedelta(seconds=holds))
    assert (await world_behind.get("/readyz")).status == 200
    world_behind.execute("DROP TABLE pushkit_inbox")
    assert (await world_behind.get("/readyz")).status == status


def test_the_result_of_readiness_is_cached_for_at_most_a_second() -> None:
    assert timedelta(seconds=1) == _READINESS_HOLDS


async def test_not_ready_without_callbacks(make_world: WorldFactory) -> None:
    world = make_world()
    await world.receiver.open()
    assert list(await world.receiver.unready()) == ["callbacks"]
    await world.receiver.close()


async def test_the_validation_token_is_echoed_as_text(make_world_behind: WorldFactory) -> None:
    world = make_world_behind({"validation_echo": True})
    answer = await world.get("/a2a/push?validationToken=3f2c-9a.b_c~d&x=1")
    assert (answer.status, answer.text) == (200, "3f2c-9a.b_c~d")
    headers = {name.lower(): value for name, value in answer.headers.items()}
    assert headers["content-type"] == "text/plain; charset=utf-8"
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "query",
    [
        pytest.param("validationToken=%3Cscript%3E", id="markup"),
        pytest.param("validationToken=", id="empty"),
        pytest.param("validationToken=" + "x" * 513, id="long"),
        pytest.param("validationToken=a&validationToken=b", id="two"),
        pytest.param("validationToken=a%0Ab", id="line end"),
        pytest.param("validationToken=%C3%A4", id="not ASCII"),
        pytest.param("", id="none"),
        pytest.param("validationtoken=abc", id="another name"),
    ],
)
async def test_anything_else_is_not_echoed(make_world_behind: WorldFactory, query: str) -> None:
    world = make_world_behind({"validation_echo": True})
    answer = await world.get(f"/a2a/push?{query}")
    assert (answer.status, answer.code) == (400, "invalid_validation_token")


async def test_the_echo_is_off_until_it_is_switched_on(world_behind: World) -> None:
    answer = await world_behind.get("/a2a/push?validationToken=abc")
    assert (answer.status, answer.code) == (405, "method_not_allowed")


@pytest.mark.parametrize(
    "path",
    ["/", "/a2a", "/A2A/push", *(f"/a2a/push{end}" for end in ("/", "/more", "%0A")), "/readyz/"],
)
async def test_an_unknown_path_is_a_problem(make_world_behind: WorldFactory, path: str) -> None:
    world = make_world_behind({"validation_echo": True})
    answer = await world.get(path)
    assert (answer.status, answer.code) == (404, "not_found")


async def test_questions_count_for_the_rate_of_the_address_too(
    make_world_behind: WorldFactory,
) -> None:
    world = make_world_behind({"limits": Limits(peer_rate=RateLimit(per_second=1, burst=1))})
    answers = [await world.get("/a2a/push") for _ in range(2)]
    assert [answer.status for answer in answers] == [405, 429]


async def test_a_probe_is_answered_however_many_requests_its_address_makes(
    make_world_behind: WorldFactory,
) -> None:
    world = make_world_behind({"limits": Limits(peer_rate=RateLimit(per_second=0.001, burst=1))})
    assert [(await world.get("/")).status for _ in range(3)] == [404, 429, 429]
    for path in ("/healthz", "/readyz") * 3:
        assert (await world.get(path)).status == 200
