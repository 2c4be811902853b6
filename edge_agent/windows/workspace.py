"""The workspace of a task on windows: windower, quality meter and store."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.tasks.workspace import Problem, Readiness
from edge_agent.windows.counting_store import CountingStore
from edge_agent.windows.observed_profile import (
    count_readable,
    follows_windows,
    is_readable,
    is_useful,
    observed_profile,
    restrict_to_profile,
    served_profile,
    training_windows,
)
from edge_agent.windows.quality.meter import REASONS, QualityMeter
from edge_agent.windows.rows import RowKind, has_label, is_for_learning
from edge_agent.windows.statistics import StoreSnapshot
from edge_agent.windows.store import WindowStore
from edge_agent.windows.window_labels import end_undo
from models import registry
from models.contract import Profile, WindowSet
from models.data.streams.windows import Windower
from models.materials import Material
from protocol.errors import Misconfigured
from protocol.messages import ModalityState, Role
from protocol.tasks.task import LABEL, Task
from runtime.waits import stamp

_RECENT: Final = 50
"""Windows over which the reasons of the state message are counted."""
_OFTEN: Final = 0.2
"""A reason is reported if it applies to this share of them."""

EMPTY_STATUS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "windows_to_learn_from": 0,
        "labelled_windows": 0,
        "windows": 0,
        "store_bytes": 0,
        "dropped_by_class": {},
        "lost_windows": 0,
        "disk": "ok",
        "store": "on disk",
        "reasons": {},
        "samples": {},
    }
)
""":meth:`WindowWorkspace.status` while no task is known."""


@dataclass
class WindowWorkspace:
    """The state of one task on windows."""

    task: Task
    modalities: tuple[str, ...]
    """Those that this device may read, in the task's order."""
    windower: Windower
    meter: QualityMeter
    store: WindowStore | CountingStore
    recent: deque[NDArray[np.bool_]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    targets: tuple[str, ...] = (LABEL,)
    """Those that it may learn, in the task's order."""
    by: Role | None = "train"
    """The role in which it takes offers; None: it only observes."""

    @property
    def needs_labels(self) -> bool:
        """Whether windows without a label are useless: prototypes need classes, whatever the method."""
        return registry.method(self.task.method).needs_labels or self.by == "prototype"

    @property
    def allowed(self) -> Profile:
        """What the device may read and predict."""
        return Profile(self.modalities, self.targets)

    def current_profile(self, snapshot: StoreSnapshot) -> tuple[Profile, int]:
        """What the device reads and predicts by its present windows, and how many it can learn from."""
        kinds = {kind: count for kind, count in snapshot.kinds.items() if is_for_learning(kind)}
        if follows_windows(self.task):
            profile, useful = observed_profile(self.task, self.allowed, kinds)
            if self.by is not None and useful:
                return profile, useful
            return served_profile(self.task, self.allowed, snapshot.kinds), useful
        if self.needs_labels:
            return Profile(self.modalities), sum(count for kind, count in kinds.items() if has_label(kind))
        return Profile(self.modalities), count_readable(self.task, self.allowed, kinds)

    def reasons(self) -> Mapping[str, tuple[str, ...]]:
        """By modality, the frequent reasons in the recent windows."""
        if not self.recent:
            return {}
        frequent_MR = np.mean(self.recent, axis=0) >= _OFTEN
        return {
            name: tuple(word for word, found in zip(REASONS, frequent_MR[m], strict=True) if found)
            for m, name in enumerate(self.task.modality_names)
        }

    def readiness(self) -> Readiness:
        """As :meth:`edge_agent.tasks.workspace.TrainingData.readiness`."""
        snapshot, reasons = self.store.snapshot(), self.reasons()
        profile, useful = self.current_profile(snapshot)
        modalities = {
            name: ModalityState(
                windows=snapshot.counts[name],
                missing=round(snapshot.missing[name], 3),
                quality=round(snapshot.quality[name], 3) if snapshot.missing[name] < 1 else None,
                reasons=reasons.get(name, ()),
            )
            for name in profile.modalities
        }
        return Readiness(profile, useful, modalities)

    def load(self, limit: int) -> tuple[Profile, WindowSet]:
        """As :meth:`edge_agent.tasks.workspace.TrainingData.load`."""
        found = material(self, limit, labelled=self.needs_labels)
        end_undo(self.store)  # after the read: a label that no round has read can be undone
        return found

    def problem(self) -> Problem | None:
        """As :meth:`edge_agent.tasks.workspace.TrainingData.problem`: the disk accepts no windows."""
        if self.store.trouble is None:
            return None
        since, words = self.store.trouble
        then = "until the disk accepts them; each commit tries again"
        return Problem("disk", f"windows cannot be written: {words}", since, then)

    def status(self) -> dict[str, Any]:
        """As :meth:`edge_agent.tasks.workspace.TrainingData.status`."""
        snapshot = self.store.snapshot()
        return {
            "windows_to_learn_from": self.current_profile(snapshot)[1],
            "labelled_windows": snapshot.labelled,
            "windows": snapshot.total,
            "store_bytes": snapshot.bytes,
            "dropped_by_class": snapshot.dropped,
            "lost_windows": snapshot.lost,
            "disk": _disk(self.store),
            "store": self.store.disabled_reason or "on disk",
            "reasons": dict(self.reasons()),
            "samples": vars(self.windower.counters),
        }

    def close(self) -> None:
        """Commit, and close the store."""
        self.store.close()


def require_windows(data: Material) -> WindowSet:
    """The windows, for code that cannot use a graph: prototypes, and the choice of a route.

    Raises:
        Misconfigured: the data is a knowledge graph.
    """
    if isinstance(data, WindowSet):
        return data
    raise Misconfigured("prototypes and routers need windows, and the task is on a knowledge graph")


def _disk(store: WindowStore | CountingStore) -> str:
    """Whether windows can be written, as text."""
    if store.trouble is None:
        return "ok"
    since, why = store.trouble
    return f"windows cannot be written since {stamp(since)}: {store.path}: {why}"


def material(work: WindowWorkspace, limit: int, *, labelled: bool) -> tuple[Profile, WindowSet]:
    """The newest windows to learn from, and the profile that they show. Touches the disk.

    Args:
        work: the task, and what this device may read and predict.
        limit: maximal number of windows.
        labelled: only windows with a class of ``label``; else all that have an input. Ignored if the profile
            follows the windows: then all windows with an input and a label of any target are taken.

    Raises:
        Transient: there are none, or the store cannot be read now.
    """
    task, may = work.task, work.allowed
    if not follows_windows(task):
        wanted = has_label if labelled else is_readable(task, may)
        windows, profile = work.store.recent(limit, wanted=_to_learn(wanted)), Profile(may.modalities)
        return profile, restrict_to_profile(task, profile, windows)
    return training_windows(task, may, work.store.recent(limit, wanted=_to_learn(is_useful(task, may))))


def _to_learn(wanted: Callable[[RowKind], bool]) -> Callable[[RowKind], bool]:
    """The same, of windows that are not held back alone."""
    return lambda kind: is_for_learning(kind) and wanted(kind)
