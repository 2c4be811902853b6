"""Measures the variants of a model on this device, once for each bundle. Thin: ``choice`` decides.

Shapes: N windows, M modalities that the model reads, C channels, T samples.
"""

import asyncio
import json
import platform
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import structlog
from numpy.typing import NDArray

from edge_agent.config.agent import InferSettings
from edge_agent.inference.providers.accelerators import Accelerators
from edge_agent.inference.providers.catalog import usable
from edge_agent.inference.providers.kinds import CPU, Provider
from edge_agent.inference.serving.served_kinds import ServedWindows
from edge_agent.inference.serving.served_model import ModelOptions, PredictionFailed
from edge_agent.inference.serving.variants.choice import (
    ENOUGH,
    REFERENCE,
    Candidate,
    Measured,
    SelectionLimits,
    candidates,
    chosen,
    parity,
)
from edge_agent.inference.serving.zygote_client import Ready, ZygoteClient
from edge_agent.windows.quality.meter import ScoredWindows
from models.contract import FloatArray
from protocol.bundle import BundleManifest
from protocol.errors import LichenError, Refused, Transient
from runtime.storage.files import write_atomic

_log = structlog.get_logger(__name__)
CHOICE_FILE: Final = "choice.json"
_NOISE: Final = 32
_WINDOWS: Final = 128
_KEPT_BYTES: Final = 4 * 1024 * 1024
_OF_A_BATCH: Final = 4
_WARM: Final = 3
_RUNS: Final = 40
_AT_MOST_S: Final = 2.0
"""Seconds to run one candidate."""
_TIMEOUT_S: Final = 60.0
_CPUINFO: Final = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Sample:
    """Windows to measure on.

    Attributes:
        x: per modality ``x_NCT``.
        present_NM: columns in the model's order.
        recorded: whether they are from sensors; else they are noise.
    """

    x: dict[str, FloatArray]
    present_NM: NDArray[np.bool_]
    recorded: bool


class RecentWindows:
    """The last windows of this device: some of each batch, few bytes."""

    def __init__(self) -> None:
        self._kept: deque[tuple[dict[str, FloatArray], dict[str, bool]]] = deque()
        self._bytes = 0

    def add(self, judged: ScoredWindows) -> None:
        """Take the newest windows of a batch."""
        names, windows = judged.task.modality_names, judged.windows
        for b in range(max(0, len(windows) - _OF_A_BATCH), len(windows)):
            x = {name: windows.x[name][b].copy() for name in names}
            self._kept.append((x, dict(zip(names, windows.present_BM[b].tolist(), strict=True))))
            self._bytes += _size(x)
            while len(self._kept) > _WINDOWS or self._bytes > _KEPT_BYTES:
                self._bytes -= _size(self._kept.popleft()[0])

    def sample(self, manifest: BundleManifest) -> Sample:
        """The windows that a model reads; noise if there are none of its shape."""
        names = [m.name for m in manifest.modalities]
        wanted = {m.name: (m.channels, manifest.samples[m.name]) for m in manifest.modalities}
        fitting = [
            (x, present)
            for x, present in self._kept
            if all(n in x and x[n].shape == wanted[n] for n in names) and any(present[n] for n in names)
        ]
        if not fitting:
            return _noise(manifest)
        x_N = {n: np.stack([x[n] for x, _ in fitting]) for n in names}
        present_NM = np.array([[present[n] for n in names] for _, present in fitting], np.bool_)
        return Sample(x_N, present_NM, recorded=True)


def _size(x: dict[str, FloatArray]) -> int:
    return sum(one.nbytes for one in x.values())


def _noise(manifest: BundleManifest) -> Sample:
    """In each modality's scale, with all modalities and with some of them."""
    rng, count = np.random.default_rng(0), len(manifest.modalities)
    x_N = {
        m.name: (
            m.offset + m.scale * rng.standard_normal((_NOISE, m.channels, manifest.samples[m.name]))
        ).astype(np.float32)
        for m in manifest.modalities
    }
    present_NM = rng.random((_NOISE, count)) < 0.8  # noqa: PLR2004 - most are there
    present_NM[np.arange(_NOISE), rng.integers(0, count, _NOISE)] = True
    return Sample(x_N, present_NM, recorded=False)


