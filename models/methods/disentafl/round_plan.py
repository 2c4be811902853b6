"""Plan of a device's round: windows, profile, domain. NumPy only."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.contract import Blobs, ClientContext, Profile, WindowSet
from models.data.window_set import select
from models.data.window_set import target as truth_of
from models.methods.disentafl import DisentAflConfig
from models.methods.disentafl.router import profile_in
from models.methods.disentafl.routing import domain_gate
from models.methods.disentafl.routing.blob_names import config_of, domains_of, gated, profile_of
from models.tensors import flatten
from protocol.errors import Transient
from protocol.tasks.task import Target, Task

Mask = NDArray[np.bool_]
_SPLIT: Final = 1
"""Tells this use of chance from the gate's."""


def labelled(task: Task, target: Target, windows: WindowSet) -> Mask:
    """(B,) which windows say what the target is: a generation, where its modality is present."""
    known_B: Mask
    if target.modality is not None:
        known_B = windows.present_BM[:, task.modality_names.index(target.modality)]
    else:
        known_B = ~np.isnan(truth_of(windows, target.name))
    return known_B


@dataclass(frozen=True)
class Work:
    """What a device trains in a round.

    Attributes:
        context: as given.
        config: the task's options.
        profile: what is read and predicted, as far as the route and the windows that train go.
        windows: those that can train or judge.
        judges_B: which of them judge the domain and do not train; none, where there is no choice of domains.
        domain: whose experts are trained.
        metrics: what became of the windows, counted.
    """

    context: ClientContext
    config: DisentAflConfig
    profile: Profile
    windows: WindowSet
    judges_B: Mask
    domain: int
    metrics: dict[str, float]

    @property
    def judges_before(self) -> bool:
        """Whether all windows train, and judge the domain before that."""
        return gated(self.config) and self.config.validation == 0

    @classmethod
    def of(cls, context: ClientContext, windows: WindowSet, state: Blobs) -> "Work":
        """From what there is.

        Raises:
            Transient: no window has one of the route's modalities and a label of one of its targets.
        """
        task, config = context.task, config_of(context.task)
        asked, held = profile_in(context, windows), profile_of(task, state)
        inputs_M = np.array([m in asked.modalities and m in held.modalities for m in task.modality_names])
        targets = [task.target(o) for o in asked.targets if o in held.targets]
        labelled_OB = np.zeros((len(targets), len(windows)), np.bool_)
        for o, target in enumerate(targets):
            labelled_OB[o] = labelled(task, target, windows)
        present_BM: Mask = windows.present_BM & inputs_M
        use_B, metrics = _usable(context, np.any(labelled_OB, axis=0), np.any(present_BM, axis=1))
        seen, labelled_OB = select(windows, use_B), labelled_OB[:, use_B]
        judges_B = split(_key(targets, seen), config.validation if gated(config) else 0, _chance(context))
        there_M: Mask = np.any(present_BM[use_B][~judges_B], axis=0)
        known_O: Mask = np.any(labelled_OB[:, ~judges_B], axis=1)
        profile = Profile(
            tuple(m for m, there in zip(task.modality_names, there_M, strict=True) if there),
            tuple(target.name for target, known in zip(targets, known_O, strict=True) if known),
        )
        return cls(context, config, profile, seen, judges_B, _domain(context, profile, seen, state), metrics)


def _usable(context: ClientContext, labelled_B: Mask, present_B: Mask) -> tuple[Mask, dict[str, float]]:
    use_B = labelled_B & present_B
    metrics = {
        "windows": float(use_B.sum()),
        "unlabelled": float((~labelled_B).sum()),
        "set_aside": float((labelled_B & ~present_B).sum()),
    }
    if not use_B.any():
        counted = ", ".join(f"{key} {value:.0f}" for key, value in metrics.items())
        raise Transient(
            f"device {context.device!r}, round {context.round}: no labelled windows that can train "
            f"({counted})"
        )
    return use_B, metrics


def _chance(context: ClientContext) -> np.random.Generator:
    """Others judge in every round: a device with little data needs all of it to train."""
    return np.random.default_rng([context.seed, zlib.crc32(context.device.encode()), context.round, _SPLIT])


def _key(targets: Sequence[Target], windows: WindowSet) -> NDArray[np.int64]:
    """(B,) the class of the first classification, -1 where it is unknown."""
    for target in targets:
        if target.kind == "classification":
            return np.nan_to_num(truth_of(windows, target.name), nan=-1).astype(np.int64)
    return np.full(len(windows), -1)


def split(key_B: NDArray[np.int64], share: float, chance: np.random.Generator) -> Mask:
    """(B,) about ``share`` of all windows, and of each key's; never all of them."""
    order = chance.permutation(len(key_B))
    order = order[np.argsort(key_B[order], kind="stable")]
    taken = np.floor(np.arange(1, len(key_B) + 1) * share + chance.random())
    chosen_B = np.zeros(len(key_B), np.bool_)
    chosen_B[order] = np.diff(taken, prepend=0) > 0
    return chosen_B if not chosen_B.all() else np.zeros_like(chosen_B)


def _domain(context: ClientContext, profile: Profile, windows: WindowSet, state: Blobs) -> int:
    """The one of the route; where a state holds several, the gate's choice among them."""
    domains, config = domains_of(state), config_of(context.task)
    if len(domains) <= 1:
        return domains[0] if domains else 0
    return domain_gate.choose(
        domain_gate.scores(context.task, flatten(state), profile, windows), config, context
    )
