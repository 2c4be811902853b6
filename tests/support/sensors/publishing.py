"""A device whose model predicts targets of every kind, and the lines that it writes."""

from typing import Any

from edge_agent.config.agent import AgentSettings
from protocol.bundle import BundleManifest, unpack
from protocol.tasks.task import Modality, Target, Task
from tests.support.agent.bundle import bundle

MADE = Modality(name="ppg", channels=1, rate_hz=10, input=False)
TASK = Task(
    name="activity",
    labels=("still", "walking"),
    modalities=(Modality(name="acc", channels=3, rate_hz=50), MADE),
    targets=(
        Target(name="skin-temperature", kind="regression", unit="degC"),
        Target(name="steps", kind="regression"),
        Target(name="mood", labels=("calm", 'said "no"', "zu müde")),
        Target(name="pulse", kind="generation", modality="ppg"),
    ),
)


def manifest_of(*names: str, task: Task = TASK) -> BundleManifest:
    """Of a model that predicts ``label`` and these."""
    label = Target(name="label", labels=task.labels)
    targets = (label, *(target for target in task.targets if target.name in names))
    made = tuple(m for m in task.modalities if m.name in {t.modality for t in targets})
    changes: dict[str, Any] = {"targets": targets, "generated": made or None} if names else {}
    return unpack(bundle(task, modalities=task.modalities[:1], inputs=("acc", "present"), **changes))[0]


ALL = ("skin-temperature", "steps", "mood", "pulse")


def line(i: int = 0, *, targets: bool = True) -> dict[str, Any]:
    """As ``edge_agent.inference.prediction_lines`` makes it."""
    others = {
        "skin-temperature": {"value": 30.5 + i, "truth": None},
        "steps": {"value": float(i), "truth": 2.0},
        "mood": {"label": 'said "no"', "probabilities": [0.1, 0.7, 0.2], "truth": "calm"},
        "pulse": {"mse": None if i == 0 else 0.125},
    }
    return {
        "t": 2.5 + i,
        "wall": 1_700_000_000.0 + i,
        "label": "walking" if i % 2 else "still",
        "probabilities": [0.25, 0.75] if i % 2 else [0.875, 0.125],
        **({"targets": others} if targets else {}),
        "present": {"acc": i % 3 != 2},
        "quality": {"acc": 0.75},
        "truth": None,
        "version": 7,
        "latency_ms": 1.5,
    }


def settings_of(device: str = "barn-1", **mqtt: Any) -> AgentSettings:
    return AgentSettings.model_validate({"fleet": "home", "device": device, "infer": {"mqtt": mqtt}})
