"""What the distribution ``lichen-lab`` does for programs: found by an entry point, never imported by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, Protocol

from lichen.backbones.features import WindowFeatures
from models.contract import FloatArray, WindowSet
from protocol.errors import Misconfigured
from protocol.tasks.task import Task

GROUP: Final = "lichen.simulators"
"""Its entry point ``training`` is a function from a :class:`SimulationRequest` to a :class:`TrainedFleet`."""
Progress = Callable[[Mapping[str, Any]], None]
"""Called with the row of each closed round."""


@dataclass(frozen=True)
class SimulationRequest:
    """What is to be trained.

    Attributes:
        task: with the number of rounds that is asked for; with backbones as it is learned.
        folder: where relative paths of the task begin.
        devices: by name; a folder: one file for each device.
        test: windows or a file to evaluate versions on; a number: that share of each device's windows, which
            the device does not learn from; None: versions are not evaluated.
        labelled: the coordinator's windows, for a method that needs them; None: those of the task.
        seed: of everything; None: the task's.
        workers: processes.
        devices_at_once: that a process trains as one computation, at most.
        packages: that the task may use, as the owner of this machine says.
        progress: hears of each round.
        features: reads files of a task with backbones; None: it has none.
    """

    task: Task
    folder: Path
    devices: Mapping[str, WindowSet | Path] | Path
    test: WindowSet | Path | float | None = None
    labelled: WindowSet | Path | None = None
    seed: int | None = None
    workers: int = 1
    devices_at_once: int = 1
    packages: Sequence[str] = ()
    progress: Progress | None = None
    features: WindowFeatures | None = None


class TrainedFleet(Protocol):
    """A fleet after its training.

    Attributes:
        task: as trained, complete.
        seed: of everything.
        devices: names.
        rounds: a row for each round.
        made_of: by round, the devices whose updates were accepted.
        refused: by round, device -> why its update was not accepted.
        confusion: counts; row: true class, column: predicted; None without test windows.
        ended: why the rounds ended before the task's number; empty: they did not.
        findings: problems in recordings, in words.
    """

    task: Task
    seed: int
    devices: Sequence[str]
    rounds: Sequence[dict[str, Any]]
    made_of: Sequence[Sequence[str]]
    refused: Sequence[Mapping[str, str]]
    confusion: Sequence[Sequence[int]] | None
    ended: str
    findings: Sequence[str]

    def read(self, file: Path) -> WindowSet:
        """The windows of a file, cut as on a device; raises ``Misconfigured``."""

    def probabilities(self, windows: WindowSet) -> FloatArray:
        """``p_BK`` of the task's labels by the last version; raises ``Misconfigured``."""

    def bundle(self, calibrate: WindowSet | None) -> bytes:
        """The last version's ONNX bundle; raises ``Misconfigured``, ``Refused``."""

    def joined(self) -> bytes:
        """The last version with its backbones as one ONNX model; raises ``Misconfigured``, ``Refused``."""


def trainer() -> Callable[[SimulationRequest], TrainedFleet]:
    """The function of lichen-lab that trains.

    Raises:
        Misconfigured: it is not installed.
    """
    found = list(entry_points(group=GROUP, name="training"))
    if not found:
        raise Misconfigured(
            "lichen.simulate trains with lichen-lab, which is not installed here: pip install lichen-lab"
        )
    made: Callable[[SimulationRequest], TrainedFleet] = found[0].load()
    return made
