"""Who takes part in the demo, what goes wrong with whose sensors, and the configurations of all processes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from edge_agent.windows.window_sets import windows_of
from lichen_lab.simulation.data.sensor_faults import Fault, FaultPlan, inject, modalities_of, plan_faults
from lichen_lab.simulation.data.sets import spar
from models.contract import WindowSet
from models.data.streams.recording import Recording, Stream
from protocol.tasks.task import Encoder, Network, Rounds, Task, Uplink, Window

FLEET: Final = "demo"
ROUNDS: Final = 20
OBSERVER: Final = "physcia"
TASK_NAME: Final = "spar-exercises"

# People 8, 9 and 10 judge the fleet, person 7 wears the observing device, the others wear the training ones.
UNSEEN: Final = (8, 9, 10)
OBSERVED: Final = 7
OBSERVER_SPEED: Final = 15.0


@dataclass(frozen=True)
class Device:
    """A training device: the people whose wrists it is on, and its faults."""

    name: str
    people: tuple[int, ...]
    faults: FaultPlan
    trouble: str
    """Its faults in words."""


DEVICES: Final = (
    Device("cladonia", (1,), FaultPlan(outage_bias={"accelerometer": 0.2}), "gyroscope drops out"),
    Device("evernia", (2,), FaultPlan(outage_bias={"gyroscope": 0.2}), "accelerometer drops out"),
    Device(
        "lobaria",
        (3,),
        FaultPlan(outage_time=0.5, noise_time=0.3, noise_modality="gyroscope", snr_db=0.0),
        "both drop out in turn; gyroscope noisy (0 dB)",
    ),
    Device(
        "parmelia",
        (4,),
        FaultPlan(outage_time=0.5, noise_time=0.3, noise_modality="accelerometer", snr_db=5.0),
        "both drop out in turn; accelerometer noisy (5 dB)",
    ),
    Device(
        "usnea",
        (5,),
        FaultPlan(outage_time=0.7, stuck_time=0.15, stuck_modality="gyroscope"),
        "both drop out most of the time; gyroscope stuck",
    ),
    Device("xanthoria", (6,), FaultPlan(outage_time=0.1), "nearly healthy"),
)


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    out: Path
    rounds: int = ROUNDS
    speed: float = 20.0
    seed: int = 0
    chaos: bool = False
    study: bool = True
    study_seeds: int = 3
    observer_python: Path | None = None
    timeout_s: float = 1200.0


def task(rounds: int, *, config: Mapping[str, Any] | None = None, seed: int = 0) -> Task:
    """What the fleet learns: seven exercises from two sensors."""
    return Task(
        name=TASK_NAME,
        method="qqr",
        labels=spar.LABELS,
        modalities=spar.MODALITIES,
        window=Window(length_s=2.56, stride_s=1.28),
        network=Network(
            encoders={
                "accelerometer": Encoder(kind="cnn1d", width=16, depth=4),
                "gyroscope": Encoder(kind="cnn1d", width=16, depth=4),
            },
            feature_dim=64,
            hidden_dim=64,
        ),
        rounds=Rounds(
            count=rounds, deadline_s=40.0, quorum=1.0, min_devices=len(DEVICES) - 1, min_windows=40
        ),
        uplink=Uplink(codec="int8", error_carry=True),
        config={"epochs": 1, "batch": 128, "lr": 0.16, "pce_on_incomplete": True, **dict(config or {})},
        seed=seed,
    )


BASELINES: Final[Mapping[str, Mapping[str, Any]]] = {
    "zero input": {"impute": "zero_input", "pce_on_incomplete": False},
    "zero feature": {"impute": "zero_feature", "pce_on_incomplete": False},
    "complete samples only": {"impute": "complete_only", "pce_on_incomplete": False},
}
"""What else can be done with a window that lacks a modality: options over :func:`task`'s. The prototype loss
does not help the baselines (docs/methods/qqr.md), so they go without."""


@dataclass(frozen=True)
class Played:
    """What one device's sensors deliver, and the truth about their faults."""

    recorded: spar.Recording
    faults: tuple[Fault, ...]

    @property
    def seconds(self) -> float:
        """Its length."""
        return spar.seconds(self.recorded)


def played(series: tuple[spar.Series, ...], device: Device, seed: int) -> Played:
    """A device's recording with its faults; the seed decides the order of exercises and the faults."""
    number = [d.name for d in DEVICES].index(device.name)
    own = spar.on_one_wrist(spar.of_person(series, *device.people))
    clean = spar.recording(own, seed=seed * 100 + number)
    faults = plan_faults(clean, device.faults, seed * 100 + number)
    return Played(inject(clean, faults, seed * 100 + number), tuple(faults))


