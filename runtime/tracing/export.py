"""Sends spans to a collector by OTLP over HTTP, in its own thread, with the packages of ``lichen[otel]``.

A bounded queue lies between: what does not fit, or does not reach the collector, is dropped and counted. The
daemon waits for neither. This module is imported only where ``[tracing] endpoint`` is set.
"""

import logging
import queue
import threading
import time
from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import Any, Final

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from runtime.metrics import MetricFamily, counter
from runtime.tracing.spans import RoundTrace, TraceSpan, Value

_log = structlog.get_logger(__name__)
MAX_WAITING: Final = 2048
"""Spans that wait for the thread."""
BATCH: Final = 256
PREFIX: Final = "lichen."
"""Of all attributes."""
_GATHER_S: Final = 0.5
_CLOSE_S: Final = 2.0


class OtlpTracer:
    """See :class:`runtime.tracing.spans.Tracer`; call :meth:`close` at the end.

    Args:
        endpoint: ``http://host:4318/v1/traces``.
        service: ``service.name`` of all spans.
        instance: ``service.instance.id``: the device, or the fleet.
        timeout_s: of one request.
    """

    on = True

    def __init__(self, endpoint: str, service: str, instance: str, timeout_s: float) -> None:
        self._resource = Resource(
            {
                "service.name": service,
                "service.instance.id": instance,
                "service.version": metadata.version("lichen"),
            }
        )
        self._scope = InstrumentationScope("lichen", metadata.version("lichen"))
        self._exporter = OTLPSpanExporter(endpoint=endpoint, timeout=timeout_s)
        self._waiting: queue.Queue[TraceSpan | None] = queue.Queue(MAX_WAITING)
        self.sent = 0
        self.dropped = 0
        """Spans that did not reach the collector."""
        self._reported = False
        for name in ("opentelemetry", "urllib3", "requests"):  # its failures are counted, and said once
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._thread = threading.Thread(target=self._run, name="tracing", daemon=True)
        self._thread.start()

    def span(
        self, trace: RoundTrace, name: str, start: float, end: float, device: str = "", **attributes: Value
    ) -> None:
        """Queue a span, or count it as dropped."""
        try:
            self._waiting.put_nowait(TraceSpan(trace, name, start, end, device, tuple(attributes.items())))
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Send what waits, for at most two seconds."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(_CLOSE_S)

    def metrics(self) -> Iterable[MetricFamily]:
        """Spans sent and dropped."""
        yield counter("lichen_spans_sent", "Spans that the collector took", self.sent)
        yield counter("lichen_spans_dropped", "Spans that did not reach the collector", self.dropped)

    def status(self) -> dict[str, Any]:
        """The same for a status."""
        return {"tracing": {"sent": self.sent, "dropped": self.dropped}}

    def _run(self) -> None:
        while True:
            batch = self._gather()
            if spans := [one for one in batch if one is not None]:
                self._export([self._readable(one) for one in spans])
            if None in batch:
                return

    def _gather(self) -> list[TraceSpan | None]:
        batch = [self._waiting.get()]
        until = time.monotonic() + _GATHER_S
        while len(batch) < BATCH and batch[-1] is not None:
            try:
                batch.append(self._waiting.get(timeout=max(0.0, until - time.monotonic())))
            except queue.Empty:
                break
        return batch

    def _export(self, spans: Sequence[ReadableSpan]) -> None:
        try:
            done = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 - whatever the collector or the library does: no span is worth it
            done = False
            why = f"{type(error).__name__}: {error}"
        else:
            why = "the collector did not take them"
        if done:
            self.sent += len(spans)
            self._reported = False
            return
        self.dropped += len(spans)
        if not self._reported:
            _log.warning("spans_dropped", count=self.dropped, why=why[:300])
        self._reported = True

    def _readable(self, span: TraceSpan) -> ReadableSpan:
        trace, device = span.trace, span.device
        parent = trace.parent_id(span.name, device)
        values: dict[str, Value] = {
            "fleet": trace.fleet,
            "task": trace.task,
            "round": trace.round,
            "base": trace.base,
            **({"device": device} if device else {}),
            **dict(span.attributes),
        }
        return ReadableSpan(
            name=span.name,
            context=_context(trace.trace_id, trace.span_id(span.name, device), is_remote=False),
            parent=None if parent is None else _context(trace.trace_id, parent, is_remote=True),
            resource=self._resource,
            attributes={f"{PREFIX}{key}": value for key, value in values.items()},
            kind=SpanKind.INTERNAL,
            instrumentation_scope=self._scope,
            start_time=int(span.start * 1e9),
            end_time=int(max(span.start, span.end) * 1e9),
        )


def _context(trace_id: bytes, span_id: bytes, *, is_remote: bool) -> SpanContext:
    return SpanContext(
        int.from_bytes(trace_id), int.from_bytes(span_id), is_remote, TraceFlags(TraceFlags.SAMPLED)
    )
