"""A device's half of QQR: local training with PNR and PLR, then its prototypes (OGPC). Imports torch.

Order within a round: the paper sends prototypes, waits for the global ones and then trains. Here one update
carries both: training uses the global prototypes of the rounds before, and the prototypes sent are those of
the encoders just trained, so they fit the model that the coordinator makes of them.
"""

from dataclasses import replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models import training
from models.contract import Blobs, ClientContext, Evaluation, FloatArray, LocalResult, Tensors, WindowSet
from models.evaluation import judge
from models.methods.qqr import METHOD, QqrConfig
from models.methods.qqr.local import Globals, LocalTraining, features
from models.methods.qqr.losses import class_means
from models.methods.qqr.messages import PrototypeRows, QqrMessage
from models.methods.qqr.prototypes import BITS_3_LEVELS, blob_name, rounds_name, table, values_name
from models.multimodal.inference import Impute as InferenceImpute
from models.multimodal.inference import InferenceModel
from models.multimodal.network import MultimodalNetwork, build, load_blobs, to_blobs
from models.params import difference, flatten
from models.windowset import select
from protocol.errors import Transient
from protocol.task import Task
from protocol.tensors import Codec, decode, encode

_CODEC = {2: Codec.INT2, 3: Codec.INT4, 4: Codec.INT4, 8: Codec.INT8, 32: Codec.FLOAT32}
_AT_INFERENCE: dict[str, InferenceImpute] = {
    "pnr": "prototype",
    "pnr_posterior": "prototype",
    "zero_input": "zero_input",
    "zero_feature": "zero_feature",
    "complete_only": "zero_feature",
}
_INFERENCE_BATCH = 256


class QqrClient:
    """See :class:`models.contract.Client`."""

    def initial(self, task: Task, seed: int) -> Blobs:
        """A fresh network, and prototypes that have seen no round."""
        training.start_deterministic(training.derive_seed(seed, "initial"))
        shape = (len(task.labels), task.network.feature_dim)
        prototypes = {
            blob_name(name): {
                values_name(name): np.zeros(shape, np.float32),
                rounds_name(name): np.zeros(shape[0], np.float32),
            }
            for name in task.modality_names
        }
        return to_blobs(build(task)) | prototypes

    def train(
        self, context: ClientContext, windows: WindowSet, state: Blobs, private: Tensors
    ) -> LocalResult:
        """Train on the labelled windows; QQR keeps nothing private.

        Where every window waits for a prototype, only prototypes are sent.

        Raises:
            Transient: there is nothing to send: no window is labelled and has a modality that the device has
                an encoder for (all modalities, with ``complete_only``).
        """
        del private
        config, task = cast("QqrConfig", METHOD.configure(context.task)), context.task
        generator = training.start_deterministic(
            training.derive_seed(context.seed, context.device, context.round)
        )
        net = build(task)
        load_blobs(net, state, partial=True)
        known = _globals(task, state, config)
        seen, ready_B, metrics = _usable(context, windows, known, config)
        tensors: Tensors = {}
        if config.upload == "model+prototypes" and ready_B.any():
            trainer = LocalTraining(net, known, config, generator)
            metrics |= trainer.run(select(seen, ready_B), context.round)
            tensors = _deltas(net, state, trainer.trained)
        message, prototypes = _local_prototypes(net, known, seen, config)
        if not tensors and not prototypes:
            raise _nothing_to_learn(context, metrics)
        return LocalResult(
            tensors=tensors | prototypes,
            codecs=dict.fromkeys(prototypes, _CODEC[config.prototype_bits]),
            metrics=metrics,
            extra=message.extra(),
        )

    def inference_model(self, task: Task, state: Blobs) -> InferenceModel:
        """The module that evaluation runs and that export turns into ONNX."""
        config = cast("QqrConfig", METHOD.configure(task))
        net = build(task)
        load_blobs(net, state)
        tables = {name: table(state, name) for name in task.modality_names}
        impute = _AT_INFERENCE[config.impute]
        return InferenceModel(net, tables, config.normalise, config.feature_scale, impute=impute)

    def evaluate(self, task: Task, windows: WindowSet, state: Blobs) -> Evaluation:
        """Judge a global state on labelled windows, missing modalities handled as at inference.

        Raises:
            Misconfigured: no window is labelled.
        """
        model = self.inference_model(task, state)
        x = training.to_torch(windows)
        present_BM = torch.from_numpy(windows.present_BM.astype(np.float32))
        parts = [np.zeros((0, len(task.labels)), np.float32)]
        with torch.inference_mode():
            for start in range(0, len(windows), _INFERENCE_BATCH):
                at = slice(start, start + _INFERENCE_BATCH)
                probabilities_BK, _ = model(present_BM[at], *(x[name][at] for name in task.modality_names))
                parts.append(probabilities_BK.numpy())
        return judge(windows.y_B, np.concatenate(parts))


