"""Spans reach a collector, with ids that every process computes; without one they alone are lost."""

import threading
import time

import pytest
from structlog.testing import capture_logs

from protocol.errors import Misconfigured
from runtime.tracing import export
from runtime.tracing.export import PREFIX, OtlpTracer
from runtime.tracing.settings import TracingSettings, tracer_of
from runtime.tracing.spans import OF_A_DEVICE, OFF, PARENTS, RoundTrace
from tests.support.network.collector import collector
from tests.support.python import python

TRACE = RoundTrace("f", "t", 3, "5e" * 32)


def wait_for(true, seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_ids_follow_from_names_alone():
    same = RoundTrace("f", "t", 3, "5e" * 32)
    assert TRACE.trace_id == same.trace_id
    others = [RoundTrace(*names, "5e" * 32) for names in (("g", "t", 3), ("f", "u", 3), ("f", "t", 4))]
    others.append(RoundTrace("f", "t", 3, "5f" * 32))
    assert len({TRACE.trace_id, *(one.trace_id for one in others)}) == 5
    assert TRACE.span_id("close", "a") == TRACE.span_id("close", "b")
    assert TRACE.span_id("train", "a") != TRACE.span_id("train", "b")
    assert TRACE.parent_id("ingest", "a") == TRACE.span_id("send", "a")
    assert TRACE.parent_id("learn", "a") == TRACE.span_id("round")
    assert TRACE.parent_id("round") is None


def test_every_span_leads_to_the_root():
    for name in PARENTS:
        seen = [name]
        while PARENTS[seen[-1]]:
            seen.append(PARENTS[seen[-1]])
            assert len(seen) <= len(PARENTS)
        assert seen[-1] == "round"
    assert {"learn", "ingest", "deploy"} <= OF_A_DEVICE


def test_spans_reach_the_collector():
    with collector() as there:
        tracer = tracer_of(TracingSettings(endpoint=there.endpoint), "lichen-agent", "d1")
        tracer.span(TRACE, "train", 10.5, 12.0, "d1", windows=7)
        tracer.span(TRACE, "round", 10.0, 13.0)
        tracer.close()
        (service, train), (_, root) = there.spans
    assert (service, train.name, tracer.sent, tracer.dropped) == ("lichen-agent", "train", 2, 0)
    assert (train.trace_id, root.trace_id) == (TRACE.trace_id, TRACE.trace_id)
    assert (train.span_id, train.parent_span_id) == (
        TRACE.span_id("train", "d1"),
        TRACE.span_id("learn", "d1"),
    )
    assert (root.span_id, root.parent_span_id) == (TRACE.span_id("round"), b"")
    assert (train.start_time_unix_nano, train.end_time_unix_nano) == (10_500_000_000, 12_000_000_000)
    values = {one.key: one.value for one in train.attributes}
    assert (values[f"{PREFIX}device"].string_value, values[f"{PREFIX}windows"].int_value) == ("d1", 7)


def test_without_a_collector_spans_are_counted_and_said_once():
    with capture_logs() as logs:
        tracer = OtlpTracer("http://127.0.0.1:1/v1/traces", "s", "i", 0.2)
        for _ in range(3):
            tracer.span(TRACE, "round", 0.0, 1.0)
            wait_for(lambda: not tracer._waiting.qsize())
        tracer.close()
        wait_for(lambda: tracer.dropped == 3)
    assert [one["event"] for one in logs].count("spans_dropped") == 1
    assert {one.name: one.values[0][1] for one in tracer.metrics()} == {
        "lichen_spans_sent": 0.0,
        "lichen_spans_dropped": 3.0,
    }


def test_a_collector_that_hangs_costs_the_caller_nothing(monkeypatch):
    monkeypatch.setattr(export, "MAX_WAITING", 16)
    release = threading.Event()
    tracer = OtlpTracer("http://127.0.0.1:1/v1/traces", "s", "i", 0.2)
    monkeypatch.setattr(tracer._exporter, "export", lambda _: release.wait(20))
    for _ in range(600):
        tracer.span(TRACE, "round", 0.0, 1.0)
    assert tracer.dropped >= 600 - 16 - export.BATCH - 1
    assert tracer._waiting.qsize() <= 16
    release.set()


@pytest.mark.parametrize("endpoint", ["ftp://x", "http://", "http://u:p@x", "http://x/y?token=1", "x:4318"])
def test_a_wrong_endpoint_is_refused(endpoint):
    with pytest.raises(ValueError, match="endpoint"):
        TracingSettings(endpoint=endpoint)


def test_off_nothing_is_imported_and_nothing_is_recorded():
    assert tracer_of(TracingSettings(), "s", "i") is OFF
    assert not OFF.on
    assert (OFF.metrics(), OFF.status()) == ((), {})
    code = (
        "import sys, edge_agent.app, coordinator.app, coordinator.cluster.app;"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('opentelemetry', 'google', 'requests')"
        " or m == 'runtime.tracing.export'];"
        "assert not bad, bad"
    )
    python("-c", code, timeout=120)


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "runtime.tracing.export", None)
    with pytest.raises(Misconfigured, match=r"pip install 'lichen\[otel\]'"):
        tracer_of(TracingSettings(endpoint="http://127.0.0.1:4318"), "s", "i")
