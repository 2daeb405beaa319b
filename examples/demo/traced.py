"""Runs the demo's processes with OpenTelemetry's SDK, and reads the trace that they make.

    python examples/demo/traced.py agent --port 8001 --allow '127.0.0.1:*'
    python examples/demo/traced.py receiver serve --config receiver.toml

They do the same as `examples/a2a_sdk_agent/agent.py` and `receiver`, and write their spans to files
in the current folder, as lines of JSON. To send spans to a collector, use
`opentelemetry-instrument`, or an exporter in place of the one in `record`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

SPANS = "*.spans.jsonl"

Scope = MutableMapping[str, Any]
App = Callable[
    [Scope, Callable[..., Awaitable[Any]], Callable[..., Awaitable[Any]]], Awaitable[None]
]


def record(process: str, folder: Path) -> trace.Tracer:
    """Write the spans of this process into a folder from now on."""
    provider = TracerProvider(resource=Resource.create({"service.name": process}))
    file = (folder / SPANS.replace("*", process)).open("a", encoding="utf-8")
    exporter = ConsoleSpanExporter(
        out=file, formatter=lambda span: span.to_json(indent=None) + "\n"
    )
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return trace.get_tracer("demo")


# --- the processes -----------------------------------------------------------------------------


def within_the_callers_trace(app: App, tracer: trace.Tracer) -> App:
    """Wrap an application so that each POST is a span in the trace of its caller."""

    async def traced(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        with tracer.start_as_current_span("request", propagate.extract(headers)):
            await app(scope, receive, send)

    return traced


def serve_agent(arguments: list[str]) -> None:
    """Serve the agent of `examples/a2a_sdk_agent`."""
    import uvicorn

    from pushkit import PushSender
    from pushkit.telemetry.tracing import Tracing

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "a2a_sdk_agent"))
    from agent import build_app

    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--allow", action="append", default=[])
    given = parser.parse_args(arguments)
    tracer = record("agent", Path.cwd())
    url = f"http://127.0.0.1:{given.port}"
    push = PushSender(
        issuer=url, keys="keys.json", database="outbox.db", allow=given.allow, tracing=Tracing()
    )
    app = within_the_callers_trace(build_app(url, push), tracer)
    uvicorn.run(app, port=given.port, log_level="warning")


def serve_receiver(arguments: list[str]) -> None:
    """Run the command `receiver`."""
    from receiver.cli import cli

    record("receiver", Path.cwd())
    cli(arguments)


# --- the trace ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span that was read from a file."""

    process: str
    trace_id: str
    id: str
    parent: str | None
    name: str
    start: datetime
    end: datetime
    facts: dict[str, object]

    @classmethod
    def read(cls, line: str) -> Span:
        """Read a span from a line."""
        span = json.loads(line)
        return cls(
            process=span["resource"]["attributes"]["service.name"],
            trace_id=span["context"]["trace_id"],
            id=span["context"]["span_id"],
            parent=span["parent_id"],
            name=span["name"],
            start=datetime.fromisoformat(span["start_time"]),
            end=datetime.fromisoformat(span["end_time"]),
            facts=span["attributes"],
        )


def spans_in(folder: Path, task_id: str) -> list[Span]:
    """Return the spans of a task's trace, ordered by their start."""
    lines = [line for path in folder.glob(SPANS) for line in path.read_text("utf-8").splitlines()]
    spans = [Span.read(line) for line in lines]
    of_task = {each.trace_id for each in spans if each.facts.get("pushkit.task") == task_id}
    return sorted((each for each in spans if each.trace_id in of_task), key=lambda each: each.start)


def without_the_sdks(spans: list[Span]) -> list[Span]:
    """Leave out the internal spans of a2a-sdk; their children move up."""
    above = {each.id: each.parent for each in spans}
    kept = {each.id for each in spans if not each.name.startswith("a2a.")}

    def shown(parent: str | None) -> str | None:
        while parent in above and parent not in kept:
            parent = above[parent]
        return parent

    return [replace(each, parent=shown(each.parent)) for each in spans if each.id in kept]


def tree(spans: list[Span]) -> Iterator[str]:
    """Yield the lines of a tree: the process, the span, when it began, and how long it took."""
    known = {each.id for each in spans}
    began = min(each.start for each in spans)

    def below(parent: str | None, depth: int) -> Iterator[str]:
        for each in spans:
            if (each.parent if each.parent in known else None) == parent:
                name = "  " * depth + each.name
                start, took = (
                    _milliseconds(each.start - began),
                    _milliseconds(each.end - each.start),
                )
                yield f"{each.process:10} {name:38} {start:>9} {took:>9}  {_result(each)}".rstrip()
                yield from below(each.id, depth + 1)

    yield f"{'process':10} {'span':38} {'began at':>9} {'took':>9}"
    yield from below(None, 0)


def _milliseconds(span: timedelta) -> str:
    return f"{span / timedelta(milliseconds=1):.1f} ms"


def _result(span: Span) -> str:
    names = ("pushkit.status", "pushkit.code", "pushkit.callback", "error.type")
    return " ".join(str(span.facts[name]) for name in names if name in span.facts)


if __name__ == "__main__":
    {"agent": serve_agent, "receiver": serve_receiver}[sys.argv[1]](sys.argv[2:])
