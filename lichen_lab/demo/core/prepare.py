"""Preparation that all demos share: an empty folder, the data, the configurations of all processes."""

import shutil
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeVar

from lichen_lab.demo.core.scenario import Layout, Options, PreparedDemo
from lichen_lab.simulation.data.sets import spar
from lichen_lab.simulation.processes.embedded_broker import free_port
from lichen_lab.simulation.processes.fleet_files import write_toml
from models.contract import WindowSet
from models.data import window_set
from protocol.errors import Misconfigured
from runtime.outputs import writing

T = TypeVar("T")
StageT = TypeVar("StageT", bound=PreparedDemo[Any])
_OURS: Final = ("config", "state", "logs", "recordings", "sites", "bad")
_NEEDED: Final = (
    "iotcore",
    "torch",
    "sqlalchemy",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "matplotlib",
    "jinja2",
)
_MARK: Final = ".lichen-demo"
_OUR_FILES: Final = ("*.jsonl*", "report.*", "*.npz", "*.json", "*.bundle")


def clear_folder(root: Path) -> None:
    """Empty the output folder, unless something other than a demo made it.

    Raises:
        Misconfigured: it holds something that is not the demo's.
    """
    if root.exists() and any(root.iterdir()) and not (root / _MARK).is_file():
        raise Misconfigured(
            f"--out {root}: it is not empty and not from an earlier demo; name another folder"
        )
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
        (root / _MARK).write_text("made by lichen demo; the next run replaces what lies here\n")
    for name in _OURS:
        shutil.rmtree(root / name, ignore_errors=True)
    # a set: two patterns match report.json
    for file in {found for pattern in _OUR_FILES for found in root.glob(pattern)}:
        file.unlink()


def require_packages() -> None:
    """Require all packages that the demo's processes or its report import.

    Raises:
        ModuleNotFoundError: names the first one that is not installed.
    """
    for name in _NEEDED:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def begin(options: Options, data: Callable[[], T]) -> tuple[Layout, T]:
    """Read the demo's data, and empty its folder.

    Raises:
        Misconfigured: the data is not here, or the output folder is somebody else's.
        ModuleNotFoundError: something that the demo needs later is not installed.
    """
    # All that can fail comes before files of an earlier run are removed.
    require_packages()
    found = data()
    root = options.out.absolute()
    clear_folder(root)
    return Layout(root, free_port()), found


def save_recordings(layout: Layout, recordings: Mapping[str, spar.Recording]) -> dict[str, float]:
    """Write the recordings that devices play; returns their lengths in seconds, by device."""
    for name, recorded in recordings.items():
        spar.save(layout.recording(name), recorded)
    return {name: spar.seconds(recorded) for name, recorded in recordings.items()}


def write_configurations(stage: StageT, others: Mapping[str, Mapping[str, Any]]) -> StageT:
    """Write the task and all configurations (``others``: by name); returns the stage.

    The demo waits for the version of its last round: the coordinator does not end the rounds early.
    """
    every_round = stage.task.rounds.model_copy(update={"patience": 0})
    stage.layout.write_task(stage.task.model_copy(update={"rounds": every_round}))
    for name, table in {**{name: stage.agent(name) for name in stage.people}, **others}.items():
        write_toml(stage.layout.config(name), table)
    return stage


def labelled_windows(windows: WindowSet) -> WindowSet:
    """The windows that have a label: one exercise throughout."""
    return window_set.select(windows, windows.y_B >= 0)
