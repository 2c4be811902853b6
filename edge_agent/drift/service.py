"""Watches the committed model for drift, and stores what it saw.

A batch costs a few histograms on the event loop. A power cut loses at most ``_WRITE_EVERY_S`` of counts.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import structlog
from pydantic import ValidationError

from edge_agent.config.agent import DriftSettings
from edge_agent.drift.monitor import DriftMonitor, StoredDrift
from edge_agent.inference.onnx_models.observation import BatchObservation
from protocol.errors import Transient
from protocol.tasks.task import Target
from runtime.clock import Clock
from runtime.storage.files import write_atomic
from runtime.waits import StatusPart, Wait, span

_log = structlog.get_logger(__name__)
DRIFT_FILE: Final = "drift.json"
"""In the state folder."""
_TICK_S: Final = 60.0
_WRITE_EVERY_S: Final = 600.0


class DriftService(StatusPart):
    """One service, and the counting of batches.

    Args:
        settings: of drift.
        state_dir: of the agent.
        clock: of hours and days.
    """

    def __init__(self, settings: DriftSettings, state_dir: Path, clock: Clock) -> None:
        self._settings = settings
        self._path = state_dir / DRIFT_FILE
        self._clock = clock
        self._monitor: DriftMonitor | None = None
        self._written_at = clock.now()
        self._unwritten = False
        self._why = "no model is committed yet"

    @property
    def ratio(self) -> float | None:
        """Distance over its limit, for telemetry: over 1 exactly while the model drifts; None: unknown."""
        monitor = self._monitor
        if monitor is None or monitor.finding is None:
            return None
        ratio = min(100.0, monitor.finding.ratio)
        return max(1.01, ratio) if monitor.since is not None else min(1.0, ratio)

    def observe(self, seen: BatchObservation) -> None:
        """Count a batch of the committed model; runs on the event loop."""
        target = next((t for t in seen.manifest.predicted if t.kind == "classification"), None)
        if not self._settings.enabled or seen.error or seen.read_NR is None or target is None:
            self._why = _why_none(self._settings, target)
            return
        if self._monitor is None or self._monitor.bundle != seen.digest:
            self._monitor = DriftMonitor(
                seen.digest, self._settings.reference_days, self._settings.min_windows
            )
        names = tuple(modality.name for modality in seen.manifest.modalities)
        self._monitor.add(self._clock.wall(), names, seen.read_NR, seen.answers[target.name])
        self._unwritten = True

    async def run(self) -> None:
        """Compare each hour, and write, for ever."""
        await asyncio.to_thread(self._read)
        try:
            while True:
                await self._clock.sleep(_TICK_S)
                self._judge()
                if self._clock.now() - self._written_at >= _WRITE_EVERY_S and (text := self._news()):
                    await asyncio.to_thread(self._write, text)
        finally:
            self._write(self._news())

    def status(self) -> dict[str, Any]:
        """The last comparison, and why there is none."""
        monitor = self._monitor
        if monitor is None:
            return {"drift": {"why": self._why}}
        found, left_s = monitor.finding, monitor.reference_left_s
        if found is None:
            words = f"the reference is complete in {span(left_s)}" if left_s else "too few windows since then"
            return {"drift": {"why": words}}
        shown = {
            "modalities": found.subset,
            "distance": round(found.distance, 3),
            "limit": round(found.limit, 3),
        }
        return {"drift": {**shown, "drifts": monitor.since is not None}}

    def waits(self) -> Iterator[Wait]:
        """The reason why the model's answers may be wrong, if they have changed."""
        monitor = self._monitor
        if monitor is not None and monitor.since is not None:
            words = _words(monitor)
            yield Wait(
                "drift", words, monitor.since, None, "until its answers are as in its first days again"
            )

    def _judge(self) -> None:
        monitor = self._monitor
        if monitor is None or not monitor.judge(self._clock.wall()):
            return
        self._unwritten = True
        if monitor.since is not None:
            _log.warning("model_drifts", bundle=monitor.bundle[:12], why=_words(monitor))
        else:
            _log.info("model_drifts_no_more", bundle=monitor.bundle[:12])

    def _read(self) -> None:
        try:
            stored = StoredDrift.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValidationError) as error:
            _log.warning("drift_not_read", file=str(self._path), why=str(error)[:200])
            return
        if self._monitor is None and len(stored.reference) <= self._settings.reference_days:
            self._monitor = DriftMonitor.of(stored, self._settings.reference_days, self._settings.min_windows)

    def _news(self) -> bytes:
        """What is to be written; empty: nothing new. On the event loop: batches change the monitor there."""
        if self._monitor is None or not self._unwritten:
            return b""
        self._unwritten = False
        return self._monitor.stored().model_dump_json(exclude_none=True).encode()

    def _write(self, text: bytes) -> None:
        self._written_at = self._clock.now()
        if not text:
            return
        try:
            write_atomic(self._path, text)
        except Transient as error:
            self._unwritten = True
            _log.warning("drift_not_written", why=str(error))


def _why_none(settings: DriftSettings, target: Target | None) -> str:
    if not settings.enabled:
        return "drift.enabled is false"
    return "the model predicts no classes" if target is None else "no answer of a committed model yet"


def _words(monitor: DriftMonitor) -> str:
    found = monitor.finding
    if found is None:  # just restarted
        return "the model's answers are not as in its first days on this device"
    return (
        f"the model's answers from {found.subset} are not as in its first {monitor.days} days on this "
        f"device: distance {found.distance:.2f}, a usual day has at most {found.limit:.2f}; a sensor, its "
        "place or what people do has changed"
    )
