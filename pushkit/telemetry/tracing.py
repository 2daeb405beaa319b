"""`Tracing`: spans of OpenTelemetry, from `notify()` over each attempt to each callback.

The context travels as `traceparent` (W3C Trace Context): stored with the delivery, sent with every
attempt, stored with the notification. So it outlives processes, and retries a day later belong to
the same trace. What begins with a stored context is a child of it, and linked to it besides, as the
semantic conventions of messaging want: an attempt to `notify()`, a callback to what was accepted.
OpenTelemetry is needed where spans are made: `pip install 'pushkit[otel]'`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pushkit.errors import ConfigError, PushkitError
from pushkit.logs import RepeatedLog
from pushkit.version import __version__

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as exc:  # said where somebody asks for it
    raise ConfigError("tracing: OpenTelemetry is missing: pip install 'pushkit[otel]'") from exc

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanKind, TracerProvider
    from opentelemetry.util.types import AttributeValue

_log = logging.getLogger("pushkit.telemetry")

_FORMAT = TraceContextTextMapPropagator()
# Whoever is cancelled hears of it where they wait, not in what is called.
_FAILURES = (Exception, asyncio.CancelledError)


class TracedSpan:
    """A span that runs."""

    def __init__(self, span: Span) -> None:
        self._span = span

    @property
    def traceparent(self) -> str | None:
        """The context of what follows from it."""
        carrier: dict[str, str] = {}
        _FORMAT.inject(carrier, trace.set_span_in_context(self._span))
        return carrier.get("traceparent")

    def note(self, **facts: AttributeValue | None) -> None:
        """Add facts, each under `pushkit.`; None is left out."""
        for name, value in facts.items():
            if value is not None:
                self._span.set_attribute(f"pushkit.{name}", value)

    def fail(self, error: str) -> None:
        """Say that it failed, with a code."""
        self._span.set_status(trace.StatusCode.ERROR, error)
        self._span.set_attribute("error.type", error)


class Tracing:
    """Makes spans. One that fails is logged, and takes nothing with it that it was to show.

    Args:
        provider: Where they go; by default the application's own, as OpenTelemetry knows it.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("pushkit", __version__, tracer_provider=provider)
        self._faults = RepeatedLog(_log)

    def notifying(self, task_id: str) -> contextlib.AbstractContextManager[TracedSpan]:
        """Run `notify()` within the span that is current, if any."""
        return self._span("pushkit notify", trace.SpanKind.PRODUCER, {"task": task_id})

    def attempting(
        self, traceparent: str | None, **facts: AttributeValue
    ) -> contextlib.AbstractContextManager[TracedSpan]:
        """Make an attempt within the trace of its delivery."""
        stored = _context_of(traceparent)
        return self._span("pushkit attempt", trace.SpanKind.CLIENT, facts, stored, linked=True)

    def accepting(
        self, traceparent: str | None, **facts: AttributeValue | None
    ) -> contextlib.AbstractContextManager[TracedSpan]:
        """Accept a verified notification within the trace of its attempt."""
        received = _context_of(traceparent)
        return self._span("pushkit accept", trace.SpanKind.SERVER, facts, received)

    def calling(
        self, traceparent: str | None, **facts: AttributeValue | None
    ) -> contextlib.AbstractContextManager[TracedSpan]:
        """Call a callback within the trace of its notification."""
        stored = _context_of(traceparent)
        return self._span("pushkit callback", trace.SpanKind.CONSUMER, facts, stored, linked=True)

    @contextlib.contextmanager
    def _span(
        self,
        name: str,
        kind: SpanKind,
        facts: Mapping[str, AttributeValue | None],
        context: Context | None = None,
        *,
        linked: bool = False,
    ) -> Iterator[TracedSpan]:
        """Run within a span: of a context, and linked to it; or (None) of the current one."""
        origin = trace.get_current_span(context).get_span_context()
        links = [trace.Link(origin)] if linked and origin.is_valid else None
        try:
            span = self._tracer.start_span(name, context, kind, links=links)
        except _FAILURES as exc:  # of a sampler or a span processor
            self._tell("start", exc)
            span = trace.NonRecordingSpan(origin)  # what follows belongs to the trace still
        found = TracedSpan(span)
        found.note(**facts)
        try:
            # What an exception says stays here: its words may hold a secret.
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield found
        except Exception as exc:
            found.fail(exc.code if isinstance(exc, PushkitError) else type(exc).__name__)
            raise
        finally:
            try:
                span.end()
            except _FAILURES as exc:  # of a span processor
                self._tell("end", exc)

    def _tell(self, end: str, exc: BaseException) -> None:
        message = "a span failed at its %s: the trace has a gap"
        self._faults.say(end, logging.ERROR, message, end, exc_info=exc)


def _context_of(traceparent: str | None) -> Context:
    """Return the context that a header says; an empty one where there is none."""
    return _FORMAT.extract({"traceparent": traceparent or ""}, Context())
