"""The int8 variant of a model, measured against float32 on real windows, or why there is none.

A bundle is complete without it, so this module never refuses an export. The device measures the variant again
on its own windows and processor before it uses it (docs/inference.md).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from export.int8 import calibration, quantize
from export.int8.calibration import FEWEST, MEASURED, CalibrationChoice
from export.int8.quantize import Feed
from export.overridable_inputs import Paths
from export.parity.cases import cases
from export.parity.gate import require_own, run, session, timed
from export.signature import Surface
from models.contract import WindowSet
from protocol.bundle import Variant
from protocol.errors import Refused
from protocol.output_names import output_names
from protocol.tasks.task import LABEL, Target, Task

INT8: Final = "int8"
INT8_FILE: Final = "model.int8.onnx"
MIN_AGREEMENT: Final = 0.98
"""Minimum share of windows on which int8 and float32 agree."""
MIN_AGREEMENT_MISSING: Final = 0.9
"""The same with any one modality missing, where more predictions are close. A device without it compares on
its own windows, which lack it."""
MAX_BYTES: Final = 0.85
"""Maximum size relative to float32: above, too little was quantized for a second file."""
NEAR: Final = 0.1
"""Tolerance for values and windows, relative to a target's scale."""
_DIGITS: Final = 6
NOTHING_LARGE: Final = (
    "none: the ONNX model has no convolution or large matrix, besides those that a device may replace"
)
NO_WINDOWS: Final = "none: no windows to calibrate on (by hand: --calibrate; a coordinator: evaluation.data)"

Array = NDArray[np.float32]
Answers = Mapping[str, Array]


@dataclass(frozen=True)
class Made:
    """Result of the quantization.

    Attributes:
        words: its description, or why there is none.
        model: serialized; None without a variant.
        variant: entry of the manifest.
        latency_ms: one window on one thread here, median.
        latency_batch_ms: the same for the largest batch.
    """

    words: str
    model: bytes | None = None
    variant: Variant | None = None
    latency_ms: float = 0.0
    latency_batch_ms: float = 0.0


def int8_of(model: bytes, task: Task, surface: Surface, own: Paths, windows: WindowSet | None) -> Made:
    """Quantize an ONNX model that passed its gate.

    Args:
        model: in float32.
        task: of the windows.
        surface: of the ONNX model.
        own: the tensors that a device may replace, in both.
        windows: real windows; their labels, if any, are used.
    """
    if windows is None:
        return Made(NO_WINDOWS)
    chosen = calibration.usable(windows, task, surface)
    if len(chosen) < FEWEST:
        return Made(f"none: {len(chosen)} windows to calibrate on, {FEWEST} are the least")
    tried: list[Made] = []
    for feeds in calibration.ranges(chosen):
        tried.append(_tried(model, surface, own, chosen, feeds()))
        if tried[-1].model is not None:
            return tried[-1]
    return tried[0]


def _tried(
    model: bytes, surface: Surface, own: Paths, chosen: CalibrationChoice, feeds: Iterable[Feed]
) -> Made:
    """Quantize with one calibration."""
    try:
        variant = quantize.quantized(model, feeds)
        if variant is None:
            return Made(NOTHING_LARGE)
        if len(variant) > MAX_BYTES * len(model):
            share = f"{len(variant)} bytes instead of {len(model)}"
            return Made(
                f"none: too little of the ONNX model can be quantized ({share}); LSTMs stay in float32"
            )
        return _measured(model, variant, surface, own, chosen.some(MEASURED))
    except Refused as error:
        return Made(f"none: {error.detail}")


@dataclass(frozen=True)
class _Pair:
    """The ONNX model in float32 and in int8."""

    surface: Surface
    before: ort.InferenceSession
    after: ort.InferenceSession

    def answers(self, chosen: CalibrationChoice, without: str | None = None) -> tuple[Answers, Answers]:
        """All outputs of both, by name; ``without`` masks a modality."""
        feeds = list(chosen.feeds(without))
        want, got = (self._of(loaded, feeds) for loaded in (self.before, self.after))
        return want, got

    def _of(self, loaded: ort.InferenceSession, feeds: Iterable[Feed]) -> Answers:
        names = self.surface.outputs
        batches = [run(loaded, names, feed, "real windows") for feed in feeds]
        return {
            name: np.concatenate(parts) for name, parts in zip(names, zip(*batches, strict=True), strict=True)
        }


