"""The client half of QQR: local training with PNR and PLR, then its prototypes (OGPC). Imports torch.

Order within a round: the paper sends prototypes, waits for the global ones and then trains. Here one update
carries both: training uses the global prototypes of earlier rounds, and the prototypes sent are those of the
encoders just trained, so they fit the model that the coordinator aggregates from them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray

from models.contract import Blobs, ClientContext, Evaluation, FloatArray, LocalResult, Tensors, WindowSet
from models.data import window_set
from models.methods.qqr import METHOD, QqrConfig
from models.methods.qqr.group_training import fits, group_trouble
from models.methods.qqr.linear import QqrLinear, kept
from models.methods.qqr.local_rounds import OwnWeights, model_travels, usable
from models.methods.qqr.local_training import Globals, LocalTraining
from models.methods.qqr.prototyper import QqrPrototyper, local_prototypes
from models.methods.qqr.prototypes import (
    blob_name,
    fresh_classes,
    rounds_name,
    table,
    trained,
    values_name,
)
from models.multimodal.inference import Impute as InferenceImpute
from models.multimodal.inference import InferenceModel, probabilities
from models.multimodal.network import MultimodalNetwork, build, load_blobs, to_blobs
from models.seeds import derive_seed
from models.tensors import difference, flatten
from models.training import local
from models.training.evaluation import judge
from models.training.group_client import GroupMember
from models.training.supervised import trained_parts
from models.training.supervised_groups import GroupCandidate, GroupTraining, grouped
from models.training.usable_windows import nothing_to_learn
from protocol.errors import Transient
from protocol.tasks.network import LINEAR
from protocol.tasks.task import Task

Features = Mapping[str, tuple[NDArray[np.int64], FloatArray]]
"""By modality, places of windows, and their features ``z_BD``."""
_AT_INFERENCE: dict[str, InferenceImpute] = {
    "pnr": "prototype",
    "pnr_posterior": "prototype",
    "mean_feature": "mean_feature",
    "zero_input": "zero_input",
    "zero_feature": "zero_feature",
    "complete_only": "zero_feature",
}


class QqrClient:
    """See :class:`models.contract.Client`.

    Args:
        prototyper: computes prototypes if nothing else is sent.
    """

    def __init__(self, prototyper: QqrPrototyper | None = None) -> None:
        self._prototyper = prototyper or QqrPrototyper()
        self._linear = QqrLinear(self._prototyper)
        self._built: tuple[Task, MultimodalNetwork] | None = None

    def initial(self, task: Task, seed: int) -> Blobs:
        """A fresh network, and prototypes of no round."""
        local.start_deterministic(derive_seed(seed, "initial"))
        shape = (len(task.labels), task.network.feature_dim)
        prototypes = {
            blob_name(name): {
                values_name(name): np.zeros(shape, np.float32),
                rounds_name(name): np.zeros(shape[0], np.float32),
            }
            for name in task.modality_names
        }
        return to_blobs(build(task)) | prototypes | fresh_classes(task)

    def train(
        self, context: ClientContext, windows: WindowSet, state: Blobs, private: Tensors
    ) -> LocalResult:
        """Train on the labelled windows, compute prototypes of them.

        If every window waits for a prototype, and in the rounds between those in which models are sent
        (``model_every``), only prototypes are sent.

        Private are: the device's own weights in the rounds between (``local_rounds.py``), its personal
        tensors (``personal.py``), and its privacy account (``models/privacy/account.py``).

        Raises:
            Transient: there is nothing to send: no window is labelled and has a modality that the device has
                an encoder for (all modalities, with ``complete_only``), or its privacy budget is spent.
        """
        config, task = METHOD.configure(context.task), context.task
        if task.network.kind == LINEAR:
            return self._linear.train(context, windows, state, private)
        generator = local.start_deterministic(_seed(context))
        net = self._network(task)
        known = _globals(task, state, config)
        if config.upload == "prototypes":
            load_blobs(net, state, partial=True)
            return self._summarised(context, windows, net, known, private)
        own = OwnWeights.of(state, private) if config.model_every > 1 else OwnWeights({})
        load_blobs(net, own.over(state), partial=True)
        seen, ready_B, metrics = usable(context, windows, known.encoders, _seen(known), config)
        features: Features = {}
        if ready_B.any():
            trainer = LocalTraining(net, known, config, generator)
            metrics |= trainer.run(window_set.where(seen, ready_B), context.round)
            own = OwnWeights(trained_parts(net, own.trained | trainer.trained), own.rounds + 1)
            places_R = np.flatnonzero(ready_B)
            features = {name: (places_R[at_R], z_BD) for name, (at_R, z_BD) in trainer.measured.items()}
        tensors: Tensors = {}
        if model_travels(task, config, context.round):
            tensors = difference(own.tensors, flatten(state))
        made = local_prototypes(task, config, seen, _raw_features(net, known, seen, features))
        if not tensors and not made.tensors:
            raise nothing_to_learn(context, metrics)
        if config.model_every > 1:
            metrics["local_rounds"] = float(own.rounds)
        return LocalResult(
            tensors=tensors | made.tensors,
            codecs=made.codecs,
            metrics=metrics | made.metrics,
            extra=made.message.extra(),
            private=kept(context.task, config, state, private, own, made),
        )

    def group_trouble(self, task: Task) -> str:
        """See :class:`models.training.group_client.GroupClient`."""
        if task.network.kind == LINEAR:
            return "a linear network is trained with NumPy"
        return group_trouble(self._network(task), METHOD.configure(task))

    def train_group(self, members: Sequence[GroupMember], state: Blobs) -> list[LocalResult | None]:
        """See :class:`models.training.group_client.GroupClient`; who fits: ``group_training.py``."""
        task = members[0].context.task
        config, net = METHOD.configure(task), self._network(task)
        known = _globals(task, state, config)
        load_blobs(net, state, partial=True)
        candidates = []
        for place, member in enumerate(members):
            with suppress(Transient):  # alone, it says why it cannot train
                seen, ready_B, metrics = usable(
                    member.context, member.windows, known.encoders, _seen(known), config
                )
                if ready_B.all() and fits(net, known, seen):
                    candidates.append(GroupCandidate(place, member, seen, metrics))
        results: list[LocalResult | None] = [None] * len(members)
        for group in grouped(net, candidates):
            for one, result in zip(group, _trained_group(net, known, group, state), strict=True):
                results[one.place] = result
        return results

    def _network(self, task: Task) -> MultimodalNetwork:
        """A network to load a version into; one for all devices of a simulation.

        What a version does not set (encoders of modalities that a device lacks) is neither used nor sent.
        """
        if self._built is None or self._built[0] is not task:
            self._built = task, build(task)
        return self._built[1]

    def _summarised(
        self,
        context: ClientContext,
        windows: WindowSet,
        net: MultimodalNetwork,
        known: Globals,
        private: Tensors,
    ) -> LocalResult:
        """The result of a device without torch, with the features of this network."""
        seen, _, metrics = usable(context, windows, known.encoders, _seen(known), known.config)
        result = self._prototyper.summarise(context, seen, _raw_features(net, known, seen, {}), private)
        result.metrics = metrics | {k: v for k, v in result.metrics.items() if k not in metrics}
        return result

    def inference_model(self, task: Task, state: Blobs) -> InferenceModel:
        """The module for evaluation and ONNX export."""
        config = METHOD.configure(task)
        net = build(task)
        load_blobs(net, state)
        tables = {name: table(state, name) for name in task.modality_names}
        impute = _AT_INFERENCE[config.impute]
        return InferenceModel(
            net,
            tables,
            config.normalise,
            config.feature_scale,
            impute=impute,
            trained=trained(state) if config.novel_classes else None,
        )

    def evaluate(self, task: Task, windows: WindowSet, state: Blobs) -> Evaluation:
        """Evaluate a global state on labelled windows, missing modalities handled as at inference.

        Raises:
            Misconfigured: no window is labelled.
        """
        return judge(windows.y_B, probabilities(self.inference_model(task, state), windows))


def _trained_group(
    net: MultimodalNetwork, known: Globals, group: Sequence[GroupCandidate], state: Blobs
) -> Iterator[LocalResult]:
    """The results of devices that train at once."""
    config, contexts = known.config, [one.member.context for one in group]
    devices = [
        LocalTraining(net, known, config, local.start_deterministic(_seed(context))) for context in contexts
    ]
    training = GroupTraining(net, devices, [one.windows for one in group], config)
    measured = training.run(contexts[0].round)
    features, arrays, deltas = training.features(), training.arrays(), training.deltas(flatten(state))
    for g, one in enumerate(group):
        task = one.member.context.task
        own = OwnWeights({name: array[g].copy() for name, array in arrays.items()}, 1)
        made = local_prototypes(
            task, config, one.windows, {name: z_GND[g] for name, z_GND in features.items()}
        )
        yield LocalResult(
            tensors=deltas[g] | made.tensors,
            codecs=made.codecs,
            metrics=one.metrics | measured[g] | {"low_quality": 0.0} | made.metrics,
            extra=made.message.extra(),
            private=kept(task, config, state, one.member.private, own, made),
        )


def _seed(context: ClientContext) -> int:
    return derive_seed(context.seed, context.device, context.round)


def _globals(task: Task, state: Blobs, config: QqrConfig) -> Globals:
    encoders = frozenset(name for name in task.modality_names if f"encoder/{name}" in state)
    return Globals.of(task, encoders, {name: table(state, name) for name in task.modality_names}, config)


def _seen(known: Globals) -> dict[str, NDArray[np.bool_]]:
    return {name: seen_K.numpy() for name, seen_K in known.seen.items()}


def _raw_features(
    net: MultimodalNetwork, known: Globals, windows: WindowSet, computed: Features
) -> dict[str, FloatArray]:
    """``z_BD`` by modality, before normalisation, of windows that give prototypes (14), others unset."""
    good_BM = windows.present_BM & known.high_quality(windows.quality_BM)
    made: dict[str, FloatArray] = {}
    for m, name in enumerate(net.names):
        if not good_BM[:, m].any():
            continue
        z_BD, left_B = np.zeros((len(windows), known.vbar[name].shape[1]), np.float32), good_BM[:, m].copy()
        if name in computed:
            rows, values = computed[name]
            z_BD[rows], left_B[rows] = values, False
        if left_B.any():
            z_BD[left_B] = net.features(name, torch.from_numpy(windows.x[name])[left_B]).numpy()
        made[name] = z_BD
    return made


make_client = QqrClient
