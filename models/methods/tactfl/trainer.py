"""The work of TACTFL's coordinator on the labelled windows: view updates, train the head, fine-tune.

Imports torch; runs in the worker; see :class:`models.guided.ServerTrainer`.

Shapes: B windows, M modalities, D features, K classes.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.contract import Blobs, FloatArray, Tensors, Update, WindowSet
from models.methods.tactfl import METHOD, TactflConfig
from models.methods.tactfl.coordinator_training.finetune import encoded, head_trained, scores, whole_trained
from models.methods.tactfl.coordinator_training.head_training import HeadRecipe, usable
from models.methods.tactfl.device_weights import ENCODER, WINDOWS
from models.methods.tactfl.messages import TactflMessage
from models.multimodal.network import MultimodalNetwork, build, load_blobs
from models.seeds import derive_seed
from models.tensors import apply, blobs_of, flatten, unflatten
from models.training import local
from protocol.errors import Misconfigured, Reason, Refused
from protocol.tasks.task import Task


class TactflTrainer:
    """See :class:`models.guided.ServerTrainer`."""

    def view(self, task: Task, labelled: WindowSet, state: Blobs, update: Update) -> Tensors:
        """r_k of each encoder that a device sent: ``encoder/<modality>``, (D,) or, by classes, (K' * D,).

        K' are the classes with a labelled window of the modality, the same for all devices. Features are as
        the head gets them. Besides, ``windows/<modality>``, (1,): the windows it was trained on. A modality
        that no labelled window has gets only this.

        Raises:
            Refused: NON_FINITE: the device's model gives no finite numbers.
            Misconfigured: no labelled window has a label and a modality, or they give no finite numbers
                through the version itself.
        """
        config, windows = METHOD.configure(task), usable(task, labelled)
        local.start_deterministic(task.seed)
        net, blobs = build(task), blobs_of(update.tensors)
        base = flatten({blob: state[blob] for blob in blobs})
        load_blobs(net, unflatten(apply(base, update.tensors)), partial=True)
        net.eval()
        view, trained_on = Tensors(), TactflMessage.read(update.header.extra).windows
        for blob in blobs:
            name = blob.removeprefix(ENCODER)
            view[WINDOWS + name] = np.array([trained_on[name]], np.float32)
            here_B = windows.present_BM[:, task.modality_names.index(name)]
            if not here_B.any():
                continue
            x_BCT, y_B = torch.from_numpy(windows.x[name][here_B]), windows.y_B[here_B]
            view[blob] = _seen(config, net, name, x_BCT, y_B)
            if not np.isfinite(view[blob]).all():
                load_blobs(net, {blob: state[blob]}, partial=True)
                if not np.isfinite(_seen(config, net, name, x_BCT, y_B)).all():
                    raise Misconfigured(
                        f"task {task.name!r}: the windows of labelled.file give no finite numbers through "
                        f"the version's own {blob}: most likely they have values of {name!r} beyond sense"
                    )
                raise Refused(
                    Reason.NON_FINITE, f"{blob}: with this update the labelled windows give no finite numbers"
                )
        return view

    def finish(
        self, task: Task, round_: int, seed: int, labelled: WindowSet, state: Blobs
    ) -> tuple[Blobs, dict[str, float]]:
        """Train the head, in the rounds that ``head_every`` divides; in the last one, fine-tune everything.

        Args:
            task: its options, and which round is the last.
            round_: from 1.
            seed: the same gives the same bytes.
            labelled: windows without a label or any modality are ignored.
            state: of the fold; blobs of other parts are returned unchanged.

        Returns:
            The version, and ``head_loss``, ``finetune_loss`` (of the last epoch, if they were trained) and
            scores of the version on these windows: ``labelled_accuracy``, ``labelled_macro_f1``,
            ``labelled_loss``, ``labelled_windows``. It was trained on them, so they do not measure its
            quality.

        Raises:
            Misconfigured: no labelled window has a label and a modality, or training diverges.
        """
        config, windows, metrics = METHOD.configure(task), usable(task, labelled), dict[str, float]()
        last, chance = round_ >= task.rounds.count, derive_seed(seed, "finish", round_)
        if last or round_ % config.head_every == 0:
            state, metrics = head_trained(task, windows, state, HeadRecipe.of_head(config), chance)
        if last:
            state, found = whole_trained(task, windows, state, HeadRecipe.of_whole(config), chance)
            metrics |= found
        return state, metrics | scores(task, windows, state, HeadRecipe.of_head(config))


def _seen(
    config: TactflConfig, net: MultimodalNetwork, name: str, x_BCT: Tensor, y_B: NDArray[np.int64]
) -> FloatArray:
    """r_k of one encoder."""
    with torch.inference_mode():
        z_BD = HeadRecipe.of_head(config).scaled(encoded(net, name, x_BCT))
    with np.errstate(over="ignore", invalid="ignore"):  # not finite: the caller checks it
        return _summary(config, z_BD.numpy(), y_B)


def _summary(config: TactflConfig, z_BD: FloatArray, y_B: NDArray[np.int64]) -> FloatArray:
    """The mean feature, or those of the classes, concatenated; sums in float64."""
    parts = [z_BD]
    if config.summary == "classes":
        parts = [z_BD[y_B == k] for k in np.unique(y_B)]
    return np.concatenate([part.mean(axis=0, dtype=np.float64) for part in parts]).astype(np.float32)


make_trainer = TactflTrainer
