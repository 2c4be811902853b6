"""Supervised training on the labelled windows: the head alone, or encoders and head together. Imports torch.

Plain functions, from a state to a state: the trainer's two steps, and the baseline with labelled windows
only, use the same code. A window's missing modality is a feature of zeros, here as at inference.

Shapes: B windows, M modalities, C channels, T samples, D features, K classes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import torch
from torch import Tensor
from torch.nn import functional

from models.contract import Blobs, WindowSet
from models.methods.tactfl.coordinator_training.head_training import HeadRecipe, usable
from models.methods.tactfl.coordinator_training.standardization import Standard
from models.multimodal.inference import InferenceModel, probabilities
from models.multimodal.network import MultimodalNetwork, build, load_blobs, to_blobs
from models.seeds import derive_seed
from models.training import local
from models.training.evaluation import judge
from models.training.training_choices import housings_of
from protocol.errors import Misconfigured
from protocol.tasks.task import Task

_FEATURE_BATCH: Final = 256
_MEASURABLE: Final = 2
"""Windows that BatchNorm's statistics need: those of a single one may have no spread."""


def head_trained(
    task: Task, windows: WindowSet, state: Blobs, recipe: HeadRecipe, seed: int
) -> tuple[Blobs, dict[str, float]]:
    """The head trained on frozen encoders, from its current values; BatchNorm as at inference.

    It is trained in standard coordinates of the features
    (:mod:`models.methods.tactfl.coordinator_training.standardization`).

    Args:
        task: names and shapes.
        windows: those without a label or any modality are ignored.
        state: encoders and head; other blobs are returned unchanged.
        recipe: its augmentation is not read; with no epochs the state is returned unchanged.
        seed: the same gives the same bytes.

    Returns:
        The state with the new head; the encoders are the same objects. ``head_loss`` of the last epoch.

    Raises:
        Misconfigured: no window can train, or training diverges.
    """
    if not recipe.epochs:
        return state, {}
    generator = local.start_deterministic(derive_seed(seed, "head"))
    batch, net = FinetuneBatch.of(task, usable(task, windows)), _loaded(task, state)
    net.eval()
    with torch.no_grad():
        z = list(features(net, batch, recipe).values())
    standard, frozen_BF, wide = Standard.of(z, batch.present_BM), torch.cat(z, dim=1), z[0].shape[1]

    def step(index_B: Tensor) -> Tensor:
        keep_BM = _kept(batch.present_BM[index_B], recipe, generator)
        z_BF = standard(frozen_BF[index_B] * keep_BM.repeat_interleave(wide, dim=1))
        return functional.cross_entropy(net.head([z_BF]), batch.y_B[index_B])

    standard.enter(net.two_layers.fc1)
    loss = _descended(list(net.head.parameters()), step, len(batch), recipe, generator)
    standard.leave(net.two_layers.fc1)
    return {**state, "head": to_blobs(net)["head"]}, {"head_loss": loss}


def whole_trained(
    task: Task, windows: WindowSet, state: Blobs, recipe: HeadRecipe, seed: int
) -> tuple[Blobs, dict[str, float]]:
    """Train encoders and head together from their current values; then measure BatchNorm's statistics again.

    The head may begin from fresh values (``recipe.fresh_head``). The statistics are measured on whole
    windows, without augmentation and dropout, as at inference.

    Args:
        task: names and shapes.
        windows: those without a label or any modality are ignored.
        state: encoders and head; other blobs, and encoders that no window trains, are returned unchanged.
        recipe: how; with no epochs the state is returned unchanged.
        seed: the same gives the same bytes.

    Returns:
        The new state, and ``finetune_loss`` of the last epoch.

    Raises:
        Misconfigured: no window can train, or training diverges.
    """
    batch = FinetuneBatch.of(task, usable(task, windows))
    if not recipe.epochs:
        return state, {}
    generator = local.start_deterministic(derive_seed(seed, "whole"))
    net = _with_fresh_head(task, state) if recipe.fresh_head else _loaded(task, state)
    seen = [name for m, name in enumerate(net.names) if bool(batch.present_BM[:, m].any())]
    housings = housings_of(task, recipe.housings)
    net.train()

    def step(index_B: Tensor) -> Tensor:
        part = batch.at(index_B)
        x = local.augmented(part.x, recipe.rotate_deg, recipe.gain, housings, generator)
        keep_BM = _kept(part.present_BM, recipe, generator)
        return functional.cross_entropy(
            net.classify(features(net, FinetuneBatch(x, keep_BM, part.y_B), recipe)), part.y_B
        )

    parameters = [p for name in seen for p in net.encoders[name].parameters()]
    loss = _descended([*parameters, *net.head.parameters()], step, len(batch), recipe, generator)
    for m, name in enumerate(net.names):
        remeasured(net, name, batch.x[name][batch.present_BM[:, m]])
    made = to_blobs(net)
    trained = {blob: made[blob] for blob in ("head", *(f"encoder/{name}" for name in seen))}
    return {**state, **trained}, {"finetune_loss": loss}


