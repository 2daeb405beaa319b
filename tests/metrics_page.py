"""A page of metrics, as Prometheus reads it."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["MetricsRead"]


@dataclass(frozen=True)
class MetricsRead:
    """What stands on a page."""

    samples: dict[tuple[str, frozenset[tuple[str, str]]], float]

    @classmethod
    def of(cls, body: bytes) -> MetricsRead:
        """Read a page."""
        found = {}
        for family in text_string_to_metric_families(body.decode()):
            for sample in family.samples:
                found[sample.name, frozenset(sample.labels.items())] = sample.value
        return cls(found)

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of a series; None if it is not there."""
        return self.samples.get((name, frozenset(labels.items())))

    def labels(self, name: str, label: str) -> set[str]:
        """Return the values of a label."""
        return {dict(labels)[label] for series, labels in self.samples if series == name}
