"""Chooses the variant of a model to run: the fastest that agrees with float32 on the CPU. Pure.

A variant is a file of the bundle (float32, int8) with an execution provider of ONNX Runtime. int8 is not
always faster (on ARM it is often slower), and a provider may round as it likes: so both are measured.

Shapes: N windows, K classes, C channels, T samples.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from edge_agent.config.agent import InferSettings
from edge_agent.inference.onnx_models.compatibility import FLOAT32, MODEL_FILE
from edge_agent.inference.onnx_models.observation import Answers
from edge_agent.inference.providers.kinds import CPU
from models.contract import FloatArray
from protocol.bundle import BundleManifest
from protocol.tasks.task import Target

MAX_MEAN_DIFFERENCE: Final = 0.05
"""Of a probability, or of a number in units of its scale."""
_ROUNDING: Final = 1e-9
_SAME: Final = 0.1
"""Numbers that differ by less, in units of their scale, are equal."""
_FASTER: Final = 0.95
"""A variant less than 5 % faster is not preferred to float32 on the CPU: the difference may be chance."""
ENOUGH: Final = 100
"""Recorded windows. With fewer, a single window that differs is chance."""
_AFAR: Final = frozenset({"AzureExecutionProvider"})
"""Sends windows to another machine; only if ``infer.providers`` names it."""
_PRECISIONS: Final = frozenset({"int8"})
"""Names of variants; a bundle of a newer release may have others."""


@dataclass(frozen=True)
class Candidate:
    """A file of the bundle, and its provider."""

    variant: str
    file: str
    provider: str

    def __str__(self) -> str:
        return f"{self.variant} on {self.provider.removesuffix('ExecutionProvider')}"


REFERENCE: Final = Candidate(FLOAT32, MODEL_FILE, CPU)


@dataclass(frozen=True)
class Measured:
    """Measurement of a candidate.

    Attributes:
        candidate: measured.
        median_s: of one window; None if it does not run.
        agreement: share of windows on which it agrees with the reference, of the worst target.
        mean_difference: from the reference, of the worst target.
        why: why it does not run.
    """

    candidate: Candidate
    median_s: float | None = None
    agreement: float = 0.0
    mean_difference: float = float("inf")
    why: str = ""

    def summary(self) -> dict[str, Any]:
        """For ``status.json`` and ``choice.json``."""
        name = {"variant": self.candidate.variant, "provider": self.candidate.provider}
        if self.median_s is None:
            return {**name, "why": self.why}
        return {
            **name,
            "median_ms": round(1000 * self.median_s, 4),
            "agreement": round(self.agreement, 4),
            "mean_difference": round(min(self.mean_difference, 1e9), 6),
        }


@dataclass(frozen=True)
class SelectionLimits:
    """The evidence for a choice.

    Attributes:
        windows: that candidates were measured on.
        recorded: they are from sensors; else they are noise, on which no model is certain.
        known: by variant, the agreement that the exporter measured (``Variant.measured``).
    """

    windows: int
    recorded: bool
    known: Mapping[str, float]

    @classmethod
    def of(cls, manifest: BundleManifest, windows: int, recorded: bool) -> Self:  # noqa: FBT001 - as above
        """With the exporter's measurements in a manifest."""
        told = {name: one.measured.get("agreement") for name, one in (manifest.variants or {}).items()}
        return cls(windows, recorded, {name: share for name, share in told.items() if share is not None})


def candidates(
    manifest: BundleManifest, settings: InferSettings, providers: Sequence[str]
) -> tuple[Candidate, ...]:
    """All allowed candidates; :data:`REFERENCE` is the first, ``infer.variant`` excludes others.

    Args:
        manifest: names the variants.
        settings: ``variant`` and ``providers``.
        providers: that ONNX Runtime or a package has here.
    """
    usable = [CPU, *permitted(settings, providers)]
    known = {n: v.file for n, v in (manifest.variants or {}).items() if v.precision in _PRECISIONS}
    files = {FLOAT32: MODEL_FILE} | known
    wanted = [name for name in files if settings.variant in {"auto", name}]
    found = [Candidate(name, files[name], provider) for name in wanted for provider in usable]
    return (REFERENCE, *(one for one in found if one != REFERENCE))


