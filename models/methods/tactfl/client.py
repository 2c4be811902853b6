"""The client half of TACTFL: trains encoders without labels, and sends only these. Imports torch."""

from models.contract import Blobs, ClientContext, Evaluation, LocalResult, Tensors, WindowSet
from models.methods.tactfl import METHOD
from models.methods.tactfl.batch import Streams
from models.methods.tactfl.local_training import LocalTraining
from models.methods.tactfl.messages import TactflMessage
from models.multimodal.inference import InferenceModel, probabilities
from models.multimodal.network import build, load_blobs, to_blobs
from models.seeds import derive_seed
from models.tensors import difference, flatten
from models.training import local
from models.training.evaluation import judge
from protocol.errors import Misconfigured, Transient
from protocol.tasks.task import Task


class TactflClient:
    """See :class:`models.contract.Client`."""

    def initial(self, task: Task, seed: int) -> Blobs:
        """A fresh network.

        Raises:
            Misconfigured: an encoder takes windows of one length alone.
        """
        local.start_deterministic(derive_seed(seed, "initial"))
        net = build(task)
        for modality in task.modalities:
            if not modality.framed and modality.name not in net.any_length:
                raise Misconfigured(
                    f"task {task.name!r}: method {METHOD.name!r} encodes segments of windows, and "
                    f"network.encoders.{modality.name} takes whole windows alone (its module has no "
                    "any_length = True)"
                )
        return to_blobs(net)

    def train(
        self, context: ClientContext, windows: WindowSet, state: Blobs, private: Tensors
    ) -> LocalResult:
        """Train the encoders on all windows, whatever their labels; send those that had windows.

        Private are Adam's moments, by encoder (``keep_moments``). Metrics, of the last epoch: ``loss`` (1),
        and ``matched``, the share of segments whose most similar one in the paired modality overlaps them in
        time; of the windows: ``windows`` that trained, ``set_aside`` without a modality, ``alone`` with one,
        ``context`` with a context.

        Raises:
            Transient: there is nothing to send: fewer than two windows have a modality that the device has an
                encoder for, or no segment overlaps another.
        """
        config, task = METHOD.configure(context.task), context.task
        generator = local.start_deterministic(derive_seed(context.seed, context.device, context.round))
        net = build(task)
        load_blobs(net, state, partial=True)
        encoders = [name for name in task.modality_names if f"encoder/{name}" in state]
        every = Streams.of(task, windows, encoders, use_context=config.use_context)
        streams = every.at(every.present_BM.any(dim=1))
        metrics = {
            "windows": float(len(streams)),
            "set_aside": float(len(every) - len(streams)),
            "alone": float((streams.present_BM.sum(dim=1) == 1).sum()),
            "context": float((streams.back_s() < 0).sum()),
        }
        trainer = LocalTraining(task, net, config, generator, private)
        if len(streams):
            metrics |= trainer.run(streams, context.round)
        if not trainer.trained:
            raise _nothing_to_learn(context, metrics)
        sent = {blob for blob in to_blobs(net) if blob.removeprefix("encoder/") in trainer.trained}
        learnt = flatten({blob: tensors for blob, tensors in to_blobs(net).items() if blob in sent})
        return LocalResult(
            tensors=difference(learnt, flatten(state)),
            metrics=metrics,
            extra=TactflMessage(windows=trainer.trained).extra(),
            private=trainer.kept,
        )

    def inference_model(self, task: Task, state: Blobs) -> InferenceModel:
        """The module for evaluation and ONNX export; a missing feature is zero."""
        config = METHOD.configure(task)
        net = build(task)
        load_blobs(net, state)
        return InferenceModel(net, {}, config.normalise, config.feature_scale, impute="zero_feature")

    def evaluate(self, task: Task, windows: WindowSet, state: Blobs) -> Evaluation:
        """Evaluate a global state on labelled windows, missing modalities handled as at inference.

        Raises:
            Misconfigured: no window is labelled.
        """
        return judge(windows.y_B, probabilities(self.inference_model(task, state), windows))


def _nothing_to_learn(context: ClientContext, metrics: dict[str, float]) -> Transient:
    counted = ", ".join(f"{key} {metrics[key]:.0f}" for key in ("windows", "set_aside", "alone"))
    return Transient(
        f"device {context.device!r}, round {context.round}: no windows that can train: it takes two with "
        f"the same modalities, and segments that overlap ({counted})"
    )


make_client = TactflClient
