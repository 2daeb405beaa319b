"""An agent for tests of the gateway: its tasks change when a test says so."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.served import served

_CLOSE = object()
_REST = re.compile(r"/rest(?:/([^/]+))?(?:/message:(send|stream)|/tasks/([^/:]+)(:subscribe)?)")
NOT_FOUND = {"code": -32001, "message": "Task not found"}


class ScriptedAgent:
    """Speaks JSON-RPC of A2A 1.0 and 0.3, and knows one user for each token, if it asks.

    Attributes:
        origin: Where it is served.
        streams: Whether its card, and it, know streams.
        subscribes: Whether a stream can be joined later.
        lingers: For how long a stream stays open after its last event, in seconds.
        hold: What answers to requests for a task wait for; None to answer at once.
        held: How many waited.
        greeting: What a stream begins with, before its events.
        replays: Whether a stream that is joined begins with the task.
        mixes: Whether its streams are of 1.0 for clients of 0.3, too.
        users: The user of each bearer token; empty if everybody may see everything.
        received: Every request: its method of JSON-RPC (or path), its headers, its body.
    """

    def __init__(self) -> None:
        self.origin = ""
        self.streams = True
        self.subscribes = True
        self.greeting = b""
        self.replays = True
        self.mixes = False
        self.users: dict[str, str] = {}
        self.received: list[tuple[str, Any, bytes]] = []
        self.paths: list[str] = []  # of the requests, with their queries
        self.tasks: dict[str, dict[str, Any]] = {}
        self.owners: dict[str, str] = {}
        self.tenants: dict[str, str] = {}  # of tasks of HTTP+JSON
        self.lingers = 0.0
        self.hold: asyncio.Event | None = None
        self.held = 0
        self.answer: Any = None  # instead of a task, once
        self._numbers = itertools.count(1)
        self._streams: dict[str, list[asyncio.Queue[Any]]] = defaultdict(list)

    @property
    def card(self) -> dict[str, Any]:
        return {
            "name": "scripted",
            "url": f"{self.origin}/",
            "preferredTransport": "JSONRPC",
            "additionalInterfaces": [{"url": f"{self.origin}/rest", "transport": "HTTP+JSON"}],
            "protocolVersion": "0.3.0",
            "capabilities": {"streaming": self.streams},
            "skills": [],
        }

    @asynccontextmanager
    async def served(self, port: int = 0) -> AsyncIterator[ScriptedAgent]:
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", r"/{path:[\s\S]*}", self.handle)
        app.on_response_prepare.append(self._say_more)
        async with served(app, port) as origin:
            self.origin = origin
            yield self

    def asked(self, method: str) -> list[dict[str, Any]]:
        """The params of all requests with a method."""
        return [json.loads(body)["params"] for name, _, body in self.received if name == method]

    # --- what a test does ----------------------------------------------------------------------

    def status(self, task_id: str, state: str, text: str | None = None) -> None:
        """Change the state of a task; the streams learn it."""
        status: dict[str, Any] = {"state": state}
        if text is not None:
            status["message"] = {
                "messageId": f"m{next(self._numbers)}",
                "role": "agent",
                "parts": [{"text": text}],
            }
        self.tasks[task_id]["status"] = status
        self._tell(task_id, {"statusUpdate": {"taskId": task_id, "status": status}})

    def chunk(self, task_id: str, text: str) -> None:
        """Add a chunk to the task's artifact."""
        artifacts = self.tasks[task_id].setdefault("artifacts", [])
        append = bool(artifacts)
        if append:
            artifacts[0]["parts"].append({"text": text})
        else:
            artifacts.append({"artifactId": "a", "parts": [{"text": text}]})
        chunk = {"artifactId": "a", "parts": [{"text": text}]}
        update = {"taskId": task_id, "artifact": chunk, "append": append}
        self._tell(task_id, {"artifactUpdate": update})

    def babble(self, task_id: str) -> None:
        """Send an event of a kind that no version has."""
        self._tell(task_id, {"odd": {"taskId": task_id}})

    def break_streams(self, task_id: str) -> None:
        """Close the connections of all streams of a task, without their end."""
        for queue in self._streams.pop(task_id, []):
            queue.put_nowait(_CLOSE)

    def watchers(self, task_id: str) -> int:
        """How many streams of a task are open."""
        return len(self._streams[task_id])

    async def _say_more(self, _request: web.Request, response: web.StreamResponse) -> None:
        response.headers["Access-Control-Allow-Origin"] = "https://app.example.com"
        response.headers["ETag"] = '"of-its-body"'

    # --- the wire --------------------------------------------------------------------------------

    async def handle(  # noqa: PLR0911, PLR0912  # one for each call
        self, request: web.Request
    ) -> web.StreamResponse:
        body = await request.read()
        document = json.loads(body) if body[:1] == b"{" else {}
        method = document.get("method", request.path)
        self.received.append((method, request.headers.copy(), body))
        self.paths.append(request.path_qs)
        if request.path == "/.well-known/agent-card.json":
            return web.json_response(self.card)
        user = ""
        if self.users:
            token = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if token not in self.users:
                return web.Response(status=401)
            user = self.users[token]
        if request.path.endswith("/extendedAgentCard"):
            return web.json_response(self.card)
        if found := _REST.fullmatch(request.path):
            return await self._handle_rest(request, document, user, *found.groups())
        if "method" not in document:
            return web.Response(text=f"{request.method} {request.path_qs} {len(body)}")
        old = "/" in method
        params, number = document.get("params", {}), document.get("id")
        if method in ("agent/getAuthenticatedExtendedCard", "GetExtendedAgentCard"):
            return web.json_response({"jsonrpc": "2.0", "id": number, "result": self.card})
        if method in ("message/send", "SendMessage"):
            return self._answer(number, self._begun(params, user), old=old)
        if method in ("message/stream", "SendStreamingMessage"):
            if not self.streams:
                return self._error(number, {"code": -32004, "message": "no streams"})
            if self.answer is not None:
                return await self._stream(request, number, None, old=old)
            task = self._begun(params, user)
            return await self._stream(request, number, task["id"], old=old)
        task_id = params.get("id", "")
        if task_id not in self.tasks or self.owners.get(task_id, user) != user:
            return self._error(number, NOT_FOUND)
        if method in ("tasks/resubscribe", "SubscribeToTask"):
            if not self._may_subscribe(task_id):
                return self._error(number, {"code": -32004, "message": "cannot"})
            is_told = self.replays
            return await self._stream(request, number, task_id, old=old, is_told=is_told)
        if self.hold is not None:
            self.held += 1
            await self.hold.wait()
        result = self.tasks[task_id]
        return self._answer(number, result, old=old, is_task=True)

    async def _handle_rest(  # noqa: PLR0917  # as the path has them
        self,
        request: web.Request,
        document: dict[str, Any],
        user: str,
        tenant: str | None,
        act: str | None,
        task_id: str | None,
        subscribes: str | None,
    ) -> web.StreamResponse:
        """HTTP+JSON below `/rest`, with tenants."""
        if act is not None:
            task = self._begun(document, user)
            self.tenants[task["id"]] = tenant or ""
            if act == "stream":
                return await self._stream(request, None, task["id"])
            return web.json_response({"task": task})
        if task_id not in self.tasks or self.tenants.get(task_id, "") != (tenant or ""):
            return web.json_response({"error": {"code": 404}}, status=404)
        if subscribes:
            return await self._stream(request, None, task_id)
        return web.json_response(self.tasks[task_id])

    def _may_subscribe(self, _task_id: str) -> bool:
        return self.subscribes

    def _begun(self, params: dict[str, Any], user: str) -> dict[str, Any]:
        task_id = params["message"].get("taskId") or f"task-{next(self._numbers)}"
        task = self.tasks.setdefault(
            task_id,
            {"id": task_id, "contextId": "c", "status": {"state": "TASK_STATE_SUBMITTED"}},
        )
        if task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED":
            task["status"] = {"state": "TASK_STATE_WORKING"}
        self.owners.setdefault(task_id, user)
        return task

    def _answer(
        self, number: Any, task: dict[str, Any], *, old: bool, is_task: bool = False
    ) -> web.Response:
        result = _old(task) if old else task if is_task else {"task": task}
        return web.json_response({"jsonrpc": "2.0", "id": number, "result": result})

    def _error(self, number: Any, error: dict[str, Any]) -> web.Response:
        return web.json_response({"jsonrpc": "2.0", "id": number, "error": error})

    def _tell(self, task_id: str, update: dict[str, Any]) -> None:
        for queue in self._streams[task_id]:
            queue.put_nowait(update)

    async def _stream(
        self,
        request: web.Request,
        number: Any,
        task_id: str | None,
        *,
        old: bool = False,
        is_told: bool = True,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        queue: asyncio.Queue[Any] = asyncio.Queue()
        update = self.answer if task_id is None else {"task": self.tasks[task_id]}
        update = json.loads(json.dumps(update))  # as it is now: what comes next is in the queue
        if task_id is not None:
            self._streams[task_id].append(queue)
        try:
            await response.prepare(request)
            await response.write(self.greeting)
            if not is_told:
                update = await queue.get()
            while True:
                result = _old_update(update) if old and not self.mixes else update
                said = {"jsonrpc": "2.0", "id": number, "result": result}
                if number is None:  # HTTP+JSON
                    said = result
                await response.write(f"data: {json.dumps(said)}\n\n".encode())
                if task_id is None or _is_over(update):
                    await asyncio.sleep(self.lingers)
                    return response
                update = await queue.get()
                if update is _CLOSE:
                    assert request.transport is not None
                    request.transport.abort()
                    return response
        finally:
            if task_id is not None and queue in self._streams[task_id]:
                self._streams[task_id].remove(queue)


def _is_over(update: dict[str, Any]) -> bool:
    [(_, value)] = update.items()
    state = value.get("status", {}).get("state", "")
    return state in ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_INPUT_REQUIRED")


def _old(task: dict[str, Any]) -> dict[str, Any]:
    """A task of 1.0 as 0.3 has it."""
    text = json.dumps(task).replace("TASK_STATE_INPUT_REQUIRED", "input-required")
    for state in ("SUBMITTED", "WORKING", "COMPLETED", "FAILED"):
        text = text.replace(f"TASK_STATE_{state}", state.lower())
    old = json.loads(text.replace('{"text":', '{"kind": "text", "text":'))
    return {"kind": "task", **old}


def _old_update(update: dict[str, Any]) -> dict[str, Any]:
    [(name, value)] = update.items()
    old = {**_old(value), "contextId": "c"}
    if name == "task":
        return old
    kind = {"statusUpdate": "status-update", "artifactUpdate": "artifact-update"}[name]
    return {**old, "kind": kind} | ({"final": _is_over(update)} if "status" in value else {})
