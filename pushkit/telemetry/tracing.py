"""`Tracing`: OpenTelemetry spans of `notify()`, of each attempt and of each callback.

The context travels as `traceparent` (W3C Trace Context): it is stored with the delivery, sent with
every attempt, and stored with the notification, so a retry in another process a day later still
belongs to the trace. A span with a stored context is its child, and is linked to it as well, as the
semantic conventions of messaging recommend: an attempt to `notify()`, a callback to its acceptance.
Needs OpenTelemetry: `pip install '.[otel]'`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pushkit.errors import PushkitError
from pushkit.lazy import from_extra
from pushkit.logs import RepeatedLog
from pushkit.version import __version__

with from_extra("otel", "tracing: OpenTelemetry is missing"):
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanKind, TracerProvider
    from opentelemetry.util.types import AttributeValue

_log = logging.getLogger("pushkit.telemetry")

_FORMAT = TraceContextTextMapPropagator()
# A cancellation of this task is raised only where it awaits; here it is an error of the callee.
_FAILURES = (Exception, asyncio.CancelledError)


class TracedSpan:
    """A span in progress."""

    def __init__(self, span: Span) -> None:
        self._span = span

    @property
    def traceparent(self) -> str | None:
        """The context for spans that follow from this one."""
        carrier: dict[str, str] = {}
        _FORMAT.inject(carrier, trace.set_span_in_context(self._span))
        return carrier.get("traceparent")

    def note(self, **facts: AttributeValue | None) -> None:
        """Add attributes, each as `pushkit.<name>`; skips None."""
        for name, value in facts.items():
            if value is not None:
                self._span.set_attribute(f"pushkit.{name}", value)

    def fail(self, error: str) -> None:
        """Mark the span as failed, with a code."""
        self._span.set_status(trace.StatusCode.ERROR, error)
        self._span.set_attribute("error.type", error)


class Tracing:
    """Makes spans; a failure of OpenTelemetry is logged, and does not affect the traced work.

    Args:
        provider: Where spans go; by default to OpenTelemetry's global provider.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("pushkit", __version__, tracer_provider=provider)
        self._faults = RepeatedLog(_log)

    def notifying(self, task_id: str) -> contextlib.AbstractContextManager[TracedSpan]:
        """Trace `notify()`, as a child of the current span, if any."""
        return self._span("pushkit notify", trace.SpanKind.PRODUCER, {"task": task_id})

    def attempting(
        self, traceparent: str | None, **facts: AttributeValue
    ) -> contextlib.AbstractContextManager[TracedSpan]:
        """Trace an attempt, as a child of its delivery's `notify()`."""
        stored = _context_of(traceparent)
        return self._span("pushkit attempt", trace.SpanKind.CLIENT, facts, stored, linked=True)

    def accepting(
        self, traceparent: str | None, **facts: AttributeValue | None
    ) -> contextlib.AbstractContextManager[TracedSpan]:
        """Trace the acceptance of a verified notification, as a child of its attempt."""
        received = _context_of(traceparent)
        return self._span("pushkit accept", trace.SpanKind.SERVER, facts, received)

    def calling(
        self, traceparent: str | None, **facts: AttributeValue | None
    ) -> contextlib.AbstractContextManager[TracedSpan]:
        """Trace a callback, as a child of its notification's acceptance."""
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
        """Run within a span, a child of a context; None: of the current span."""
        origin = trace.get_current_span(context).get_span_context()
        links = [trace.Link(origin)] if linked and origin.is_valid else None
        try:
            span = self._tracer.start_span(name, context, kind, links=links)
        except _FAILURES as exc:  # of a sampler or a span processor
            self._log_failure("start", exc)
            span = trace.NonRecordingSpan(origin)  # later spans still belong to the trace
        found = TracedSpan(span)
        found.note(**facts)
        try:
            # The message of an exception is not recorded, because it may contain a secret.
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield found
        except Exception as exc:
            found.fail(exc.code if isinstance(exc, PushkitError) else type(exc).__name__)
            raise
        finally:
            try:
                span.end()
            except _FAILURES as exc:  # of a span processor
                self._log_failure("end", exc)

    def _log_failure(self, end: str, exc: BaseException) -> None:
        message = "a span failed at its %s: the trace has a gap"
        self._faults.log(end, logging.ERROR, message, end, exc_info=exc)


def _context_of(traceparent: str | None) -> Context:
    """Return the context of a `traceparent`; without one, an empty context."""
    return _FORMAT.extract({"traceparent": traceparent or ""}, Context())