def _globals(task: Task, state: Blobs, config: QqrConfig) -> Globals:
    encoders = frozenset(name for name in task.modality_names if f"encoder/{name}" in state)
    return Globals.of(task, encoders, {name: table(state, name) for name in task.modality_names}, config)


def _usable(
    context: ClientContext, windows: WindowSet, known: Globals, config: QqrConfig
) -> tuple[WindowSet, NDArray[np.bool_], dict[str, float]]:
    """The windows that are used this round, which of them train, and what became of the others, counted.

    What the device has no encoder for counts as missing, whatever its windows say. A window that waits for a
    prototype (PNR) does not train, but makes prototypes of what it has.
    """
    names = context.task.modality_names
    present_BM = windows.present_BM & np.array([name in known.encoders for name in names])
    labelled_B = windows.y_B >= 0
    use_B = labelled_B & (
        present_BM.all(axis=1) if config.impute == "complete_only" else present_BM.any(axis=1)
    )
    seen = replace(select(windows, use_B), present_BM=present_BM[use_B])
    waits_B = _waiting(known, names, seen, config)
    metrics = {
        "windows": float((~waits_B).sum()),
        "unlabelled": float((~labelled_B).sum()),
        "set_aside": float((labelled_B & ~use_B).sum()),
        "waiting": float(waits_B.sum()),
        "imputed": float((~seen.present_BM[~waits_B]).any(axis=1).sum()),
    }
    if not len(seen):
        raise _nothing_to_learn(context, metrics)
    return seen, ~waits_B, metrics


def _waiting(
    known: Globals, names: tuple[str, ...], windows: WindowSet, config: QqrConfig
) -> NDArray[np.bool_]:
    """PNR: which windows lack a modality that has no prototype to stand for it, and wait if so configured."""
    waits_B = np.zeros(len(windows), np.bool_)
    if config.missing_prototype == "wait":
        for m, name in enumerate(names):
            has_prototype_K = known.seen[name].numpy()
            if config.impute == "pnr":
                waits_B |= ~windows.present_BM[:, m] & ~has_prototype_K[windows.y_B]
            elif config.impute == "pnr_posterior" and not has_prototype_K.any():
                waits_B |= ~windows.present_BM[:, m]
    return waits_B


def _nothing_to_learn(context: ClientContext, metrics: dict[str, float]) -> Transient:
    counted = ", ".join(f"{key} {value:.0f}" for key, value in metrics.items())
    return Transient(
        f"device {context.device!r}, round {context.round}: no labelled windows that can train ({counted})"
    )


def _deltas(net: MultimodalNetwork, state: Blobs, trained: frozenset[str]) -> Tensors:
    """Local minus base: the head, and the encoders that had windows this round."""
    blobs = {"head", *(f"encoder/{name}" for name in trained)}
    new = {blob: tensors for blob, tensors in to_blobs(net).items() if blob in blobs}
    return difference(flatten(new), flatten(state))


def _local_prototypes(
    net: MultimodalNetwork, known: Globals, windows: WindowSet, config: QqrConfig
) -> tuple[QqrMessage, Tensors]:
    """OGPC on the device, equations (13) and (14); only classes that occur are sent."""
    rows: dict[str, PrototypeRows] = {}
    tensors: Tensors = {}
    y_B = torch.from_numpy(windows.y_B)
    good_BM = windows.present_BM & known.high_quality(windows.quality_BM)
    for m, name in enumerate(net.names):
        keep_B = torch.from_numpy(good_BM[:, m])
        if not bool(keep_B.any()):
            continue
        z_BD = features(net, known, name, torch.from_numpy(windows.x[name])[keep_B])
        v_KD, count_K = class_means(
            z_BD, y_B[keep_B], torch.ones(len(z_BD), dtype=torch.bool), len(known.seen[name])
        )
        occurs_K = count_K > 0
        rows[name] = PrototypeRows(
            classes=tuple(occurs_K.nonzero().flatten().tolist()), counts=tuple(count_K[occurs_K].tolist())
        )
        tensors[values_name(name)] = _coarse(known.scaled(v_KD)[occurs_K], config.prototype_bits)
    return QqrMessage(prototypes=rows), tensors


def _coarse(v_RD: Tensor, bits: int) -> FloatArray:
    """Three bits have no codec of their own: 8 levels first, which int4 then carries nearly exactly."""
    values = v_RD.numpy()
    return decode(encode(values, Codec.INT4, levels=BITS_3_LEVELS)) if bits == 3 else values  # noqa: PLR2004 - as above


def make_client() -> QqrClient:
    """The device's half."""
    return QqrClient()
