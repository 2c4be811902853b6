"""The coordinator half of QQR: plain mean of the models (5), global prototypes (15, 16). NumPy only."""

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

from models.aggregation.exact_sums import MAX_ABS
from models.aggregation.model_updates import check_model, encoder_blobs, model_tensors
from models.aggregation.partial_results import Flags, PartwiseFold
from models.aggregation.prototype_median import row_fold
from models.aggregation.robust import delta_fold
from models.contract import Blobs, FloatArray, Profile, Update
from models.header_checks import check_counts, check_weight_one
from models.methods.qqr import METHOD, QqrConfig
from models.methods.qqr.messages import PrototypeRows, QqrMessage
from models.methods.qqr.prototypes import (
    TRAINED_NAME,
    blob_name,
    cumulative,
    left_after,
    rounds_name,
    table,
    trained,
    values_name,
)
from models.partials import FoldParts
from models.tensors import apply, check_names, check_tensor, flatten, shapes, unflatten
from protocol.errors import Reason, Refused
from protocol.tasks.task import Task

FLOAT_BITS: Final = 32
"""``prototype_bits`` of prototypes that travel as float32."""
_ROUNDING: Final = 1.001
"""Room for float32 and the quantizer above a prototype's largest possible value."""


class QqrServer:
    """See :class:`models.contract.Server`."""

    def __init__(self) -> None:
        self._last: tuple[Blobs, dict[str, tuple[int, ...]]] | None = None

    def route(self, task: Task, profile: Profile) -> tuple[str, ...]:
        """The device's encoders, the head, and all prototypes: they impute modalities that it lacks."""
        zero_input = METHOD.configure(task).impute == "zero_input"
        own = set(task.modality_names if zero_input else profile.modalities)
        encoders = encoder_blobs(task, own)
        return (*encoders, "head", *(blob_name(name) for name in task.modality_names))

    def prototype_route(self, task: Task, modalities: Iterable[str]) -> tuple[str, ...]:
        """Only the device's encoders: features need nothing else."""
        return encoder_blobs(task, set(modalities))

    def check(self, task: Task, state: Blobs, update: Update) -> None:
        """Compare an update with the model; see :class:`models.contract.Server`.

        Raises:
            Refused: the detail names the tensor, the modality or the field of the extra message.
        """
        check_weight_one(update.header, "QQR takes a plain mean (5)")
        check_counts(task, update.header)
        message = QqrMessage.read(update.header.extra)
        prototypes = {name for name in update.tensors if name.startswith("prototypes/")}
        check_names(
            prototypes, map(values_name, message.prototypes), "prototypes and header.extra.prototypes"
        )
        model = {name: tensor for name, tensor in update.tensors.items() if name not in prototypes}
        if not update.tensors:
            raise Refused(Reason.WRONG_TENSORS, "the update has neither model tensors nor prototypes")
        config = METHOD.configure(task)
        if model:
            if config.upload == "prototypes":
                raise Refused(
                    Reason.WRONG_TENSORS,
                    f'tensor {min(model)!r}: with config.upload = "prototypes" no model tensor is taken',
                )
            check_model(self._shapes(state), model, config.max_delta)
        for name, rows in message.prototypes.items():
            _check_prototypes(task, config, state, update, name, rows)

    def _shapes(self, state: Blobs) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors that are sent as deltas; found once for the updates of a round."""
        last = self._last
        if last is None or last[0] is not state:
            last = self._last = state, shapes(model_tensors(state))
        return last[1]

    def open(self, task: Task, round_: int, state: Blobs) -> "QqrFold":
        """Begin a round on this state. (16) counts rounds per class, so ``round_`` itself is not read."""
        del round_
        return QqrFold(task, state)


class QqrFold(PartwiseFold):
    """One round's running aggregate; see :class:`models.contract.Fold`."""

    def __init__(self, task: Task, state: Blobs) -> None:
        self._config = METHOD.configure(task)
        self._state = state
        self._deltas = delta_fold(task.robust, shapes(model_tensors(state)), MAX_ABS)
        self._prototypes = {
            name: row_fold(task.robust, len(task.labels), task.network.feature_dim, MAX_ABS)
            for name in task.modality_names
        }
        self._trained = Flags(len(task.labels))

    def fold(self, update: Update) -> None:
        """Add one update that :meth:`QqrServer.check` has accepted."""
        message = QqrMessage.read(update.header.extra)
        model = {n: t for n, t in update.tensors.items() if not n.startswith("prototypes/")}
        self._deltas.add(model, update.header.weight)
        if model:
            for count_K in update.header.counts.values():
                self._trained.mark(np.array(count_K) > 0)
        for modality, rows in message.prototypes.items():
            name = values_name(modality)
            self._prototypes[modality].add(name, np.array(rows.classes), update.tensors[name])

    def parts(self) -> FoldParts:
        """Deltas, classes trained, and each modality's prototypes."""
        rows: FoldParts = {f"prototypes/{name}": rows for name, rows in self._prototypes.items()}
        return {"deltas": self._deltas, "trained": self._trained, **rows}

    def close(self) -> Blobs:
        """The next global state: base + mean delta (5); prototypes by (15) and (16); classes trained."""
        new = apply(flatten(self._state), self._deltas.mean())
        for name, rows in self._prototypes.items():
            vbar_KD, rounds_K = table(self._state, name)
            new[values_name(name)], new[rounds_name(name)] = cumulative(
                vbar_KD, rounds_K, rows.mean(), rows.count_K > 0, self._config
            )
        before_K = trained(self._state)
        if before_K is not None:
            new[TRAINED_NAME] = before_K + self._trained.flags_K.astype(np.float32)
        return unflatten(new)