def unseen(series: tuple[spar.Series, ...]) -> spar.Recording:
    """What the fleet is judged on: whole sensors, people no training device has met."""
    return spar.recording(spar.on_one_wrist(spar.of_person(series, *UNSEEN)))


def observed(series: tuple[spar.Series, ...], seed: int) -> Played:
    """The observing device's recording: some seconds an exercise, the gyroscope silent in the middle."""
    own = spar.on_one_wrist(spar.of_person(series, OBSERVED))
    clean = spar.recording(own, seed=seed, limit_s=20.0)
    length = spar.seconds(clean)
    fault = Fault("outage", "gyroscope", length / 3, 2 * length / 3, "unplugged")
    return Played(inject(clean, [fault], seed), (fault,))


@dataclass(frozen=True)
class Layout:
    """Where things lie under the output folder."""

    root: Path
    port: int
    start_s: dict[str, float] = field(default_factory=dict)

    def config(self, name: str) -> Path:
        """The configuration of one process."""
        return self.root / "config" / f"{name}.toml"

    def state(self, name: str) -> Path:
        """Its state folder."""
        return self.root / "state" / name

    def log(self, name: str) -> Path:
        """Its log."""
        return self.root / "logs" / f"{name}.log"

    def recording(self, name: str) -> Path:
        """The recording that a device plays."""
        return self.root / "recordings" / f"{name}.npz"

    @property
    def unseen(self) -> Path:
        """The evaluation windows."""
        return self.root / "unseen.npz"

    @property
    def predictions(self) -> Path:
        """What the observing device says."""
        return self.root / "predictions.jsonl"


def toml(table: Mapping[str, Any], prefix: str = "") -> str:
    """A nested table as TOML: strings, numbers, booleans, lists, tables, lists of tables."""
    lines, tables = [], []
    for key, value in table.items():
        if value is None:
            continue
        if isinstance(value, Mapping):
            body = toml(value, f"{prefix}{key}.")
            tables.append(f"\n[{prefix}{key}]\n{body}")
        elif isinstance(value, list | tuple) and value and all(isinstance(v, Mapping) for v in value):
            tables += [f"\n[[{prefix}{key}]]\n{toml(v, f'{prefix}{key}.')}" for v in value]
        else:
            plain = list(value) if isinstance(value, tuple) else value
            lines.append(f"{key} = {json.dumps(plain, ensure_ascii=False)}")
    return "\n".join(lines) + "\n" + "".join(tables)


def write_toml(path: Path, table: Mapping[str, Any]) -> None:
    """Write a configuration file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(toml(table))


def windows(chosen: Task, recorded: spar.Recording) -> WindowSet:
    """The windows of a recording, cut and judged as on a device."""
    names = modalities_of(recorded)
    streams = {m: Stream(recorded[f"{m}/t"], recorded[f"{m}/values"]) for m in names}
    return windows_of(chosen, Recording(streams, recorded["label/t"], recorded["label/values"]))


def agent_config(layout: Layout, name: str, speed: float, *, observe_only: bool = False) -> dict[str, Any]:
    """An agent that plays its recording against the demo's broker."""
    infer: dict[str, Any] = {"enabled": observe_only}
    if observe_only:
        infer["output"] = str(layout.predictions)
    return {
        "fleet": FLEET,
        "device": name,
        "roles": ["observe"] if observe_only else ["observe", "train"],
        "state_dir": str(layout.state(name)),
        "cache_dir": str(layout.state(name) / "cache"),
        "state_every_s": 2.0,
        "mqtt": {"host": "127.0.0.1", "port": layout.port},
        "log": {"format": "json"},
        "store": {"commit_every_s": 1.0},
        "infer": infer,
        "source": [
            {
                "kind": "replay",
                "file": str(layout.recording(name)),
                "speed": speed,
                "start_s": layout.start_s.get(name, 0.0),
            }
        ],
    }


def coordinator_config(layout: Layout) -> dict[str, Any]:
    """The demo's coordinator."""
    return {
        "fleet": FLEET,
        "state_dir": str(layout.state("coordinator")),
        "task": str(layout.config("task")),
        "mqtt": {"host": "127.0.0.1", "port": layout.port},
        "log": {"format": "json"},
        "evaluation": {"data": str(layout.unseen), "every_rounds": 1},
        "export": {"enabled": True, "every_rounds": 0},
        "offer_every_s": 2.0,
        "spread_s": 0.5,
        "away_grace_s": 60.0,  # the story's kills and restarts fit in, on slow machines too
    }
