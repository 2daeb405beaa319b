"""`listen`: what it shows of each request, what it accepts, saves and forwards."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pytest_aiohttp.plugin import AiohttpServer

from pushkit import KeyRing, PushSender, Scheme, SenderOptions, Signing
from pushkit.captured import circumstances_of, read_request
from pushkit.clock import utc_now
from pushkit.keys.jwk import Algorithm, generate_key
from pushkit.signing.standard_webhooks import generate_webhook_secret
from pushkit.url import Url
from pushkit.webhook import Headers, WebhookRequest
from receiver.diagnosis.subject import ReceiverAtUrl
from receiver.listening.command import Listening, listening
from receiver.listening.handler import TRIAL_ISSUER, AcceptedSignatures, steps_of
from receiver.options import Schemes
from receiver.senders import SenderProfile
from receiver.steps import Result, Step, Trail
from receiver.testing import Answer, Draft, SigningAgent
from tests.eventually import eventually
from tests.served import answering
from tests.unit.receiver.serving.sockets import Client, connected
from tests.updates import working

TRIAL_KEY = generate_key(Algorithm.ES256)


class Terminal:
    """A running listener, an agent that posts to it, and its output."""

    def __init__(self, agent: SigningAgent, screen: Callable[[], str]) -> None:
        self.agent = agent
        self._screen = screen
        self._shown = ""

    async def post(self, draft: Draft) -> Answer:
        answer = await ReceiverAtUrl(draft.url).post(draft.request())
        assert answer is not None
        return answer

    def screen(self) -> str:
        self._shown += self._screen()
        return self._shown

    def arrivals(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.screen().splitlines()]


Open = Callable[..., contextlib.AbstractAsyncContextManager[Terminal]]


@pytest.fixture
def terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Open:
    @contextlib.asynccontextmanager
    async def run(
        *, any_key: bool = False, jwks: bool = False, as_json: bool = True, **changes: Any
    ) -> AsyncIterator[Terminal]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            path = changes.pop("path", "/a2a/push")
            agent = SigningAgent(webhook_url=f"{url}{path}")
            (tmp_path / "jwks.json").write_text(json.dumps(agent.jwks()))
            source = AcceptedSignatures(
                jwks=str(tmp_path / "jwks.json") if jwks else None,
                any_key=any_key,
                profile=changes.pop("profile", SenderProfile.STANDARD),
                issuer=changes.pop("issuer", None),
                schemes=changes.pop("schemes", Schemes()),
            )
            options = Listening(
                url=url,
                path=path,
                source=source,
                token=agent.token,
                trial_key=TRIAL_KEY.to_verification_key(),
                forward=changes.pop("forward", None),
                folder=changes.pop("folder", None),
                as_json=as_json,
                brief=False,
            )
            async with listening(options, listener, tmp_path):
                yield Terminal(agent, lambda: capsys.readouterr().out)

    return run


def results(arrival: dict[str, Any]) -> dict[str, bool | None]:
    return {step["step"]: step["holds"] for step in arrival["steps"]}


STEPS = (
    *("request", "sender", "signature", "time", "issuer", "audience", "ids", "token", "size"),
    *("body", "rate", "content", "replay", "task", "stored"),
)


@pytest.mark.parametrize("path", ["/a2a/push", "/a%20path"])
async def test_every_step_of_a_genuine_notification_is_shown(terminal: Open, path: str) -> None:
    async with terminal(jwks=True, issuer="https://agent.example.com", path=path) as listener:
        answer = await listener.post(listener.agent.draft("task-1"))
    [arrival] = listener.arrivals()
    assert (answer.status, arrival["status"], arrival["code"]) == (202, 202, "accepted")
    assert results(arrival) == dict.fromkeys(STEPS, True)
    assert (arrival["task_id"], arrival["seq"], arrival["state"]) == ("task-1", 1, "working")


SECRET = generate_webhook_secret()
UNSTATED = {
    Scheme.HTTP_MESSAGE_SIGNATURES: {"issuer"},
    Scheme.STANDARD_WEBHOOKS: {"issuer", "audience"},
}


@pytest.mark.parametrize("scheme", UNSTATED)
async def test_another_scheme_than_the_jwt_is_accepted_if_it_is_given(
    terminal: Open, tmp_path: Path, scheme: Scheme
) -> None:
    secrets = (SECRET,) if scheme is Scheme.STANDARD_WEBHOOKS else ()
    schemes = Schemes(names=(scheme,), webhook_secrets=secrets)
    async with terminal(jwks=schemes.by_key, schemes=schemes) as listener:
        agent = listener.agent
        async with PushSender(
            issuer=agent.issuer,
            keys=KeyRing.create(utc_now(), key=agent.key),
            database=tmp_path / "outbox.db",
            allow=["127.0.0.1:*"],
            options=SenderOptions(signing=Signing(schemes=[scheme], webhook_secrets=secrets)),
        ) as push:
            config = {"url": agent.webhook_url, "token": agent.token}
            await push.subscribe("task-1", config, version="1.0")
            await push.notify(working())
            [arrival] = await eventually(listener.arrivals)
        unsigned = await listener.post(replace(agent.draft("task-1"), signed=False))
    assert (arrival["code"], arrival["sender"]) == ("accepted", "agent")
    found = results(arrival)
    assert {name for name in STEPS if found[name] is None} == UNSTATED[scheme]
    assert False not in found.values()
    assert unsigned.status in (401, 403)


async def test_the_step_that_fails_is_shown_with_its_reason_and_nothing_after_it(
    terminal: Open,
) -> None:
    async with terminal(jwks=True, issuer="https://agent.example.com") as listener:
        draft = listener.agent.draft("task-1")
        await listener.post(replace(draft, audience="https://elsewhere.example.com/push"))
    [arrival] = listener.arrivals()
    found, reached = results(arrival), STEPS.index("audience")
    assert arrival["status"] in (401, 403, 422)
    assert found["audience"] is False
    assert "https://elsewhere.example.com/push" in arrival["steps"][reached]["says"]
    assert [found[name] for name in STEPS[:reached]] == [True] * reached
    assert [found[name] for name in STEPS[reached + 1 :]] == [None] * (len(STEPS) - reached - 1)
    assert arrival["steps"][STEPS.index("sender")]["says"] == "agent"


async def test_a_signature_that_cannot_be_read_may_be_of_any_sender_of_the_path(
    terminal: Open,
) -> None:
    async with terminal(jwks=True, issuer="https://agent.example.com") as listener:
        await listener.post(replace(listener.agent.draft("task-1"), header={"crit": ["exp"]}))
    [arrival] = listener.arrivals()
    assert results(arrival)["signature"] is False
    assert arrival["steps"][STEPS.index("sender")]["says"] == "unknown: trigger or agent"


async def test_a_retry_and_another_body_under_its_id_are_distinguished(terminal: Open) -> None:
    async with terminal(jwks=True) as listener:
        draft = listener.agent.draft("task-1")
        await listener.post(draft)
        await listener.post(draft)
        await listener.post(replace(draft, body=draft.body.replace(b"WORKING", b"FAILED")))
    assert [arrival["code"] for arrival in listener.arrivals()] == [
        "accepted",
        "duplicate",
        "id_conflict",
    ]
    [failed] = [each for each in listener.arrivals()[2]["steps"] if each["holds"] is False]
    assert failed["step"] == "replay"
    assert failed["says"] == "this id was accepted before with another body"


async def test_any_issuer_with_a_known_key_is_accepted_by_default(terminal: Open) -> None:
    async with terminal(jwks=True) as listener:
        draft = listener.agent.draft("task-1")
        await listener.post(draft)
        await listener.post(replace(listener.agent.draft("task-1"), issuer="urn:another"))
    assert [arrival["code"] for arrival in listener.arrivals()] == ["accepted"] * 2
    for arrival in listener.arrivals():
        assert results(arrival) == dict.fromkeys(STEPS, True) | {"issuer": None}


async def test_the_issuer_of_trigger_is_accepted_by_a_known_key_and_by_the_trial_key(
    terminal: Open,
) -> None:
    async with terminal(jwks=True) as listener:
        draft = replace(listener.agent.draft("task-1"), issuer=TRIAL_ISSUER)
        await listener.post(draft)
        await listener.post(replace(draft, delivery_id="d-2", key=TRIAL_KEY))
        await listener.post(
            replace(draft, delivery_id="d-3", key=SigningAgent(webhook_url=draft.url).key)
        )
    codes = [arrival["code"] for arrival in listener.arrivals()]
    assert codes == ["accepted", "accepted", "unknown_sender"]


async def test_any_key_is_accepted_and_everything_else_is_checked(terminal: Open) -> None:
    async with terminal(any_key=True) as listener:
        await listener.post(listener.agent.draft("task-1"))
        wrong = replace(listener.agent.draft("task-1"), audience="https://other.example.com/")
        await listener.post(wrong)
        await listener.post(replace(listener.agent.draft("task-1"), body_sent=b"{}"))
    accepted, *refused = listener.arrivals()
    assert results(accepted) == dict.fromkeys(STEPS, True) | {"issuer": None, "signature": None}
    assert [arrival["code"] for arrival in refused] == ["wrong_audience", "digest_mismatch"]


async def test_only_the_trial_key_is_accepted_by_default(terminal: Open) -> None:
    async with terminal() as listener:
        draft = listener.agent.draft("task-1")
        await listener.post(draft)
        await listener.post(replace(draft, issuer=TRIAL_ISSUER, key=TRIAL_KEY))
        await listener.post(replace(draft, issuer=TRIAL_ISSUER))
    codes = [arrival["code"] for arrival in listener.arrivals()]
    assert codes == ["unknown_sender", "accepted", "invalid_signature"]


async def test_an_sdk_that_signs_nothing_is_accepted_by_its_token(terminal: Open) -> None:
    async with terminal(profile=SenderProfile.UNSIGNED_SECRET_ONLY) as listener:
        draft = replace(listener.agent.draft("task-1"), signed=False)
        await listener.post(draft)
        await listener.post(replace(draft, token="another-token-altogether"))
    accepted, refused = listener.arrivals()
    assert (accepted["code"], refused["code"]) == ("accepted", "invalid_token")
    assert results(accepted)["signature"] is None


async def test_a_body_that_is_broken_is_answered_and_shown(terminal: Open) -> None:
    async with terminal(any_key=True) as run:
        request = run.agent.draft("task-1").request()
        fields = [*request.headers, ("Host", "x"), ("Transfer-Encoding", "chunked")]
        head = "".join(f"{name}: {value}\r\n" for name, value in fields)
        url = Url.parse(run.agent.webhook_url)
        async with connected(url.port) as client:
            await client.send(f"POST {url.target} HTTP/1.1\r\n{head}\r\nno size\r\n".encode())
            answer = await client.answer()
        [arrival] = run.arrivals()

    assert (answer.status, answer.code) == (400, "incomplete_body")
    assert (arrival["status"], arrival["code"]) == (400, "incomplete_body")


async def test_a_request_that_comes_to_no_step_is_shown_with_its_reason(terminal: Open) -> None:
    async with terminal(jwks=True) as run:
        await run.post(replace(run.agent.draft("task-1"), url=f"{run.agent.webhook_url}/other"))
        [arrival] = run.arrivals()
    assert (arrival["code"], set(results(arrival).values())) == ("not_found", {None})
    assert {each["says"] for each in arrival["steps"]} == {"not reached"}
    assert arrival["reason"] == "no sender posts to this path"


async def test_a_saved_request_is_whole_and_has_what_it_was_verified_with(
    terminal: Open, tmp_path: Path
) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    async with terminal(jwks=True, folder=folder) as listener:
        draft = listener.agent.draft("task-1")
        await listener.post(draft)
    [path] = folder.glob("*-0001-accepted.http")
    request = read_request(path.read_bytes())
    assert request.body == draft.body
    assert request.headers.one("webhook-id") == draft.delivery_id
    saved = circumstances_of(path)
    assert saved is not None
    assert (saved.audience, saved.answered) == (listener.agent.webhook_url, "202 accepted")
    assert json.dumps(saved.jwks).count(listener.agent.key.kid) == 1
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}


async def test_only_accepted_notifications_are_forwarded_byte_by_byte(
    terminal: Open, aiohttp_server: AiohttpServer
) -> None:
    came: list[tuple[dict[str, str], bytes]] = []

    async def hook(request: web.Request) -> web.Response:
        came.append((dict(request.headers), await request.read()))
        return web.Response(status=204)

    server = await aiohttp_server(answering(hook))
    async with terminal(jwks=True, forward=str(server.make_url("/hook"))) as listener:
        draft = listener.agent.draft("task-1")
        await listener.post(replace(draft, token="another-token-altogether"))
        await listener.post(draft)

        async def forwarded() -> bool:
            await asyncio.sleep(0)
            return bool(came)

        await eventually(forwarded)
    [(headers, body)] = came
    assert body == draft.body
    assert headers["webhook-id"] == draft.delivery_id
    assert headers["Authorization"].startswith("Bearer ")
    assert headers["Host"] == f"127.0.0.1:{server.port}"


async def test_a_sender_cannot_colour_the_lines_on_a_terminal(terminal: Open) -> None:
    async with terminal(any_key=True, as_json=False) as listener:
        draft = listener.agent.draft("task-\x1b[31m1")
        await listener.post(draft)
        await listener.post(replace(draft, token="another-token-altogether"))
    shown = listener.screen()
    assert "✓ audience" in shown
    assert "202 accepted" in shown
    assert "✗ token" in shown
    assert "not reached: size, body, rate, content, replay, task, stored" in shown
    assert "\x1b" not in shown
    assert listener.agent.token not in shown


@pytest.mark.parametrize("step", Step)
def test_a_refusal_is_shown_at_any_step(step: Step) -> None:
    request = WebhookRequest(target="/a2a/push", headers=Headers(), body=b"")
    trail = Trail()
    trail.begun, trail.reason = list(Step)[: list(Step).index(step) + 1], "as it was"
    steps = steps_of(
        request,
        trail,
        None,
        code="storage",
        possible="agent",
        source=AcceptedSignatures(issuer="https://agent.example.com"),
        now=utc_now(),
    )
    [failed] = [each for each in steps if each.result.holds is False]
    assert (failed.step, failed.found) == (step, "as it was")
    assert tuple(each.name for each in steps) == STEPS
    reached = [each.result is not Result.NOT_REACHED for each in steps]
    assert reached == [each in trail.begun for each in Step]


@pytest.mark.parametrize(
    ("addresses", "read"),
    [
        pytest.param(1, 4, id="of one address"),
        pytest.param(5, 8, id="of several"),
    ],
)
async def test_few_bodies_of_strangers_are_read_at_once(
    terminal: Open, addresses: int, read: int
) -> None:
    expecting = "POST /any HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n"
    async with terminal() as opened, contextlib.AsyncExitStack() as stack:
        answers = []
        for number in range(20):
            local = (f"127.0.0.{2 + number % addresses}", 0)
            port = Url.parse(opened.agent.webhook_url).port
            client = Client(*await asyncio.open_connection("127.0.0.1", port, local_addr=local))
            stack.callback(client.writer.close)
            await client.send(expecting.encode())
            answers.append((await client.answer()).status)
        assert Counter(answers) == {100: read, 404: 20 - read}

        draft = replace(opened.agent.draft("task-1"), issuer=TRIAL_ISSUER, key=TRIAL_KEY)
        assert (await opened.post(draft)).status == 202