async def choose(  # noqa: PLR0917 - what is measured, where, on what
    zygote: ZygoteClient,
    folder: Path,
    manifest: BundleManifest,
    settings: InferSettings,
    options: ModelOptions,
    recent: RecentWindows,
    accelerators: Accelerators,
) -> tuple[ModelOptions, dict[str, Any]]:
    """How to open a bundle here, and a description; measured once under the same conditions.

    Raises:
        Refused: float32 on the CPU does not run.
        Transient: no process can be started.
    """
    ready = await zygote.ready()
    if ready.why:
        raise Transient(ready.why)
    found = () if manifest.graph is not None else await accelerators.look(zygote, ready)
    if lacking := set(settings.providers) - {CPU, *(one.provider.name for one in found)}:
        _log.warning("providers_missing", lacking=sorted(lacking), has=ready.providers)
    some = candidates(manifest, settings, usable(found))
    if manifest.graph is not None or len(some) == 1:
        return options, {"variant": REFERENCE.variant, "provider": REFERENCE.provider}
    key, path = _key(settings, ready, some, accelerators), folder / CHOICE_FILE
    told = await asyncio.to_thread(_kept, path, key)
    sample = recent.sample(manifest)
    count = len(sample.present_NM)
    if told is None or _is_better(sample, told):
        measured = await measure(zygote, folder, manifest, some, options, accelerators, sample)
        best, why = chosen(measured, settings, SelectionLimits.of(manifest, count, sample.recorded))
        _log.info("variants_measured", version=manifest.version, taken=str(best), why=why)
        told = {
            "key": key,
            "variant": best.variant,
            "provider": best.provider,
            "file": best.file,
            "why": why,
            "measured": [one.summary() for one in measured],
            "windows": count,
            "recorded": sample.recorded,
        }
        await asyncio.to_thread(_keep, path, told)
    taken = replace(options, file=told["file"], provider=Provider(told["provider"]))
    return taken, {name: told[name] for name in told if name not in {"key", "file"}}


def _is_better(sample: Sample, told: dict[str, Any]) -> bool:
    """Whether there are recorded windows, or enough of them, for the first time since the measurement."""
    if not sample.recorded:
        return False
    return not told["recorded"] or told["windows"] < ENOUGH <= len(sample.present_NM)


async def measure(  # noqa: PLR0917 - as above
    zygote: ZygoteClient,
    folder: Path,
    manifest: BundleManifest,
    some: Sequence[Candidate],
    options: ModelOptions,
    accelerators: Accelerators,
    sample: Sample,
) -> list[Measured]:
    """Time and compare candidates, one by one, each in its own process; the first is the reference.

    Raises:
        Refused: the reference does not run.
        Transient: no process can be started.
    """
    found: list[Measured] = []
    said: dict[str, FloatArray] = {}
    for one in some:
        provider = Provider(one.provider)
        how = replace(options, file=one.file, provider=provider, private=None, timeout_s=_TIMEOUT_S)
        model: ServedWindows | None = None
        try:
            how = await accelerators.prepare(zygote, folder, manifest, how)
            model = ServedWindows(zygote, folder, manifest, how)
            await model.start()
            answers = await model.predict(sample.x, sample.present_NM, None)
            said = said or answers
            agreement, difference = parity(manifest, said, answers)
            found.append(Measured(one, await _median_s(model, sample), agreement, difference))
        except (Refused, PredictionFailed) as error:
            if one == REFERENCE:
                raise
            words = error.detail if isinstance(error, Refused) else str(error)
            found.append(Measured(one, why=words[:200]))
        finally:
            if model is not None:
                model.close()
    return found


async def _median_s(model: ServedWindows, sample: Sample) -> float:
    """Median time of one window, run one by one."""
    clock, times = asyncio.get_running_loop().time, []
    until = clock() + _AT_MOST_S
    for i in range(_WARM + _RUNS):
        at = i % len(sample.present_NM)
        x = {name: values[at : at + 1] for name, values in sample.x.items()}
        await model.predict(x, sample.present_NM[at : at + 1], None)
        times.append(model.ran_s)
        if i >= _WARM and clock() > until:
            break
    return statistics.median(times[_WARM:] or times)


def _key(
    settings: InferSettings, ready: Ready, some: Sequence[Candidate], accelerators: Accelerators
) -> dict[str, Any]:
    """The conditions of a choice, beside the bundle."""
    others = accelerators.conditions()
    return ({"accelerators": others} if others else {}) | {
        "onnxruntime": ready.version,
        "cpu": _cpu(),
        "threads": settings.threads,
        "variant": settings.variant,
        "min_agreement": settings.min_agreement,
        "candidates": [list(asdict(one).values()) for one in some],
    }


def _cpu() -> str:
    try:
        lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    told = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part"))]
    return f"{platform.machine()} {told[0] if told else ''}".strip()


def _kept(path: Path, key: dict[str, Any]) -> dict[str, Any] | None:
    """The measurement made under the same conditions, if any."""
    try:
        found = json.loads(path.read_bytes())
        same = found["key"] == key
        known = [[found["variant"], found["file"], found["provider"]]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not same or known[0] not in key["candidates"] or not isinstance(found.get("recorded"), bool):
        return None
    if type(found.get("windows")) is not int:
        return None
    return dict(found)


def _keep(path: Path, told: dict[str, Any]) -> None:
    try:
        write_atomic(path, json.dumps(told, indent=1).encode())
    except (LichenError, OSError) as error:  # then it is measured again at the next start
        _log.warning("variant_choice_not_saved", file=str(path), why=str(error))
