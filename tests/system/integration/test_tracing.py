"""One trace of one update: notify, two attempts, the receiver, and its callback after a restart."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pytest_aiohttp.plugin import AiohttpServer
from tenacity import stop_after_attempt

from pushkit import (
    DeliveryState,
    KeyRing,
    PushSender,
    SenderOptions,
    StatusUpdate,
    TaskState,
    TaskStatus,
)
from pushkit.events import AttemptMade, Event
from pushkit.scheduling.retry import RetryPolicy, wait_schedule
from pushkit.telemetry.tracing import Tracing
from pushkit.webhook import Headers, WebhookRequest, read_traceparent, trace_id_of
from receiver import InboxStatus, Notification, Receiver, TaskPolicy, TrustedSender
from tests.emitted import emitted
from tests.eventually import eventually
from tests.ports import free_port
from tests.served import answering

TOKEN = "a-token-that-nobody-may-read"
UPDATE = StatusUpdate(
    task_id="task-1", context_id="c", status=TaskStatus(state=TaskState.COMPLETED)
)


@dataclass
class Scene:
    """An agent and a receiver, whose spans are kept, and a webhook that fails at first."""

    folder: Path
    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    ring: KeyRing = field(default_factory=lambda: KeyRing.create(datetime.now(UTC)))
    port: int = field(default_factory=free_port)
    events: list[Event] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = Tracing(self.provider)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def sender(self, tracing: Tracing | None) -> PushSender:
        """Return a sender as another process has it."""
        retry = RetryPolicy(wait=wait_schedule((0.0, 0.0)), stop=stop_after_attempt(3))
        return PushSender(
            issuer="https://agent.example.com",
            keys=self.ring,
            database=self.folder / "outbox.db",
            allow=["127.0.0.1:*"],
            options=SenderOptions(retry=retry),
            on_event=self.events.append,
            tracing=tracing,
        )

    def receiver(self) -> Receiver:
        """Return a receiver as another process has it."""
        now = datetime.now(UTC)
        keys = [each.key.to_verification_key() for each in self.ring.published(now)]
        trusted = TrustedSender(
            name="agent",
            issuer="https://agent.example.com",
            keys=keys,
            tokens=(TOKEN,),
            tasks=TaskPolicy.ANY,
        )
        return Receiver(
            url=self.url,
            senders=[trusted],
            database=self.folder / "inbox.db",
            tracing=self.tracing,
        )

    async def enqueue(self, tracing: Tracing | None) -> None:
        """Enqueue in a process that delivers nothing, and is gone then."""
        sender = self.sender(tracing)
        await sender.open()
        await sender.subscribe(
            "task-1", {"url": f"{self.url}/a2a/push", "token": TOKEN}, version="1.0"
        )
        await sender.notify(UPDATE)
        await sender.close()

    def spans(self) -> dict[str, list[ReadableSpan]]:
        found: dict[str, list[ReadableSpan]] = {}
        for span in self.exporter.get_finished_spans():
            found.setdefault(span.name, []).append(span)
        return found


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def serve(scene: Scene, receiver: Receiver, aiohttp_server: AiohttpServer) -> None:
    """Let a webhook fail once, and then be the receiver's."""

    async def answer(request: web.Request) -> web.Response:
        scene.headers += request.headers.getall("traceparent", [])
        if len(scene.headers) == 1:
            return web.Response(status=500)
        headers = Headers(request.headers.items())
        body = await request.read()
        found = await receiver.receive(
            WebhookRequest(target=request.raw_path, headers=headers, body=body)
        )
        return web.Response(status=found.status)

    await aiohttp_server(answering(answer), port=scene.port)


async def delivered(worker: PushSender) -> bool:
    [delivery] = await worker.deliveries("task-1")
    return delivery.state is DeliveryState.DELIVERED


