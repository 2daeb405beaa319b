"""What docs/interop.md says is wrong elsewhere and no red row shows, shown by the releases."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Any

from aiohttp import ClientSession, web

from pushkit.bounded_json import JsonObject
from pushkit.cards import EVERY_SDK, sign_card, verify_card
from tests.ports import free_port
from tests.served import answering, served
from tests.verification.interop.agents import Agent, agent_of, command_of
from tests.verification.interop.cards import peers as card_peers
from tests.verification.interop.client import Client
from tests.verification.interop.environments import FOLDER, ROOT, cargo_program
from tests.verification.interop.gateway_cells import LANGGRAPH, LANGGRAPH_PATH
from tests.verification.interop.processes import TOKEN, MismatchError, running
from tests.verification.interop.verify_programs import VECTORS, verdicts_of

__all__ = ["DEFECTS", "Defect"]

_GRACE = 3.0  # seconds, for what is not to come


@dataclass(frozen=True, slots=True)
class Defect:
    """What is wrong at a release.

    Attributes:
        peer: The release.
        what: What is wrong, in a few words.
        shown: Raises MismatchError if it is not so, or no longer.
    """

    peer: str
    what: str
    shown: Callable[[], Awaitable[None]]


def _so(fact: bool, found: object) -> None:
    if not fact:
        raise MismatchError(f"not so, or no longer: {found}"[:300])


async def _heard(agent: Agent, text: str = "hi", **config: Any) -> list[Mapping[str, str]]:
    """Let an agent do a task, and return the heads of all that its webhook gets."""
    heads: list[Mapping[str, str]] = []

    async def hear(request: web.Request) -> web.Response:
        await request.read()
        heads.append({name.lower(): value for name, value in request.headers.items()})
        return web.Response()

    port = free_port()
    async with (
        served(answering(hear)) as base,
        running(*agent.command, "--port", str(port), port=port),
    ):
        client = Client(url=f"http://127.0.0.1:{port}/", version=agent.version)
        registered: JsonObject = {"url": f"{base}/hook", "token": TOKEN, **config}
        await client.send(text, stream=agent.stream, config=registered)
        await asyncio.sleep(_GRACE)
    return heads


async def _stream_without_task() -> None:
    agent = await asyncio.to_thread(agent_of, "a2a-java 0.3.3.Final", stream=True)
    _so(await _heard(agent, "a status first") == [], "the webhook heard something")
    _so(await _heard(agent) != [], "the webhook hears nothing in any case")


async def _jwt_without_audience() -> None:
    agent = await asyncio.to_thread(agent_of, "trpc-a2a-go 0.2.5")
    [first, *_] = await _heard(agent)
    payload = first["authorization"].split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(f"{payload}=="))
    _so({"aud", "exp", "jti"}.isdisjoint(claims), sorted(claims))


async def _token_dropped() -> None:
    agent = await asyncio.to_thread(agent_of, "@a2a-js/sdk 1.3.0")
    authentication = {"scheme": "Bearer", "credentials": "c"}
    [first, *_] = await _heard(agent, authentication=authentication)
    _so(TOKEN not in first.values() and first["authorization"] == "Bearer c", sorted(first))


async def _scheme_dropped(peer: str) -> None:
    agent = await asyncio.to_thread(agent_of, peer)
    schemes: JsonObject = (
        {"schemes": ["ApiKey"]} if agent.version == "0.3" else {"scheme": "ApiKey"}
    )
    [first, *_] = await _heard(agent, authentication={**schemes, "credentials": "key-1"})
    _so(TOKEN in first.values() and not any("key-1" in v for v in first.values()), sorted(first))


async def _crit_passed_over() -> None:
    source = FOLDER / "sources" / "verify-without-crit"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(
        ROOT / "examples" / "verify" / "rust", source, ignore=shutil.ignore_patterns("target")
    )
    code = source / "src" / "verify.rs"
    text = code.read_text("utf-8")
    check = text[text.index("    if head.crit.is_some()") : text.index("    let kid = ")]
    code.write_text(text.replace(check, ""), "utf-8")
    command = await asyncio.to_thread(cargo_program, source, "verify")
    said = await asyncio.to_thread(verdicts_of, (*command, str(VECTORS)))
    accepted = [name for name in ("crit", "crit-exp", "b64-false") if said[name]["accepted"]]
    _so(len(accepted) == 3, f"accepted: {accepted}")


async def _schemes_not_signed() -> None:
    peer = next(p for p in card_peers.PEERS if p.name == "@a2a-js/sdk 1.3.0 (instance)")
    card = card_peers.cards_of(peer)["c21_spec_85_sample"]
    signed = sign_card(card, card_peers.KEY, EVERY_SDK, now=datetime.now(UTC)).card
    changed = json.loads(
        json.dumps(signed).replace("https://accounts.google.com", "https://evil.example")
    )
    _so(changed != signed, "the sample has no such URL")
    answer = await asyncio.to_thread(card_peers.ask, peer, verify={"changed": changed})
    _so(answer["verified"]["changed"] is None, answer["verified"])


async def _signed_over_ascii() -> None:
    peer = next(p for p in card_peers.PEERS if p.name == "a2a-sdk 1.0.3")
    name = "c02_non_ascii"
    answer = await asyncio.to_thread(
        card_peers.ask, peer, sign={name: card_peers.cards_of(peer)[name]}
    )
    content = json.dumps(answer["signed"][name], ensure_ascii=False).encode()
    verdict = verify_card(content, card_peers.TRUST, now=datetime.now(UTC))
    _so(not verdict.verified, "it verifies without python-ascii")


async def _configuration_refused() -> None:
    port = free_port()
    message = {"kind": "message", "messageId": "1", "role": "user", "parts": []}
    params = {"message": message, "configuration": {"blocking": False}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}
    with tempfile.TemporaryDirectory() as folder:
        program = ("pydantic-ai 2.62.0", "page_agent.py", "pydantic-ai")
        made = await asyncio.to_thread(command_of, *program)
        command = (*made, "--port", str(port), "--folder", folder)
        async with (
            running(*command, port=port),
            ClientSession() as session,
            session.post(f"http://127.0.0.1:{port}/", json=call) as answer,
        ):
            _so(answer.status == HTTPStatus.INTERNAL_SERVER_ERROR, answer.status)


async def _artifacts_left_out() -> None:
    agent = await asyncio.to_thread(agent_of, LANGGRAPH, "plain_agent.py", "langgraph")
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = (*agent.command, "--port", str(port), "--folder", folder)
        async with running(*command, port=port):
            client = Client(url=f"http://127.0.0.1:{port}/{LANGGRAPH_PATH}", version="1.0")
            task = await client.send("hi")
            later = await client.task(str(task["id"]))
    _so(bool(task.get("artifacts")) and not later.get("artifacts"), sorted(later))


DEFECTS = (
    Defect(
        "a2a-java 0.3.3.Final",
        "a stream's config is dropped if no task comes first",
        _stream_without_task,
    ),
    Defect("trpc-a2a-go 0.2.5", "a JWT without aud, exp and jti", _jwt_without_audience),
    Defect("@a2a-js/sdk 1.3.0", "no token beside credentials", _token_dropped),
    *(
        Defect(
            name,
            "no credentials of a scheme that is not Bearer or Basic",
            partial(_scheme_dropped, name),
        )
        for name in ("a2a-go 0.3.15", "a2a-go 2.4.0", "a2a-server-lf 0.5.3")
    ),
    Defect("fasta2a 2.1.1", "a configuration needs acceptedOutputModes", _configuration_refused),
    Defect("langgraph-api 0.16.7", "GetTask has no artifacts", _artifacts_left_out),
    Defect("jsonwebtoken 11.1.0", "crit is passed over", _crit_passed_over),
    Defect(
        "@a2a-js/sdk 1.3.0", "securitySchemes can be changed under a signature", _schemes_not_signed
    ),
    Defect("a2a-sdk 1.0.3", "cards are signed over ASCII", _signed_over_ascii),
)
