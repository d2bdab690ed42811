"""Spans that are kept in memory, by the SDK that a user would install."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from txmq.ops.tracing import OpenTelemetryHook

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


class Spans:
    """A provider, the hook that uses it, and what was exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.hook = OpenTelemetryHook(self.provider)

    def all(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def names(self) -> list[str]:
        """In the order of their ends."""
        return [span.name for span in self.all()]

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def by_trace(self) -> dict[int, set[str]]:
        """The names of the spans of each trace."""
        traces: dict[int, set[str]] = defaultdict(set)
        for span in self.all():
            traces[trace_of(span)].add(span.name)
        return traces


def trace_of(span: ReadableSpan) -> int:
    """The id of its trace."""
    assert span.context is not None
    return span.context.trace_id


def parent_of(span: ReadableSpan) -> int | None:
    """The id of its parent span."""
    return None if span.parent is None else span.parent.span_id


def attribute(span: ReadableSpan, name: str) -> object:
    """One attribute; None where it has none of this name."""
    return (span.attributes or {}).get(name)
