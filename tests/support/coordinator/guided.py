"""A tiny guided method in NumPy: a view is the mean of a model; one far from the median weighs less."""

from collections.abc import Mapping

import numpy as np

from models.aggregation.exact_sums import FixedPointSum
from models.guided import DeviceWeights
from models.tensors import apply, flatten, shapes, unflatten
from protocol.errors import Reason, Refused
from tests.support.coordinator.fake import TinyJobs, TinyServer

PART = "head"
ONE = 1 << 16


class GuidedFold:
    def __init__(self, state, weights: Mapping[str, float]) -> None:
        self._state = state
        self._weights = weights
        self._sum = FixedPointSum(shapes(flatten(state)))

    def fold(self, update) -> None:
        self._sum.add(update.tensors, max(1, round(self._weights[update.header.device] * ONE)))

    def close(self):
        return unflatten(apply(flatten(self._state), self._sum.mean()))


class Guided(TinyServer):
    """``fault``: raised by the weighing."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.fault = fault

    def weigh(self, _task, views):
        if self.fault is not None:
            raise self.fault
        seen = {device: float(views[device][PART][0]) for device in sorted(views)}
        middle = float(np.median(list(seen.values())))
        raw = {device: 1.0 / (1.0 + abs(value - middle)) for device, value in seen.items()}
        weights = {device: value / sum(raw.values()) for device, value in raw.items()}
        alike = {a: {b: 1.0 if a == b else 1.0 / (1.0 + abs(seen[a] - seen[b])) for b in seen} for a in seen}
        out = tuple(f"{d} is pushed out: raise floor" for d, w in weights.items() if w * len(seen) < 0.5)
        return DeviceWeights({PART: weights}, {PART: alike}, out)

    def open_guided(self, _task, _round, state, weighing):
        return GuidedFold(state, weighing.weights[PART])


class GuidedJobs(TinyJobs):
    """``blind``: devices whose view is refused; ``finished``: (round, seed) of each training; adds a half."""

    def __init__(self, blind=(), **kwargs) -> None:
        super().__init__(**kwargs)
        self.blind = set(blind)
        self.seen: list[list[str]] = []
        self.finished: list[tuple[int, int]] = []

    async def view(self, state, entries, limits):
        self._say("view")
        assert set(state) == {"head"}
        self.seen.append([entry.device for entry in entries])
        updates = {entry.device: entry.read(limits) for entry in entries}
        whole = {device: u.tensors["head/w"] + state["head"]["head/w"] for device, u in updates.items()}
        refused = {d: Refused(Reason.NON_FINITE, f"{d} is blind") for d in self.blind & set(whole)}
        views = {d: {PART: w.mean(keepdims=True)} for d, w in whole.items() if d not in refused}
        return views, refused

    async def finish(self, round_, seed, state):
        self._say("finish")
        self.finished.append((round_, seed))
        return {"head": {"head/w": state["head"]["head/w"] + np.float32(0.5)}}, {"head_loss": 0.25}
