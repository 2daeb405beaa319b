"""`Metrics`: counts the metrics of a table, and makes the page that Prometheus scrapes.

Events are counted in this process. Values in the database are read at a scrape, and cached for a
few seconds. If `PROMETHEUS_MULTIPROC_DIR` is set before several processes start, each of them
answers for all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeAlias

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from pushkit.logs import RepeatedLog
from pushkit.scheduling.event_loop import cancelled
from pushkit.telemetry.together import keep_files, shared_folder
from pushkit.webhook import DocumentResponse

_log = logging.getLogger("pushkit.telemetry")

_HOLDS: Final = 3.0  # seconds
_TICK: Final = 1.0
_MOST_VALUES: Final = 50
_OTHER: Final = "other"

Gauges: TypeAlias = Mapping[str, Mapping[tuple[str, ...], float]]
"""The values of each metric by their labels, by the name of the metric."""


class MetricType(StrEnum):
    """How a metric is counted."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"
    """A value of this process; a scrape of several processes gets the sum."""
    READING = "reading"
    """A gauge that is read from the database at a scrape, and is the same for every process."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str  # with its unit, without the suffix that Prometheus appends (`_total`, `_bucket`)
    type: MetricType
    help: str  # for `/metrics` and the reference
    labels: tuple[str, ...] = ()  # each has few values
    buckets: tuple[float, ...] = ()  # of a histogram, in seconds

    @property
    def series(self) -> tuple[str, ...]:
        """The names that queries use."""
        if self.type is MetricType.COUNTER:
            return (f"{self.name}_total",)
        if self.type is MetricType.HISTOGRAM:
            return tuple(f"{self.name}_{part}" for part in ("bucket", "count", "sum"))
        return (self.name,)


class Bounded:
    """Limits the values of a label that outsiders choose: after the first 50, all are `other`."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        """Return the value under which to count."""
        if value in self._known:
            return value
        if len(self._known) >= _MOST_VALUES:
            return _OTHER
        self._known.add(value)
        return value


class Metrics(Collector):
    """Counts the metrics of a table."""

    def __init__(
        self,
        side: str,  # `pushkit` or `receiver`: the names of its metrics begin with it
        table: Iterable[Metric],
        *,
        # Reads the metrics of type `READING`; if it raises, that is logged, and they are missing.
        read: Callable[[], Awaitable[Gauges]],
        slots: Callable[[], tuple[int, int]],  # returns how many are in use, and how many exist
    ) -> None:
        self._side = side
        self._read = read
        self._slots = slots
        self._registry = CollectorRegistry()
        self._faults = RepeatedLog(_log)
        self._reading = asyncio.Lock()
        self._scraped: Gauges = {}
        self._read_at: float | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._table = {metric.name: metric for metric in table}
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        for metric in self._table.values():
            self._add(metric)

    def _add(self, metric: Metric) -> None:
        name, text, labels, registry = metric.name, metric.help, metric.labels, self._registry
        if metric.type is MetricType.COUNTER:
            self._counters[name] = Counter(name, text, labels, registry=registry)
        elif metric.type is MetricType.GAUGE:
            self._gauges[name] = Gauge(
                name, text, labels, registry=registry, multiprocess_mode="livesum"
            )
        elif metric.type is MetricType.HISTOGRAM:
            self._histograms[name] = Histogram(
                name, text, labels, registry=registry, buckets=metric.buckets
            )

    # --- counting ------------------------------------------------------------------------------

    def count(self, name: str, *labels: str) -> None:
        """Increment a counter by one."""
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc()

    def observe(self, name: str, seconds: float, *labels: str) -> None:
        """Add a duration to a histogram."""
        histogram = self._histograms[name]
        (histogram.labels(*labels) if labels else histogram).observe(seconds)

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge of this process."""
        gauge = self._gauges[name]
        (gauge.labels(*labels) if labels else gauge).set(value)

    # --- the clock -----------------------------------------------------------------------------

    def start(self) -> None:
        """Measure the event loop's lag every second; does nothing if already started."""
        if self._ticking is None:
            self._reading = asyncio.Lock()  # the previous one may belong to another event loop
            self._ticking = asyncio.create_task(self._run(), name="pushkit-metrics")

    async def stop(self) -> None:
        """Stop measuring."""
        ticking, self._ticking = self._ticking, None
        if ticking is not None:
            await cancelled(ticking)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._tick()
            due = loop.time() + _TICK
            await asyncio.sleep(_TICK)
            lag = max(loop.time() - due, 0.0)
            self.observe(f"{self._side}_event_loop_lag_seconds", lag)

    def _tick(self) -> None:
        """Set the gauges of this process, in files that are there."""
        keep_files()
        in_use, number = self._slots()
        self.set(f"{self._side}_slots", in_use, "in_use")
        self.set(f"{self._side}_slots", number - in_use, "free")

    # --- the page ------------------------------------------------------------------------------

    async def page(self) -> DocumentResponse:
        """Return the page, as Prometheus reads it."""
        async with self._reading:
            if self._read_at is None or time.monotonic() - self._read_at >= _HOLDS:
                self._scraped = await self._read_now()
                self._read_at = time.monotonic()
        self._tick()
        body = b"".join(generate_latest(registry) for registry in self._registries())
        headers = {"Content-Type": prometheus_client.CONTENT_TYPE_LATEST}
        return DocumentResponse(status=200, headers=headers, body=body)

    async def _read_now(self) -> Gauges:
        try:
            return await self._read()
        except Exception as exc:  # noqa: BLE001  # the page is served without the readings
            name = type(exc).__name__
            self._faults.log(name, logging.WARNING, "metrics: not all could be read: %s", name)
            return {}

    def _registries(self) -> list[CollectorRegistry]:
        read = CollectorRegistry()
        read.register(self)
        folder = shared_folder()
        if folder is None:
            return [self._registry, read]
        _drop_ended_processes(folder)
        counted = CollectorRegistry()
        MultiProcessCollector(counted, path=str(folder))  # type: ignore[no-untyped-call]
        return [counted, read]

    def describe(self) -> Iterable[Family]:
        """Return nothing: the readings are only known at a scrape."""
        return []

    def collect(self) -> Iterable[Family]:
        """Yield the most recent readings."""
        for name, values in self._scraped.items():
            metric = self._table[name]
            family = GaugeMetricFamily(name, metric.help, labels=metric.labels)
            for labels, value in values.items():
                family.add_metric(labels, value)
            yield family


def _drop_ended_processes(directory: Path) -> None:
    """Delete the gauges of processes that ended."""
    for path in directory.glob("gauge_live*_*.db"):
        pid = path.stem.rpartition("_")[2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc").exists():
            mark_process_dead(int(pid), path=str(directory))  # type: ignore[no-untyped-call]
