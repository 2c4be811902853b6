"""A tiny routed method in NumPy: devices hold parts of the model, and each kind gets a bundle of its own."""

import numpy as np

from coordinator.workers.jobs import ExportedBundle
from models.tensors import flatten
from protocol.errors import Misconfigured, Reason, Refused
from tests.support.coordinator.fake import TinyJobs, TinyServer


class Parts(TinyServer):
    """``base/<modality>`` of what it reads, ``last/<target>``; ``extra.best`` says which of two bases."""

    def route(self, task_, profile):
        return self.serving_route(task_, profile, None)

    def serving_route(self, _task, profile, extra):
        best = "" if extra is None else extra.get("best", "")
        if not isinstance(best, str):
            raise Refused(Reason.MALFORMED, "best is no word")
        bases = [f"base/{name}{best}" for name in profile.modalities]
        return tuple(sorted([*bases, *(f"last/{name}" for name in profile.targets)]))

    def check(self, _task, _state, _update) -> None:
        """Accepts any options."""

    def open(self, _task, _round, state):
        return Still(state)


class Still:
    def __init__(self, state) -> None:
        self._state = state

    def fold(self, _update) -> None:
        pass

    def close(self):
        return self._state


class PartJobs(TinyJobs):
    """``exported``: the blobs of every bundle, in order; ``broken``: blobs that no bundle can be made of."""

    def __init__(self, broken=(), error=Misconfigured) -> None:
        super().__init__()
        self.exported: list[tuple[str, ...]] = []
        self.broken = set(broken)
        self.error = error

    async def initial(self):
        self._say("initial")
        blobs = [f"base/{name}{best}" for name in ("acc", "gyro") for best in ("", "2")] + [
            "last/label",
            "last/speed",
        ]
        return {name: {f"{name}/w": np.zeros(2, np.float32)} for name in blobs}

    async def export(self, state, lineage):
        if broken := self.broken & set(state):
            raise self.error(f"{min(broken)} is broken")
        self.exported.append(tuple(state))
        assert set(flatten(state)) == {f"{name}/w" for name in state}
        return ExportedBundle(f"{lineage.version} {sorted(state)}".encode(), {})