def _measured(model: bytes, made: bytes, surface: Surface, own: Paths, chosen: CalibrationChoice) -> Made:
    """Run both; raises Refused if the variant does not run."""
    pair = _Pair(surface, session(model), session(made))
    require_own(pair.after, own)
    for where, inputs in cases(surface):
        run(pair.after, surface.outputs, inputs, where)
    found = _figures(pair, chosen) | {"windows": float(len(chosen)), "bytes": float(len(made))}
    lost = [
        f"{100 * found[name]:.1f} % of windows{words} (at least {100 * least:g} %)"
        for name, words, least in (
            ("agreement", "", MIN_AGREEMENT),
            ("agreement_missing", " without a modality", MIN_AGREEMENT_MISSING),
        )
        if found.get(name, 1.0) < least
    ]
    if lost:
        return Made(f"none: int8 says what float32 says on {' and '.join(lost)}")
    single, many = timed(pair.after, surface)
    rounded = {name: round(value, _DIGITS) for name, value in sorted(found.items())}
    variant = Variant(file=INT8_FILE, precision="int8", measured=rounded)
    return Made(_words(rounded, len(model)), made, variant, single, many)


def _figures(pair: _Pair, chosen: CalibrationChoice) -> dict[str, float]:
    """Agreement and differences, over all targets."""
    surface = pair.surface
    want, got = pair.answers(chosen)
    found = {"agreement": float(_agree(surface, want, got).mean())}
    classes = [output_names(t)[0] for t in surface.targets if t.kind == "classification"]
    if classes:
        off = [np.abs(got[name] - want[name]) for name in classes]
        found["max_difference"] = max(float(each.max()) for each in off)
        found["mean_difference"] = max(float(each.mean()) for each in off)
    if len(chosen.names) > 1:
        found["agreement_missing"] = min(
            float(_agree(surface, *pair.answers(chosen, name)).mean()) for name in chosen.names
        )
    return found | _accuracy(surface, chosen, want, got)


def _agree(surface: Surface, want: Answers, got: Answers) -> NDArray[np.bool_]:
    """``same_B``: windows on which all targets agree."""
    same: NDArray[np.bool_] = np.logical_and.reduce(
        [_alike(surface, t, want[output_names(t)[0]], got[output_names(t)[0]]) for t in surface.targets]
    )
    return same


def _alike(surface: Surface, of: Target, want: Array, got: Array) -> NDArray[np.bool_]:
    """Equal classes; values, or means of windows, within :data:`NEAR` of the scale."""
    if of.kind == "classification":
        return np.asarray(want.argmax(axis=1) == got.argmax(axis=1))
    scale = surface.generated[of.name].scale if of.name in surface.generated else of.scale
    off = np.square((got - want).astype(np.float64)).reshape(len(want), -1).mean(axis=1)
    return np.asarray(np.sqrt(off) <= NEAR * scale)


def _accuracy(surface: Surface, chosen: CalibrationChoice, want: Answers, got: Answers) -> dict[str, float]:
    """Accuracy of ``label`` of both, on labelled windows."""
    label = next((t for t in surface.targets if t.name == LABEL), None)
    y_B = chosen.target(LABEL)
    labelled = np.isfinite(y_B)
    if label is None or not labelled.any():
        return {}
    name = output_names(label)[0]
    return {
        words: float((answers[name].argmax(axis=1)[labelled] == y_B[labelled]).mean())
        for words, answers in (("accuracy", got), ("accuracy_float32", want))
    }


def _words(found: Mapping[str, float], before: int) -> str:
    missing = found.get("agreement_missing")
    more = "" if missing is None else f", {100 * missing:.1f} % with a modality missing"
    return (
        f"{found['bytes']:.0f} bytes instead of {before}; says what float32 says on "
        f"{100 * found['agreement']:.1f} % of {found['windows']:.0f} windows{more}"
    )
