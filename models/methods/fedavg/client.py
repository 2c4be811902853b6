"""The client half of FedAvg: epochs of SGD, with FedProx's term and FedBN's own norms. Imports torch."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from models.contract import Blobs, ClientContext, Evaluation, LocalResult, Tensors, WindowSet
from models.methods.fedavg import METHOD
from models.methods.fedavg.linear import FedAvgLinear, trainable, weight_of
from models.methods.fedavg.personal import blended, norms_to_keep, tensors_to_send
from models.multimodal.inference import InferenceModel, probabilities
from models.multimodal.network import MultimodalNetwork, build, load_blobs, to_blobs
from models.multimodal.stacked import stacking_trouble
from models.privacy.local.private_training import PrivateTraining
from models.seeds import derive_seed
from models.tensors import difference, flatten
from models.training import local
from models.training.evaluation import judge
from models.training.group_client import GroupMember
from models.training.supervised import SupervisedTraining, TrainingTask, trained_parts
from models.training.supervised_groups import GroupCandidate, GroupTraining, fits, grouped
from protocol.errors import Misconfigured, Transient
from protocol.tasks.network import LINEAR
from protocol.tasks.task import Task


class FedAvgClient:
    """See :class:`models.contract.Client`."""

    def __init__(self) -> None:
        self._linear = FedAvgLinear()
        self._built: tuple[Task, MultimodalNetwork] | None = None

    def initial(self, task: Task, seed: int) -> Blobs:
        """A fresh network."""
        local.start_deterministic(derive_seed(seed, "initial"))
        return to_blobs(build(task))

    def train(
        self, context: ClientContext, windows: WindowSet, state: Blobs, private: Tensors
    ) -> LocalResult:
        """Train on the labelled windows; send the head and the encoders that had windows.

        Private are the device's own norms (``personal.py``), and with ``[local_privacy]`` the charge of this
        training; then metrics tell of no window's content. Else, of the last epoch: ``loss`` (without
        FedProx's term) and ``accuracy``; of the windows: ``windows`` that trained, ``unlabelled``,
        ``set_aside``, ``incomplete``.

        Raises:
            Transient: no window is labelled and has a modality that the device has an encoder for (all
                modalities, with ``complete_only``).
        """
        config, task = METHOD.configure(context.task), context.task
        if task.network.kind == LINEAR:
            return self._linear.train(context, windows, state, private)
        used, metrics = trainable(context, windows, _encoders(task, state))
        net = self._network(task)
        load_blobs(net, blended(config, state, private), partial=True)
        trainer = _training(net, context)
        metrics |= trainer.run(used, context.round)
        trained = trained_parts(net, trainer.trained)
        return LocalResult(
            tensors=difference(tensors_to_send(config, trained), flatten(state)),
            weight=weight_of(config, used),
            metrics=metrics,
            private={
                **norms_to_keep(config, private, trained),
                **(trainer.plan.charge() if isinstance(trainer, PrivateTraining) else {}),
            },
        )

    def group_trouble(self, task: Task) -> str:
        """See :class:`models.training.group_client.GroupClient`."""
        config = METHOD.configure(task)
        if task.network.kind == LINEAR:
            return "a linear network is trained with NumPy"
        if task.local_privacy is not None:
            return "[local_privacy]: gradients of single windows are clipped, of one device at a time"
        if config.modality_dropout:
            return f"config.modality_dropout = {config.modality_dropout}: windows of a batch lack modalities"
        if config.private_norms != "none":
            return f"config.private_norms = {config.private_norms!r}: devices begin with norms of their own"
        return stacking_trouble(self._network(task))

    def train_group(self, members: Sequence[GroupMember], state: Blobs) -> list[LocalResult | None]:
        """See :class:`models.training.group_client.GroupClient`; devices with complete windows fit."""
        task = members[0].context.task
        net, encoders = self._network(task), _encoders(task, state)
        load_blobs(net, state, partial=True)
        candidates = []
        for place, member in enumerate(members):
            with suppress(Transient):  # alone, it says why it cannot train
                used, metrics = trainable(member.context, member.windows, encoders)
                if fits(net, used):
                    candidates.append(GroupCandidate(place, member, used, metrics))
        results: list[LocalResult | None] = [None] * len(members)
        for group in grouped(net, candidates):
            for one, result in zip(group, _trained_group(net, group, state), strict=True):
                results[one.place] = result
        return results

    def _network(self, task: Task) -> MultimodalNetwork:
        """A network to load a version into; one for all devices of a simulation.

        What a version does not set (encoders of modalities that a device lacks) is neither used nor sent.
        """
        if self._built is None or self._built[0] is not task:
            self._built = task, build(task)
        return self._built[1]

    def inference_model(self, task: Task, state: Blobs) -> InferenceModel:
        """The module for evaluation and ONNX export; a missing feature is zero."""
        config = METHOD.configure(task)
        net = build(task)
        load_blobs(net, state)
        return InferenceModel(net, {}, config.normalise, config.feature_scale, impute="zero_feature")

    def evaluate(self, task: Task, windows: WindowSet, state: Blobs) -> Evaluation:
        """Evaluate a global state on labelled windows, missing modalities handled as at inference.

        Raises:
            Misconfigured: no window is labelled, or the coordinator has no norms.
        """
        if METHOD.configure(task).private_norms == "strict":
            raise Misconfigured(
                f"task {task.name!r}: the coordinator has no trained norms to evaluate with, each device "
                'keeps its own; config.private_norms = "with_mean" would give their mean'
            )
        return judge(windows.y_B, probabilities(self.inference_model(task, state), windows))


def _encoders(task: Task, state: Blobs) -> tuple[str, ...]:
    """The modalities that there is an encoder for."""
    return tuple(name for name in task.modality_names if f"encoder/{name}" in state)


def _training(net: MultimodalNetwork, context: ClientContext) -> SupervisedTraining:
    config = METHOD.configure(context.task)
    generator = local.start_deterministic(derive_seed(context.seed, context.device, context.round))
    about, local_privacy = TrainingTask.of(context.task, config), context.task.local_privacy
    if local_privacy is not None:
        return PrivateTraining(net, about, config, local_privacy, generator, proximal=config.proximal)
    return SupervisedTraining(net, about, config, generator, proximal=config.proximal)


def _trained_group(
    net: MultimodalNetwork, group: Sequence[GroupCandidate], state: Blobs
) -> Iterator[LocalResult]:
    """The results of devices that train at once."""
    contexts = [one.member.context for one in group]
    config = METHOD.configure(contexts[0].task)
    devices = [_training(net, context) for context in contexts]
    training = GroupTraining(net, devices, [one.windows for one in group], config, proximal=config.proximal)
    measured = training.run(contexts[0].round)
    if config.remeasure_norms:
        training.features()
    for one, metrics, deltas in zip(group, measured, training.deltas(flatten(state)), strict=True):
        yield LocalResult(
            tensors=deltas, weight=weight_of(config, one.windows), metrics=one.metrics | metrics
        )


make_client = FedAvgClient