def labelled_only(
    task: Task, windows: WindowSet, recipe: HeadRecipe, seed: int
) -> tuple[Blobs, dict[str, float]]:
    """The baseline without a fleet: a fresh network, encoders and head trained end to end.

    See :func:`whole_trained`; the fresh network is that of the method's ``initial`` of the same seed.
    """
    local.start_deterministic(derive_seed(seed, "initial"))
    return whole_trained(task, windows, to_blobs(build(task)), recipe, seed)


def scores(task: Task, windows: WindowSet, state: Blobs, recipe: HeadRecipe) -> dict[str, float]:
    """Scores of a state at inference: ``labelled_accuracy``, ``_macro_f1``, ``_loss`` and ``_windows``."""
    model = InferenceModel(
        _loaded(task, state), {}, recipe.normalise, recipe.feature_scale, impute="zero_feature"
    )
    found = judge(windows.y_B, probabilities(model, windows)).metrics
    return {f"labelled_{name}": found[name] for name in ("accuracy", "macro_f1", "loss", "windows")}


@dataclass(frozen=True)
class FinetuneBatch:
    """Windows as tensors: ``x_BCT`` by modality, zeros where missing; ``present_BM``; ``y_B``."""

    x: Mapping[str, Tensor]
    present_BM: Tensor
    y_B: Tensor

    @classmethod
    def of(cls, task: Task, windows: WindowSet) -> Self:
        """From a set of the task."""
        present_BM = torch.from_numpy(windows.present_BM)
        x = {
            name: torch.where(present_BM[:, m, None, None], torch.from_numpy(windows.x[name]), 0.0)
            for m, name in enumerate(task.modality_names)
        }
        return cls(x, present_BM, torch.from_numpy(windows.y_B))

    def at(self, index_B: Tensor) -> "FinetuneBatch":
        """Some of the windows."""
        x = {name: x_BCT[index_B] for name, x_BCT in self.x.items()}
        return FinetuneBatch(x, self.present_BM[index_B], self.y_B[index_B])

    def __len__(self) -> int:
        return len(self.y_B)


def features(net: MultimodalNetwork, batch: FinetuneBatch, recipe: HeadRecipe) -> dict[str, Tensor]:
    """``z_BD`` by modality as the head gets them: zeros for a missing one, which is not encoded."""
    z = {}
    for m, name in enumerate(net.names):
        here_B = batch.present_BM[:, m]
        z_BD = torch.zeros(len(batch), net.shape[1])
        if bool(here_B.any()):
            z_BD[here_B] = recipe.scaled(encoded(net, name, batch.x[name][here_B]))
        z[name] = z_BD
    return z


def encoded(net: MultimodalNetwork, name: str, x_BCT: Tensor) -> Tensor:
    """``z_BD``, in pieces if nothing is trained, so that memory does not grow with the labelled set."""
    if net.training:
        return net.encode(name, x_BCT)
    return torch.cat([net.encode(name, part) for part in torch.split(x_BCT, _FEATURE_BATCH)])


def _loaded(task: Task, state: Blobs) -> MultimodalNetwork:
    net = build(task)
    load_blobs(net, state)
    return net


def _with_fresh_head(task: Task, state: Blobs) -> MultimodalNetwork:
    """The state's encoders; the head as ``build`` creates it, from torch's own generator."""
    net = build(task)
    kept = to_blobs(net)["head"]
    load_blobs(net, {**state, "head": kept})
    return net


def _kept(present_BM: Tensor, recipe: HeadRecipe, generator: torch.Generator) -> Tensor:
    if not recipe.dropout:
        return present_BM
    return local.kept(present_BM, torch.ones_like(present_BM), recipe.dropout, generator)


class _FadingAdam(local.Adam):
    """Adam with a decreasing step."""

    def fade(self, lr: float) -> None:
        """Continue with steps of this size."""
        self._lr = lr


def _descended(
    parameters: Sequence[Tensor],
    step: Callable[[Tensor], Tensor],
    count: int,
    recipe: HeadRecipe,
    generator: torch.Generator,
) -> float:
    """All epochs; the mean loss of the last one."""
    adam = _FadingAdam(parameters, recipe.lr, recipe.weight_decay)
    steps, done, loss = recipe.epochs * math.ceil(count / recipe.batch), 0, 0.0
    for _ in range(recipe.epochs):
        losses = []
        for index_B in local.batches(count, recipe.batch, generator):
            adam.fade(recipe.lr * (1 + math.cos(math.pi * done / steps)) / 2)
            found = step(index_B)
            adam.descend(found)
            losses.append(float(found.detach()) * len(index_B))
            done += 1
        loss = sum(losses) / count
        if not math.isfinite(loss):
            raise Misconfigured(
                f"training on {count} labelled windows diverged at a step of {recipe.lr:g}: lower "
                "config.head_lr or finetune_lr, or aggregator.lr where the encoders have grown out of bounds"
            )
    return loss


def remeasured(net: MultimodalNetwork, name: str, x_BCT: Tensor) -> None:
    """BatchNorm statistics of one encoder, on these windows; with fewer than two they stay as they are."""
    if len(x_BCT) >= _MEASURABLE:
        net.measure_norms(name, x_BCT)
