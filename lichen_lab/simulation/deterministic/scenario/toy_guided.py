"""Guided rounds of the simulated fleet: views of updates, and the coordinator's training. NumPy."""

from collections.abc import Mapping
from typing import Any, Final, cast

import numpy as np

from models.contract import Blobs, Fold, Server, Tensors, Update
from models.guided import DeviceWeights
from protocol.tasks.task import Task

_SEEN: Final = 8
"""Numbers of an update in its view."""
_PART: Final = "first"
_WHOLE: Final = 1 << 16
_STEP: Final = 0.01


def viewed(update: Update) -> Tensors:
    """View of an update: its first numbers."""
    first = min(update.tensors)  # of a device that does not train, a prototype
    return {_PART: update.tensors[first].reshape(-1)[:_SEEN]}


def train_step(round_: int, seed: int, state: Blobs) -> Blobs:
    """The coordinator's training: a step that depends on round and seed alone."""
    head = state["head"]["head/w"]
    step = np.random.default_rng([seed, round_]).normal(0.0, _STEP, head.shape)
    return {**state, "head": {"head/w": (head + step).astype(np.float32)}}


class GuidedHalf:
    """A method's coordinator half, that weighs devices by their first numbers."""

    def __init__(self, inner: Server) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def weigh(self, task: Task, views: Mapping[str, Tensors]) -> DeviceWeights:
        """See ``models.guided.GuidedServer``."""
        del task
        size = {device: 1.0 + float(abs(views[device][_PART]).sum()) for device in sorted(views)}
        total = sum(size.values())
        alike = {one: {other: 1.0 if one == other else 0.5 for other in size} for one in size}
        return DeviceWeights(
            {_PART: {device: value / total for device, value in size.items()}}, {_PART: alike}
        )

    def open_guided(self, task: Task, round_: int, state: Blobs, weighing: DeviceWeights) -> Fold:
        """See ``models.guided.GuidedServer``."""
        return cast("Fold", _Weighted(self._inner.open(task, round_, state), weighing.weights[_PART]))


class _Weighted:
    """A fold with the round's weights instead of the devices' own."""

    def __init__(self, inner: Fold, weights: Mapping[str, float]) -> None:
        self._inner = inner
        self._weights = weights

    def fold(self, update: Update) -> None:
        weight = max(1, round(self._weights[update.header.device] * _WHOLE))
        self._inner.fold(Update(update.header.model_copy(update={"weight": weight}), update.tensors))

    def close(self) -> Blobs:
        return self._inner.close()