def _check_prototypes(  # noqa: PLR0917 - each of another type: no two can be mistaken for each other
    task: Task, config: QqrConfig, state: Blobs, update: Update, modality: str, rows: PrototypeRows
) -> None:
    """Rows of known classes, from no more windows than the header counts, with possible values."""
    if modality not in task.modality_names:
        raise Refused(Reason.WRONG_MODALITY, f"extra.prototypes: the task has no modality {modality!r}")
    name, (classes, columns) = values_name(modality), table(state, modality)[0].shape
    present = update.header.counts.get(modality, (0,) * classes)
    least = left_after(config.min_count, config.prototype_trim)
    for index, count in zip(rows.classes, rows.counts, strict=True):
        if index >= classes:
            raise Refused(Reason.OUT_OF_BOUNDS, f"tensor {name!r}: class {index} of {classes}")
        if count > present[index]:
            raise Refused(
                Reason.OUT_OF_BOUNDS,
                f"tensor {name!r}: class {index} made from {count} windows, but "
                f"header.counts.{modality} has {present[index]}",
            )
        if count < least:
            raise Refused(
                Reason.OUT_OF_BOUNDS,
                f"tensor {name!r}: class {index} made from {count} windows; config.min_count and "
                f"config.prototype_trim leave at least {least}",
            )
    length = config.feature_scale if config.normalise else config.prototype_clip
    bound = length * _ROUNDING if length else MAX_ABS
    check_tensor(name, update.tensors[name], (len(rows.classes), columns), bound)
    if length:
        _check_lengths(name, update.tensors[name], length, config.prototype_bits)


def _check_lengths(name: str, values_RD: FloatArray, length: float, bits: int) -> None:
    """A prototype that was scaled to at most ``length`` is no longer, except for the quantizer's steps.

    One step is at most ``2 * length / (levels - 1)``, and each of D values may be off by one (half a step if
    it is rounded once, to the nearest).
    """
    steps = 0 if bits == FLOAT_BITS else 2 / (2**bits - 1)
    off = steps * math.sqrt(values_RD.shape[1])
    most = length * (_ROUNDING + off)
    longest = float(np.sqrt(np.square(values_RD, dtype=np.float64).sum(axis=1)).max(initial=0.0))
    if longest > most:
        raise Refused(
            Reason.OUT_OF_BOUNDS, f"tensor {name!r}: a prototype of length {longest:.6g}, at most {most:.6g}"
        )


make_server = QqrServer
