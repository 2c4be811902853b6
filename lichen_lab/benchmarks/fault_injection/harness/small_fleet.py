"""A small fleet for trials on synthetic data: a round takes a second, so many faults fit into a minute.

The processes are real: the agents train with torch in their worker, the coordinator folds, evaluates and (if
asked) exports.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from edge_agent.windows.window_sets import windows_of_recording
from lichen_lab.simulation.processes import mosquitto
from lichen_lab.simulation.processes.embedded_broker import HOST
from lichen_lab.simulation.processes.fleet_files import FleetFiles, Table, write_toml
from lichen_lab.simulation.processes.process import ONE_THREAD
from lichen_lab.simulation.processes.testbed import BROKER, COORDINATOR, Testbed
from models.data import window_set
from models.data.streams.recording import Recording, Stream, write_npz
from protocol.tasks.network import Encoder, Network
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Modality, Task, Window

_RESTARTS: Final = 100
"""Of one process: systemd has no limit either, and while a database is away each start may fail. A trial that
gets nowhere ends by the bounds of its waits."""
FLEET: Final = "trial"
TASK_NAME: Final = "small"
_RECORDED_S: Final = 60.0
_JUDGED_S: Final = 40.0
_LABEL_S: Final = 4.0
_CLASSES: Final = 3
_SMALL_CHUNK: Final = 1024
"""Bytes: an update of this task goes in several chunks."""
_LINK: Final = {
    "keepalive_s": 5,
    "connect_timeout_s": 3.0,
    "backoff_min_s": 0.05,
    "backoff_max_s": 0.5,
}
"""Short waits, so that lost connections are soon back."""
GATED_AGENTS: Final = {"learn": {"module": "lichen_lab.benchmarks.fault_injection.harness.gated_worker"}}
"""Tables of agents that train behind gates, and without torch if ``LIGHT`` is set."""
_GATED_COORDINATOR: Final = "lichen_lab.benchmarks.fault_injection.harness.gated_coordinator"


def task(rounds: int, devices: int, seed: int, **changes: Any) -> Task:
    """Three kinds of motion from two sensors.

    Args:
        rounds: number of rounds.
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
    """Sines whose speed shows the class, which changes every few seconds; gyr is missing for a tenth."""
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


def files(
    root: Path, port: int, devices: Sequence[str], ports: Mapping[str, int] | None = None
) -> FleetFiles:
    """The files of a trial; ``ports`` of the processes that reach the broker through a proxy."""
    return FleetFiles(root, port, FLEET, tuple(devices), ports or {}, _LINK)


def trial_bed(places: FleetFiles, env: Mapping[str, str], *, gated: bool) -> Testbed:
    """A trial's processes, over Mosquitto; one that ends by itself is started again, whatever its status.

    Args:
        places: of the trial.
        env: added to every process's environment.
        gated: the coordinator runs behind gates, and without torch if ``LIGHT`` is set.

    Raises:
        Misconfigured: Mosquitto is not installed.
    """
    commands = {BROKER: mosquitto.command(places.root / "mosquitto", HOST, places.port)}
    if gated:
        config = str(places.config(COORDINATOR))
        commands[COORDINATOR] = [sys.executable, "-P", "-m", _GATED_COORDINATOR, config]
    env = {**ONE_THREAD, **env}
    return Testbed(places, commands=commands, env=env, restarts=_RESTARTS, pause_s=0.3, fatal=())


def write(places: FleetFiles, chosen: Task, seed: int, changes: Mapping[str, Table]) -> None:
    """Write recordings, task and configurations.

    Args:
        places: of the trial.
        chosen: the task.
        seed: of the recordings.
        changes: tables of ``agent.toml`` or ``coordinator.toml`` by process (``agents``: for all of them).
    """
    places.write_task(chosen)
    judged = windows_of_recording(chosen, recording(_JUDGED_S, seed=seed * 1000 + 999))
    window_set.save(places.root / "judged.npz", window_set.select(judged, judged.y_B >= 0))
    for number, name in enumerate(places.devices):
        file = places.recording(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_npz(file, recording(_RECORDED_S, seed=seed * 1000 + number))
        # every other device sends its updates in several chunks
        chunks = {"mqtt": {"chunk_bytes": _SMALL_CHUNK}} if number % 2 == 0 else {}
        more = (chunks, changes.get("agents", {}), changes.get(name, {}))
        write_toml(places.config(name), places.agent(name, *more, **_agent(places, name)))
    table = places.coordinator(changes.get(COORDINATOR, {}), **_coordinator(places, chosen))
    write_toml(places.config(COORDINATOR), table)


def _agent(places: FleetFiles, name: str) -> dict[str, Any]:
    return {
        "roles": ["observe", "train"],
        "state_every_s": 1.0,
        "store": {"commit_every_s": 0.5},
        "outbox": {"resend_s": 1.0},
        "learn": {"max_windows": 96},
        "infer": {"enabled": False},
        "source": [places.replay(name, 40.0)],
    }


def _coordinator(places: FleetFiles, chosen: Task) -> dict[str, Any]:
    return {
        "evaluation": {"data": str(places.root / "judged.npz"), "every_rounds": 1},
        "export": {"enabled": False},
        "offer_every_s": 1.0,
        "spread_s": 0.0,
        "away_grace_s": 600.0,  # a killed device is started again, and counts in the same round
        # every version is kept, for the comparison
        "keep_versions": chosen.rounds.count + 1,
        "exit_when_done": True,
        "exit_linger_s": 0.0,
    }
