"""A small fleet on disk: the task, the recordings, and the configurations of all processes.

Everything is synthetic and small: a round takes about a second, so that many faults fit into a minute. What
runs is real: the agents train with torch in their worker, the coordinator folds, judges and (where asked)
exports.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from edge_agent.windows.window_sets import windows_of
from lichen_lab.simulation.data.spar_fleet import write_toml
from models.data import window_set
from models.data.streams.recording import Recording, Stream, write_npz
from protocol.tasks.task import Encoder, Modality, Network, Rounds, Task, Window

FLEET: Final = "trial"
TASK_NAME: Final = "small"
HOST: Final = "127.0.0.1"
_RECORDED_S: Final = 60.0
_JUDGED_S: Final = 40.0
_LABEL_S: Final = 4.0
_CLASSES: Final = 3
_SMALL_CHUNK: Final = 1024
"""Bytes: an update of this task goes in several chunks."""
GATED_AGENTS: Final = {"learn": {"module": "lichen_lab.benchmarks.fault_injection.harness.gated_worker"}}
"""Tables of agents that train behind gates, and without torch where they are told."""


def task(rounds: int, devices: int, seed: int, **changes: Any) -> Task:
    """Three kinds of motion from two sensors.

    Args:
        rounds: how many.
        devices: in the fleet; all but one are enough for a round.
        seed: of the initial model and all training.
        **changes: of ``rounds``.
    """
    encoder = Encoder(kind="cnn1d", width=8, depth=2)
    given = {
        "count": rounds,
        "deadline_s": 20.0,
        "quorum": max(1, devices - 1) / devices,
        "min_devices": max(1, devices - 1),
        "min_windows": 24,
    }
    return Task(
        name=TASK_NAME,
        labels=("slow", "middle", "fast"),
        modalities=(
            Modality(name="acc", channels=3, rate_hz=25),
            Modality(name="gyr", channels=2, rate_hz=25),
        ),
        window=Window(length_s=1.28, stride_s=0.64),
        network=Network(encoders={"acc": encoder, "gyr": encoder}, feature_dim=16, hidden_dim=16),
        rounds=Rounds.model_validate(given | changes),
        config={"epochs": 1, "batch": 32},
        seed=seed,
    )


def recording(seconds: float, seed: int) -> Recording:
    """Sines whose speed says the class, which changes every few seconds; gyr is gone for a tenth of it."""
    rng = np.random.default_rng(seed)
    label_t = np.arange(0.0, seconds, _LABEL_S)
    label = rng.permutation(np.arange(len(label_t)) % _CLASSES).astype(np.int64)
    t = np.arange(round(seconds * 25)) / 25
    speed = np.array([0.5, 1.5, 3.0])[label[np.searchsorted(label_t, t, side="right") - 1]]
    turn = 2 * np.pi * np.cumsum(speed) / 25
    acc = np.stack([np.sin(turn + p) for p in rng.uniform(0, 6, 3)], 1) + rng.normal(0, 0.2, (len(t), 3))
    gyr = np.stack([np.cos(turn + p) for p in rng.uniform(0, 6, 2)], 1) + rng.normal(0, 0.2, (len(t), 2))
    here = (t < 0.6 * seconds) | (t > 0.7 * seconds)
    streams = {
        "acc": Stream(t, acc.astype(np.float32)),
        "gyr": Stream(t[here], gyr[here].astype(np.float32)),
    }
    return Recording(streams, label_t, label)


@dataclass(frozen=True)
class Layout:
    """Where things lie under one folder, and the ports.

    Attributes:
        root: everything is below it.
        port: of the broker.
        devices: names of the agents.
        ports: of those processes that reach the broker through a proxy: name -> its port.
    """

    root: Path
    port: int
    devices: tuple[str, ...]
    ports: Mapping[str, int] = field(default_factory=dict)

    def config(self, name: str) -> Path:
        """The configuration of one process."""
        return self.root / "config" / f"{name}.toml"

    def state(self, name: str) -> Path:
        """Its state folder."""
        return self.root / "state" / name

    def log(self, name: str) -> Path:
        """Its log."""
        return self.root / "logs" / f"{name}.log"

    def mqtt(self, name: str, **more: Any) -> dict[str, Any]:
        """``[mqtt]`` of a process: short waits, so that what is cut off is soon back."""
        return {
            "host": HOST,
            "port": self.ports.get(name, self.port),
            "keepalive_s": 5,
            "connect_timeout_s": 3.0,
            "backoff_min_s": 0.05,
            "backoff_max_s": 0.5,
            **more,
        }


def gated_command(layout: Layout) -> list[str]:
    """Starts the coordinator behind gates, and without torch where it is told."""
    module = "lichen_lab.benchmarks.fault_injection.harness.gated_coordinator"
    return [sys.executable, "-P", "-m", module, str(layout.config("coordinator"))]


def write(layout: Layout, chosen: Task, seed: int, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Write recordings, task and configurations.

    Args:
        layout: where to.
        chosen: the task.
        seed: of the recordings.
        changes: tables of ``agent.toml`` or ``coordinator.toml`` by process (``agents``: for all of them).
    """
    (layout.root / "recordings").mkdir(parents=True, exist_ok=True)
    write_toml(layout.config("task"), chosen.model_dump(mode="json", exclude_none=True))
    judged = windows_of(chosen, recording(_JUDGED_S, seed=seed * 1000 + 999))
    window_set.save(layout.root / "judged.npz", window_set.select(judged, judged.y_B >= 0))
    for number, name in enumerate(layout.devices):
        file = layout.root / "recordings" / f"{name}.npz"
        write_npz(file, recording(_RECORDED_S, seed=seed * 1000 + number))
        # every other device sends its updates in several chunks
        more = {"chunk_bytes": _SMALL_CHUNK} if number % 2 == 0 else {}
        table = _merged(_agent(layout, name, file, more), changes.get("agents", {}), changes.get(name, {}))
        write_toml(layout.config(name), table)
    table = _merged(_coordinator(layout, chosen), changes.get("coordinator", {}))
    write_toml(layout.config("coordinator"), table)