def permitted(settings: InferSettings, providers: Sequence[str]) -> list[str]:
    """Those providers beside the CPU that ``infer.providers`` permits; without it all on this device."""
    named = settings.providers or [name for name in providers if name not in _AFAR]
    return [name for name in providers if name in named and name != CPU]


def chosen(
    measured: Sequence[Measured], settings: InferSettings, grounds: SelectionLimits
) -> tuple[Candidate, str]:
    """The candidate to run, and why. The first of ``measured`` is the reference."""
    reference, *others = measured
    passing = [one for one in others if one.median_s is not None and not _differs(one, settings, grounds)]
    limit = float("inf") if reference.median_s is None else _FASTER * reference.median_s
    if settings.variant not in {"auto", FLOAT32}:
        limit = float("inf")  # it is requested, fast or not
    fast = [one for one in passing if one.median_s is not None and one.median_s <= limit]
    if fast:
        best = min(fast, key=lambda one: one.median_s or 0.0)
        return best.candidate, f"{best.candidate} is taken: {_figures(best, reference)}"
    if not others:
        return reference.candidate, ""
    return reference.candidate, "; ".join(_against(one, reference, settings, grounds) for one in others)[:500]


def _differs(one: Measured, settings: InferSettings, grounds: SelectionLimits) -> str:
    """Why a candidate differs from the reference; empty if it agrees.

    Enough windows of this device decide. With fewer, the exporter's figure does, and one of the few may
    differ; noise is not compared. Without such a figure these few decide.
    """
    least, known = settings.min_agreement, grounds.known.get(one.candidate.variant)
    allowed = 1.0 - least
    if known is not None and not (grounds.recorded and grounds.windows >= ENOUGH):
        if known < least:
            return f"agreed on {known:.1%} when it was exported, not {least:.1%}"
        allowed = allowed + 1.0 / grounds.windows if grounds.recorded else 1.0
    if 1.0 - one.agreement > allowed + _ROUNDING:
        return f"agrees on {one.agreement:.1%}, not {least:.1%}"
    if one.mean_difference > MAX_MEAN_DIFFERENCE:
        return f"is {one.mean_difference:.3g} off in the mean"
    return ""


def _figures(one: Measured, reference: Measured) -> str:
    times = [f"{1000 * (m.median_s or 0.0):.3g} ms" for m in (one, reference)]
    return f"{times[0]} a window, float32 on the CPU {times[1]}; they agree on {one.agreement:.1%}"


def _against(one: Measured, reference: Measured, settings: InferSettings, grounds: SelectionLimits) -> str:
    if one.median_s is None:
        return f"{one.candidate} does not run here: {one.why}"
    why = _differs(one, settings, grounds) or f"is not faster: {_figures(one, reference)}"
    return f"{one.candidate} {why}"


def parity(manifest: BundleManifest, reference: Answers, answers: Answers) -> tuple[float, float]:
    """Agreement and mean difference of a variant's answers from the reference's, of the worst target."""
    pairs = [
        (_as_classes if target.kind == "classification" else _as_numbers)(
            reference[target.name], answers[target.name], _scale(manifest, target)
        )
        for target in manifest.predicted
    ]
    return min(pair[0] for pair in pairs), max(pair[1] for pair in pairs)


def _as_classes(p_NK: FloatArray, q_NK: FloatArray, _: float) -> tuple[float, float]:
    same = p_NK.argmax(axis=1) == q_NK.argmax(axis=1)
    return float(same.mean()), float(np.abs(p_NK - q_NK).mean())


def _as_numbers(a: FloatArray, b: FloatArray, scale: float) -> tuple[float, float]:
    """Of values (N,), or of windows (N, C, T)."""
    off_N = np.abs(a.astype(np.float64) - b).reshape(len(a), -1).mean(axis=1) / scale
    return float((off_N <= _SAME).mean()), float(off_N.mean())


def _scale(manifest: BundleManifest, target: Target) -> float:
    made: Iterable[float] = (m.scale for m in manifest.generated or () if m.name == target.modality)
    return next(iter(made), target.scale)
