"""A device's class prototypes (OGPC), equations (13) and (14). NumPy only: every device computes them here.

A device that trains calls :func:`local_prototypes` with the features of the encoders it has just trained; one
without torch calls :class:`QqrPrototyper` with those of the base version's ONNX models.

Shapes: B windows, M modalities, D features, K classes, N windows of one class, R rows that are sent.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.contract import ClientContext, FloatArray, LocalResult, Tensors, WindowSet
from models.data.window_set import select
from models.methods.qqr import METHOD, QqrConfig
from models.methods.qqr.messages import PrototypeRows, QqrMessage
from models.methods.qqr.personal import Means, kept_prototypes
from models.methods.qqr.privacy import Draw, Guard
from models.methods.qqr.prototypes import BITS_3_LEVELS, left_after, values_name
from models.privacy.local.system_random import system_noise
from models.training.softmax_regression import length, normalise
from protocol.errors import Transient
from protocol.frames.tensors import Codec, decode, encode
from protocol.tasks.task import Task

_CODEC: Final = {2: Codec.INT2, 3: Codec.INT4, 4: Codec.INT4, 8: Codec.INT8, 32: Codec.FLOAT32}


Protect = Callable[[Means], Means]
"""Maps all means to those that may leave the device (differential privacy); a count of 0 sends none."""


@dataclass(frozen=True)
class LocalPrototypes:
    """The prototypes' part of a device's :class:`models.contract.LocalResult`.

    Attributes:
        message: which classes there are rows of, and from how many windows.
        tensors: ``values_RD`` by wire name.
        codecs: by wire name.
        metrics: ``prototypes`` (rows), ``prototype_windows`` (windows in them), ``left_out`` (windows of good
            quality that are not: too few of their class, too far from the others, not finite).
        means: before any protection, at their length; they stay on the device.
    """

    message: QqrMessage
    tensors: Tensors = field(default_factory=dict)
    codecs: dict[str, Codec] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    means: Means = field(default_factory=dict)


def bounded(z_BD: FloatArray, config: QqrConfig) -> FloatArray:
    """Features for prototypes: all of one length, or none longer than ``prototype_clip``."""
    if config.normalise:
        return normalise(z_BD, config.feature_scale)
    if not config.prototype_clip:
        return z_BD
    most = config.prototype_clip
    clipped: FloatArray = (z_BD * (most / np.maximum(length(z_BD), most))).astype(np.float32)
    return clipped


def high_quality(quality: FloatArray, config: QqrConfig) -> NDArray[np.bool_]:
    """The q of (14), elementwise; all true when quality is not read."""
    if config.quality == "none":
        return np.ones(quality.shape, np.bool_)
    good: NDArray[np.bool_] = quality >= config.quality_threshold
    return good


def class_means(
    z_BD: FloatArray, y_B: NDArray[np.int64], classes: int, *, trim: float = 0.0, least: int = 1
) -> tuple[FloatArray, NDArray[np.int64]]:
    """Local prototypes, equation (13), of windows that (14) admits.

    The denominator is the number of contributing windows *of that class*. Sums are in float64.

    Args:
        z_BD: features.
        y_B: true classes.
        classes: K.
        trim: share of a class's windows, rounded down, that is left out: those furthest from the
            coordinate-wise median. Not in the paper.
        least: a class with fewer windows (before any is left out) gets no prototype. Not in the paper.

    Returns:
        ``v_KD`` (zeros for a class without prototype) and ``count_K``, the windows in each.
    """
    v_KD = np.zeros((classes, z_BD.shape[1]), np.float32)
    count_K = np.zeros(classes, np.int64)
    for c in range(classes):
        z_ND = z_BD[y_B == c]
        if len(z_ND) >= least:
            inner_ND = _inner(z_ND, trim)
            v_KD[c] = np.add.reduce(inner_ND, axis=0, dtype=np.float64) / len(inner_ND)
            count_K[c] = len(inner_ND)
    return v_KD, count_K


def _inner(z_ND: FloatArray, trim: float) -> FloatArray:
    """All but the share of rows that is furthest from the coordinate-wise median."""
    count = left_after(len(z_ND), trim)
    if count == len(z_ND):
        return z_ND
    gap_N = np.square(z_ND - np.median(z_ND, axis=0), dtype=np.float64).sum(axis=1)
    return z_ND[np.sort(np.argsort(gap_N, kind="stable")[:count])]


def local_prototypes(
    task: Task,
    config: QqrConfig,
    windows: WindowSet,
    features: Mapping[str, FloatArray],
    protect: Protect | None = None,
) -> LocalPrototypes:
    """OGPC on the device, equations (13) and (14); only classes that occur are sent.

    Args:
        task: names and classes.
        config: the task's options.
        windows: rows without a label are ignored.
        features: by modality, ``z_BD`` for all rows of ``windows``, before normalisation.
        protect: changes the means before they are scaled to one length, rounded and sent.
    """
    raw, good = local_means(task, config, windows, features)
    means: Means = {name: (bounded(v_KD, config), count_K) for name, (v_KD, count_K) in raw.items()}
    sent = means
    if protect is not None:
        sent = {name: (bounded(v_KD, config), count_K) for name, (v_KD, count_K) in protect(raw).items()}
    rows: dict[str, PrototypeRows] = {}
    tensors: Tensors = {}
    used = 0
    for name, (v_KD, count_K) in sent.items():
        sent_R = np.flatnonzero(count_K)
        if len(sent_R):
            rows[name] = PrototypeRows(classes=tuple(sent_R.tolist()), counts=tuple(count_K[sent_R].tolist()))
            tensors[values_name(name)] = _coarse(v_KD[sent_R], config.prototype_bits)
            used += int(count_K.sum())
    metrics = {
        "prototypes": float(sum(len(row.classes) for row in rows.values())),
        "prototype_windows": float(used),
        "left_out": float(good - used),
    }
    return LocalPrototypes(
        QqrMessage(prototypes=rows),
        tensors,
        dict.fromkeys(tensors, _CODEC[config.prototype_bits]),
        metrics,
        means,
    )


def local_means(
    task: Task, config: QqrConfig, windows: WindowSet, features: Mapping[str, FloatArray]
) -> tuple[Means, int]:
    """``v_KD`` and ``count_K`` by modality, (13) and (14); and how many windows were labelled and good."""
    means: dict[str, tuple[FloatArray, NDArray[np.int64]]] = {}
    good = 0
    for m, name in enumerate(task.modality_names):
        if name not in features:
            continue
        keep_B = (
            (windows.y_B >= 0) & windows.present_BM[:, m] & high_quality(windows.quality_BM[:, m], config)
        )
        good += int(keep_B.sum())
        keep_B &= np.isfinite(features[name]).all(axis=1)
        means[name] = class_means(
            bounded(features[name][keep_B], config),
            windows.y_B[keep_B],
            len(task.labels),
            trim=config.prototype_trim,
            least=config.min_count,
        )
    return means, good


def _coarse(v_RD: FloatArray, bits: int) -> FloatArray:
    """Three bits have no codec of their own: first 8 levels, which int4 then represents nearly exactly."""
    return decode(encode(v_RD, Codec.INT4, levels=BITS_3_LEVELS)) if bits == 3 else v_RD  # noqa: PLR2004 - as above


class QqrPrototyper:
    """See :class:`models.contract.Prototyper`.

    Args:
        draw: source of the noise of differential privacy; tests use another.
    """

    def __init__(self, draw: Draw = system_noise) -> None:
        self._draw = draw

    def modalities(self, task: Task, windows: WindowSet) -> tuple[str, ...]:
        """The task's modalities that some labelled window has."""
        labelled_BM = windows.present_BM[windows.y_B >= 0]
        return tuple(name for m, name in enumerate(task.modality_names) if labelled_BM[:, m].any())

    def summarise(
        self,
        context: ClientContext,
        windows: WindowSet,
        features: Mapping[str, FloatArray],
        private: Tensors,
    ) -> LocalResult:
        """The device's prototypes; see :class:`models.contract.Prototyper`.

        Raises:
            Transient: no labelled window has a modality that there are features of, in good quality; or the
                privacy budget of all windows is spent.
        """
        config, task = METHOD.configure(context.task), context.task
        known_M = np.array([name in features for name in task.modality_names])
        present_BM = windows.present_BM & known_M
        labelled_B = windows.y_B >= 0
        complete = config.impute == "complete_only"
        use_B = labelled_B & (present_BM.all(axis=1) if complete else present_BM.any(axis=1))
        metrics = {
            "windows": float(use_B.sum()),
            "unlabelled": float((~labelled_B).sum()),
            "set_aside": float((labelled_B & ~use_B).sum()),
        }
        seen = replace(select(windows, use_B), present_BM=present_BM[use_B])
        guard = Guard(task, config, private, self._draw)
        good_BM = seen.present_BM & high_quality(seen.quality_BM, config)
        seen = replace(seen, present_BM=guard.admitted(seen, task.modality_names, good_BM))
        made = local_prototypes(
            task, config, seen, {name: z[use_B] for name, z in features.items()}, guard.protect
        )
        metrics |= made.metrics | guard.metrics()
        if not made.tensors:
            counted = ", ".join(f"{key} {value:.0f}" for key, value in metrics.items())
            raise Transient(
                f"device {context.device!r}, round {context.round}: {guard.why_nothing()} ({counted})"
            )
        return LocalResult(
            tensors=made.tensors,
            codecs=made.codecs,
            metrics=metrics,
            extra=made.message.extra(),
            private=guard.account.tensors() | kept_prototypes(task, config, private, made.means),
        )


make_prototyper = QqrPrototyper