async def test_an_update_is_one_trace_across_processes_retries_and_restarts(
    scene: Scene, aiohttp_server: AiohttpServer
) -> None:
    await scene.enqueue(scene.tracing)
    before = scene.receiver()
    await before.open()  # it takes in, and calls nobody
    await serve(scene, before, aiohttp_server)
    async with scene.sender(scene.tracing) as worker:
        await eventually(lambda: delivered(worker))
    await before.close()
    after = scene.receiver()
    called: list[Notification] = []

    @after.on_status
    async def done(notification: Notification) -> None:
        called.append(notification)

    async with after:

        async def called_back() -> list[ReadableSpan]:
            return scene.spans().get("pushkit callback", [])

        await eventually(called_back)

    spans = scene.spans()
    [notify], [accept], [callback] = (
        spans[f"pushkit {name}"] for name in ("notify", "accept", "callback")
    )
    failed, succeeded = spans["pushkit attempt"]
    assert len({span.context.trace_id for each in spans.values() for span in each}) == 1
    parents = [each.parent.span_id if each.parent else None for each in (failed, succeeded)]
    assert parents == [notify.context.span_id] * 2
    links = {
        span.context.span_id: [link.context.span_id for link in span.links]
        for span in (failed, succeeded, accept, callback)
    }
    assert links == {
        failed.context.span_id: [notify.context.span_id],
        succeeded.context.span_id: [notify.context.span_id],
        accept.context.span_id: [],  # its parent has just sent it
        callback.context.span_id: [accept.context.span_id],
    }
    assert accept.parent is not None
    assert accept.parent.span_id == succeeded.context.span_id
    assert callback.parent is not None
    assert callback.parent.span_id == accept.context.span_id
    assert (failed.attributes or {})["error.type"] == "status_500"
    of_callback = callback.attributes or {}
    names = ("pushkit.sender", "pushkit.task")
    assert [of_callback[name] for name in names] == ["agent", "task-1"]
    told_in_all = str([span.attributes for each in spans.values() for span in each])
    assert TOKEN not in told_in_all
    assert len(called) == 1

    trace_id = f"{notify.context.trace_id:032x}"
    assert [trace_id_of(header) for header in scene.headers] == [trace_id] * 2
    assert {event.trace_id for event in emitted(scene.events, AttemptMade)} == {trace_id}


class Hostile(SpanProcessor):
    """Raises at the one end of a span or the other."""

    def __init__(self, end: str, error: type[BaseException]) -> None:
        self._end = end
        self._error = error

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        del span, parent_context
        if self._end == "start":
            raise self._error("canary")

    def on_end(self, span: ReadableSpan) -> None:
        del span
        if self._end == "end":
            raise self._error("canary")


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError])
@pytest.mark.parametrize("end", ["start", "end"])
async def test_a_span_that_fails_takes_nothing_with_it(
    scene: Scene,
    aiohttp_server: AiohttpServer,
    caplog: pytest.LogCaptureFixture,
    end: str,
    error: type[BaseException],
) -> None:
    scene.provider.add_span_processor(Hostile(end, error))
    applications = trace.SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=trace.TraceFlags(1))
    with trace.use_span(trace.NonRecordingSpan(applications)):
        await scene.enqueue(scene.tracing)
    receiver = scene.receiver()
    called: list[Notification] = []

    @receiver.on_status
    async def done(notification: Notification) -> None:
        called.append(notification)

    async with receiver, scene.sender(scene.tracing) as worker:
        await serve(scene, receiver, aiohttp_server)
        await eventually(lambda: delivered(worker))

        async def ended() -> bool:
            return (await receiver.inbox.stats()).statuses[InboxStatus.DONE] == 1

        await eventually(ended)

    assert len(called) == 1
    assert [each.outcome for each in emitted(scene.events, AttemptMade)] == ["retry", "delivered"]
    lines = {each.getMessage() for each in caplog.records if each.name == "pushkit.telemetry"}
    assert lines == {f"a span failed at its {end}: the trace has a gap"}
    assert {trace_id_of(each) for each in scene.headers} == {f"{0xABC:032x}"}


async def test_a_worker_that_makes_no_spans_hands_the_trace_on(
    scene: Scene, aiohttp_server: AiohttpServer
) -> None:
    await scene.enqueue(scene.tracing)
    receiver = scene.receiver()
    await receiver.open()
    await serve(scene, receiver, aiohttp_server)
    async with scene.sender(None) as worker:
        await eventually(lambda: delivered(worker))
    [notify], [accept] = scene.spans()["pushkit notify"], scene.spans()["pushkit accept"]
    assert accept.context.trace_id == notify.context.trace_id
    await receiver.close()


async def test_without_a_trace_no_header_is_sent(
    scene: Scene, aiohttp_server: AiohttpServer
) -> None:
    await scene.enqueue(None)
    receiver = scene.receiver()
    await receiver.open()
    await serve(scene, receiver, aiohttp_server)
    async with scene.sender(None) as worker:
        await eventually(lambda: delivered(worker))
    assert scene.headers == []
    await receiver.close()


@pytest.mark.parametrize(
    "values",
    [
        [],
        ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"] * 2,
        ["00-00000000000000000000000000000000-b7ad6b7169203331-01"],
        ["00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01"],
        ["00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01"],
        ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n"],
        ["canary"],
    ],
)
def test_what_is_no_traceparent_is_left_alone(values: list[str]) -> None:
    assert read_traceparent(values) is None


def test_a_traceparent_is_read() -> None:
    value = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert read_traceparent([value]) == value
    assert trace_id_of(value) == "0af7651916cd43dd8448eb211c80319c"
