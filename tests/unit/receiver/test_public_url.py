"""`receiver check --url`: which link is at fault, each link broken in turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from pytest_aiohttp.plugin import AiohttpServer

from pushkit.clock import utc_now
from pushkit.keys.jwk import Algorithm, generate_key
from receiver import Limits, Receiver, Scheme, SenderProfile, TaskPolicy, TrustedSender
from receiver.diagnosis.public_url import TrialRequest, check_public_url, faults
from receiver.diagnosis.report import Checked
from receiver.steps import CheckResult, Result, Step
from tests.ports import free_port
from tests.served import answering

KEY = generate_key(Algorithm.ES256)
ISSUER = "https://agent.example.com"
TOKEN = "a-token-that-the-agent-was-given"
SENDER = TrustedSender(
    name="agent",
    issuer=ISSUER,
    keys=[KEY.to_verification_key()],
    tokens=[TOKEN],
    tasks=TaskPolicy.ANY,
)

Way = Callable[..., Awaitable[TrialRequest]]


@pytest.fixture
def way(aiohttp_server: AiohttpServer, tmp_path: Path) -> Way:
    """Run a receiver with settings like these, and return a probe that fits it."""

    async def lead(**changes: object) -> TrialRequest:
        port = free_port()
        url = str(changes.pop("url", f"http://127.0.0.1:{port}"))
        sender = changes.pop("sender", SENDER)
        assert isinstance(sender, TrustedSender)
        receiver = Receiver(url=url, senders=[sender], database=tmp_path / "inbox.db", **changes)  # type: ignore[arg-type]
        await aiohttp_server(receiver.app(), port=port)
        here = f"http://127.0.0.1:{port}{sender.path}"
        return TrialRequest(url=here, own_url=here, sender=sender, key=KEY, token=TOKEN)

    return lead


def having(found: list[Checked], result: Result) -> list[str]:
    return [one.name for one in found if one.result is result]


LINKS = ["scheme", "dns", "proxy", "path"]  # and `tls`, which http has not
STEPS = ["request", "sender", "signature", "time", "issuer", "audience", "ids", "token", "size"]
REACHED = [*LINKS, *STEPS, "body", "rate"]


async def test_a_working_url_passes_every_check_and_leaves_nothing_behind(way: Way) -> None:
    probe = await way()
    links = await check_public_url(probe)
    assert having(links, Result.PASSED) == REACHED
    assert having(links, Result.NOT_CHECKED) == ["tls", "content"]
    assert having(links, Result.NOT_REACHED) == ["replay", "task", "stored"]
    assert having(await check_public_url(probe), Result.PASSED) == REACHED


async def test_without_the_agents_key_checks_that_need_it_are_unknown(way: Way) -> None:
    links = await check_public_url(replace(await way(), key=None))
    assert faults(links) == []
    assert having(links, Result.PASSED) == [*LINKS, "request", "audience"]
    assert having(links, Result.NOT_CHECKED) == ["tls", "sender", "signature", "time"]
    assert "token" in having(links, Result.NOT_REACHED)


async def test_a_receiver_that_knows_itself_by_another_url_is_an_audience_at_fault(
    way: Way,
) -> None:
    probe = await way(url="http://localhost:9000")
    probe = replace(probe, own_url="http://localhost:9000/a2a/push")
    [link] = [one for one in await check_public_url(probe) if one.result is Result.REFUSED]
    assert link == CheckResult(Step.AUDIENCE, Result.REFUSED, link.found, "wrong_audience")
    assert probe.url in link.found
    assert "http://localhost:9000/a2a/push: set `url`" in link.found
    without_key = await check_public_url(replace(probe, key=None))
    assert faults(without_key) == ["audience"]


WRONG = {
    "signature or body": lambda probe: replace(probe, key=generate_key(Algorithm.ES256)),
    "sender": lambda probe: replace(
        probe, sender=replace(SENDER, issuer="https://another.example.com")
    ),
    "path": lambda probe: replace(probe, url=probe.url.replace("/a2a/push", "/push")),
    "token": lambda probe: replace(probe, token="another-token-altogether"),
}


@pytest.mark.parametrize("link", WRONG)
async def test_a_fault_on_the_agents_side_is_named(way: Way, link: str) -> None:
    links = await check_public_url(WRONG[link](await way()))
    # The audience is the URL: another path is another audience, too.
    assert faults(links) == [link, *(["audience"] if link == "path" else [])], links


async def test_a_clock_that_is_wrong_is_named(way: Way) -> None:
    probe = await way(clock=lambda: utc_now() + timedelta(hours=1))
    assert faults(await check_public_url(probe)) == ["time"]


async def test_a_name_without_an_address_is_dns(way: Way) -> None:
    probe = replace(await way(), url="https://nowhere.invalid/a2a/push")
    assert "dns" in faults(await check_public_url(probe))


async def test_a_port_without_a_listener_is_a_fault_of_the_proxy(way: Way) -> None:
    probe = replace(await way(), url=f"http://127.0.0.1:{free_port()}/a2a/push")
    found = await check_public_url(probe)
    [proxy] = [one for one in found if one.name == "proxy"]
    assert proxy.result is Result.REFUSED
    assert "nothing listens" in proxy.found
    assert having(found, Result.NOT_REACHED)[:4] == ["tls", "path", "request", "sender"]
    assert having(found, Result.PASSED) == ["scheme", "dns"]


async def test_plain_http_where_tls_is_expected_is_tls(way: Way) -> None:
    probe = await way()
    probe = replace(probe, url=probe.url.replace("http://", "https://"))
    assert "tls" in faults(await check_public_url(probe))
    assert "scheme" in faults(await check_public_url(probe))


async def test_a_sender_that_does_not_sign_is_tried_by_its_token(way: Way) -> None:
    unsigned = TrustedSender(
        name="agent",
        profile=SenderProfile.UNSIGNED_SECRET_ONLY,
        tokens=[TOKEN],
        tasks=TaskPolicy.ANY,
    )
    probe = replace(await way(sender=unsigned), key=None)
    links = await check_public_url(probe)
    assert faults(links) == []
    # Nothing is said to hold that nobody signs.
    signed = ["signature", "time", "issuer", "audience", "ids", "body"]
    assert having(links, Result.NOT_CHECKED) == ["tls", *signed, "content"]
    wrong = await check_public_url(replace(probe, token="another-token-altogether"))
    assert faults(wrong) == ["token"]


@pytest.mark.parametrize("profile", [SenderProfile.A2A_SAMPLES, SenderProfile.TRPC_A2A_GO])
async def test_a_sender_that_states_no_issuer_is_tried_by_its_key(
    way: Way, profile: SenderProfile
) -> None:
    links = await check_public_url(
        await way(sender=replace(SENDER, issuer=None, profile=profile), url="https://of.another")
    )
    unstated = ("issuer", "audience")
    assert having(links, Result.PASSED) == [each for each in REACHED if each not in unstated]


@pytest.mark.parametrize("given", ["Bearer its-credentials", "its-api-key"])
async def test_a_sender_that_was_given_credentials_brings_them(way: Way, given: str) -> None:
    links = await check_public_url(await way(sender=replace(SENDER, credentials=[given])))
    assert having(links, Result.PASSED) == REACHED


async def test_a_scheme_that_this_check_cannot_sign_is_no_reason_to_ask_for_keys(way: Way) -> None:
    sender = replace(SENDER, schemes=[Scheme.HTTP_MESSAGE_SIGNATURES])
    links = await check_public_url(replace(await way(sender=sender), key=None))
    [key] = [one for one in links if one.name == "signature"]
    assert key.result is Result.NOT_CHECKED
    assert "--keys" not in key.found


async def test_a_receiver_that_runs_with_another_configuration_is_reported(way: Way) -> None:
    probe = await way(url="http://localhost:9000")
    [link] = [one for one in await check_public_url(probe) if one.result is Result.REFUSED]
    assert link == CheckResult(Step.AUDIENCE, Result.REFUSED, link.found, "wrong_audience")
    assert "than this configuration" in link.found


async def test_checks_that_the_receiver_did_not_reach_are_not_reported(way: Way) -> None:
    probe = await way(limits=Limits(max_body_bytes=8))
    links = await check_public_url(probe)
    assert faults(links) == ["request or size"]
    assert having(links, Result.PASSED) == LINKS
    between = ["sender", "signature", "time", "issuer", "audience", "ids", "token"]
    assert having(links, Result.UNKNOWN) == ["request", *between, "size"]


# --- proxies --------------------------------------------------------------------------------------


async def _passes_on(to: str, headers: Mapping[str, str], body: bytes) -> web.Response:
    async with (
        aiohttp.ClientSession() as session,
        session.post(to, data=body, headers=headers) as answer,
    ):
        return web.Response(
            status=answer.status, body=await answer.read(), content_type=answer.content_type
        )


def _without(request: web.Request, *names: str) -> dict[str, str]:
    dropped = {"host", "content-length", *names}
    return {name: value for name, value in request.headers.items() if name.lower() not in dropped}


async def _strips_authorization(request: web.Request, to: str) -> web.Response:
    return await _passes_on(to, _without(request, "authorization"), await request.read())


async def _changes_the_body(request: web.Request, to: str) -> web.Response:
    body = (await request.read()).replace(b":", b": ")
    return await _passes_on(to, _without(request), body)


async def _is_a_gateway_to_nowhere(_: web.Request, __: str) -> web.Response:
    return web.Response(status=502, text="<html>Bad Gateway</html>")


async def _redirects(_: web.Request, __: str) -> web.Response:
    return web.Response(status=308, headers={"Location": "https://elsewhere.example.com/"})


async def _takes_everything(_: web.Request, __: str) -> web.Response:
    return web.Response(status=200, text="thanks")


def _answers_json(body: bytes) -> Callable[[web.Request, str], Awaitable[web.Response]]:
    async def answer(_: web.Request, __: str) -> web.Response:
        return web.Response(status=404, body=body, content_type="application/json")

    return answer


PROXIES = {
    "the proxy removes it": _strips_authorization,
    "the body was changed": _changes_the_body,
    "does not reach it": _is_a_gateway_to_nowhere,
    "a redirect to https://elsewhere.example.com/": _redirects,
    "another server accepts the notifications": _takes_everything,
    "answered 404, but not by this receiver": _answers_json(b'{"code":"not_found"}'),
    "answered 404, but not by this": _answers_json(b'{"code":"\\u001b[31mNoSuchKey"}'),
    "the proxy answers itself": _answers_json(b"[" * 60_000),
}


@pytest.mark.parametrize("says", PROXIES)
async def test_a_proxy_at_fault_is_named_with_what_it_does(
    way: Way, aiohttp_server: AiohttpServer, says: str
) -> None:
    port = free_port()
    public = f"http://127.0.0.1:{port}"
    probe = await way(url=public)

    async def answer(request: web.Request) -> web.Response:
        return await PROXIES[says](request, probe.url)

    await aiohttp_server(answering(answer), port=port)
    through = replace(probe, url=f"{public}/a2a/push", own_url=f"{public}/a2a/push")
    links = await check_public_url(through)
    assert faults(links) == ["proxy", *(["body"] if says == "the body was changed" else [])], links
    assert any(says in link.found for link in links)


async def test_a_proxy_that_breaks_off_what_is_tried_next_takes_no_finding_away(
    way: Way, aiohttp_server: AiohttpServer
) -> None:
    port, came = free_port(), list[web.Request]()
    public = f"http://127.0.0.1:{port}/a2a/push"
    probe = await way(url=f"http://127.0.0.1:{port}")

    async def answer(request: web.Request) -> web.Response:
        came.append(request)
        if len(came) > 1 and request.transport is not None:
            request.transport.abort()
        return await _passes_on(probe.url, _without(request), await request.read())

    await aiohttp_server(answering(answer), port=port)
    by_another_key = replace(probe, url=public, own_url=public, key=generate_key(Algorithm.ES256))
    assert faults(await check_public_url(by_another_key)) == ["signature or body"]
    assert len(came) > 1
