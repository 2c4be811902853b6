"""The spans that a device records of its rounds and models (docs/tracing.md). Off: one attribute check."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from edge_agent.storage.round_ledger import Entry
from protocol.bundle import BundleManifest
from protocol.messages import Offer
from runtime.clock import Clock, SystemClock
from runtime.tracing.spans import OFF, RoundTrace, Tracer
from runtime.waits import StatusPart

Publish = Callable[[list[dict[str, Any]], BundleManifest], None]
ON_TRIAL: Final = "on_trial"


class RoundSpans:
    """The steps of one local round, one after the other.

    Args:
        tracer: takes the spans.
        trace: of the round.
        device: its name.
        wall: Unix seconds.
    """

    def __init__(self, tracer: Tracer, trace: RoundTrace, device: str, wall: Callable[[], float]) -> None:
        self._tracer, self._trace, self._device, self._wall = tracer, trace, device, wall
        self._start = self._last = wall()

    def mark(self, name: str, **attributes: float) -> None:
        """The step since the last mark is over."""
        now = self._wall()
        self._tracer.span(self._trace, name, self._last, now, self._device, **attributes)
        self._last = now

    def end(self) -> None:
        """All steps are over."""
        self._tracer.span(self._trace, "learn", self._start, self._wall(), self._device)


class NoSpans:
    """Steps that nobody asks for."""

    def mark(self, name: str, **attributes: float) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


@dataclass(eq=False, slots=True)
class _Deployment:
    """A model on its way into use. Times are Unix seconds; 0: not yet."""

    trace: RoundTrace
    started: float
    on_trial: float = 0.0
    judged: float = 0.0
    predicted: bool = False


class DeviceTrace(StatusPart):
    """Used in one event loop.

    Args:
        tracer: takes the spans.
        fleet: its name.
        device: its name.
        clock: the time.
    """

    def __init__(self, tracer: Tracer, fleet: str, device: str, clock: Clock) -> None:
        self._tracer, self._fleet, self._device, self._clock = tracer, fleet, device, clock
        self._model: _Deployment | None = None

    @property
    def on(self) -> bool:
        """Whether spans go anywhere."""
        return self._tracer.on

    def status(self) -> dict[str, Any]:
        """Spans sent and dropped; nothing if off."""
        return self._tracer.status()

    def wall(self) -> float:
        """Unix seconds."""
        return self._clock.wall()

    def learning(self, offer: Offer) -> RoundSpans | NoSpans:
        """A local round begins."""
        if not self._tracer.on:
            return _NO_SPANS
        trace = RoundTrace(self._fleet, offer.task, offer.round, offer.base)
        return RoundSpans(self._tracer, trace, self._device, self._clock.wall)

    def sent(self, update: Entry, since: float, status: str) -> None:
        """The receipt of an update came; it was stored at ``since``."""
        trace = RoundTrace(self._fleet, update.task, update.round, update.base)
        self._tracer.span(trace, "send", since, self._clock.wall(), self._device, receipt=status)

    def pulled(self, manifest: BundleManifest, since: float) -> None:
        """A bundle is here and checked; its fetch began at ``since``."""
        if manifest.parent is None:
            self._model = None  # the initial model is of no round
            return
        trace = RoundTrace(self._fleet, manifest.task, manifest.round, manifest.parent)
        self._model = _Deployment(trace, since)
        self._tracer.span(trace, "pull", since, self._clock.wall(), self._device, version=manifest.version)

    def phase(self, now: str, result: str) -> None:
        """The deployment has another phase; ``result``: what became of the model on trial."""
        model = self._model
        if model is None:
            return
        if now == ON_TRIAL:
            model.on_trial = self._clock.wall()
        elif model.on_trial and not model.judged:
            model.judged = self._clock.wall()
            times = (model.on_trial, model.judged)
            self._tracer.span(model.trace, "trial", *times, self._device, result=result)

    def written(self) -> None:
        """The record of deployments is on the disk."""
        model = self._model
        if model is None or not model.judged:
            return
        now = self._clock.wall()
        self._tracer.span(model.trace, "commit", model.judged, now, self._device)
        self._tracer.span(model.trace, "deploy", model.started, now, self._device)
        self._model = None

    def publishing(self, publish: Publish | None) -> Publish | None:
        """The same as ``publish``, which also notes the first prediction of a new model."""
        if not self._tracer.on:
            return publish

        def noting(lines: list[dict[str, Any]], manifest: BundleManifest) -> None:
            self._predicted(manifest)
            if publish is not None:
                publish(lines, manifest)

        return noting

    def _predicted(self, manifest: BundleManifest) -> None:
        model = self._model
        if model is None or model.predicted or not model.on_trial:
            return
        if (manifest.round, manifest.parent) == (model.trace.round, model.trace.base):
            model.predicted = True
            now = self._clock.wall()
            self._tracer.span(model.trace, "first prediction", model.on_trial, now, self._device)


_NO_SPANS: Final = NoSpans()
NO_TRACE: Final = DeviceTrace(OFF, "", "", SystemClock())