def _agent(layout: Layout, name: str, file: Path, mqtt: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "fleet": FLEET,
        "device": name,
        "roles": ["observe", "train"],
        "state_dir": str(layout.state(name)),
        "cache_dir": str(layout.state(name) / "cache"),
        "state_every_s": 1.0,
        "mqtt": layout.mqtt(name, **mqtt),
        "log": {"format": "json"},
        "store": {"commit_every_s": 0.5},
        "outbox": {"resend_s": 1.0},
        "learn": {"max_windows": 96},
        "infer": {"enabled": False},
        "source": [{"kind": "replay", "file": str(file), "speed": 40.0}],
    }


def _coordinator(layout: Layout, chosen: Task) -> dict[str, Any]:
    return {
        "fleet": FLEET,
        "state_dir": str(layout.state("coordinator")),
        "task": str(layout.config("task")),
        "mqtt": layout.mqtt("coordinator"),
        "log": {"format": "json"},
        "evaluation": {"data": str(layout.root / "judged.npz"), "every_rounds": 1},
        "export": {"enabled": False},
        "offer_every_s": 1.0,
        "spread_s": 0.0,
        "away_grace_s": 600.0,  # who is killed here is started again, and counts in the same round
        # every version stays, to be compared
        "keep_versions": chosen.rounds.count + 1,
        "exit_when_done": True,
        "exit_linger_s": 0.0,
    }


def _merged(base: dict[str, Any], *changes: Mapping[str, Any]) -> dict[str, Any]:
    """Tables merged key by key; the later one wins."""
    merged = dict(base)
    for change in changes:
        for key, value in change.items():
            old = merged.get(key)
            if isinstance(old, Mapping) and isinstance(value, Mapping):
                merged[key] = {**old, **value}
            else:
                merged[key] = value
    return merged
