"""A fleet on SPAR: devices, their sensor faults, and the task."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from edge_agent.windows.window_sets import windows_of_recording
from lichen_lab.simulation.data.sensor_faults import (
    FaultKind,
    FaultPlan,
    SensorFault,
    inject,
    modalities_of,
    plan_faults,
    share_of,
)
from lichen_lab.simulation.data.sets import spar
from models.contract import WindowSet
from models.data.streams.recording import Recording, Stream
from protocol.tasks.links import Uplink
from protocol.tasks.network import Encoder, Network
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task, Window

ROUNDS: Final = 20
OBSERVER: Final = "physcia"
TASK_NAME: Final = "spar-exercises"

# People 8, 9 and 10 judge the fleet, person 7 wears the observing device, the others wear the training ones.
UNSEEN: Final = (8, 9, 10)
OBSERVED: Final = 7
OBSERVER_SPEED: Final = 15.0


@dataclass(frozen=True)
class DemoDevice:
    """A training device: the people whose wrists it is on, and its faults."""

    name: str
    people: tuple[int, ...]
    faults: FaultPlan
    trouble: str
    """Its faults in words."""


DEVICES: Final = (
    DemoDevice("cladonia", (1,), FaultPlan(outage_bias={"accelerometer": 0.2}), "gyroscope drops out"),
    DemoDevice("evernia", (2,), FaultPlan(outage_bias={"gyroscope": 0.2}), "accelerometer drops out"),
    DemoDevice(
        "lobaria",
        (3,),
        FaultPlan(outage_time=0.5, noise_time=0.3, noise_modality="gyroscope", snr_db=0.0),
        "both drop out in turn; gyroscope noisy (0 dB)",
    ),
    DemoDevice(
        "parmelia",
        (4,),
        FaultPlan(outage_time=0.5, noise_time=0.3, noise_modality="accelerometer", snr_db=5.0),
        "both drop out in turn; accelerometer noisy (5 dB)",
    ),
    DemoDevice(
        "usnea",
        (5,),
        FaultPlan(outage_time=0.7, stuck_time=0.15, stuck_modality="gyroscope"),
        "both drop out most of the time; gyroscope stuck",
    ),
    DemoDevice("xanthoria", (6,), FaultPlan(outage_time=0.1), "nearly healthy"),
)


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
"""Other treatments of a window that lacks a modality: options over :func:`task`'s. The prototype loss
does not help the baselines (docs/methods/qqr.md), so they go without."""


@dataclass(frozen=True)
class FaultyRecording:
    """One device's recording, and the truth about its faults."""

    recorded: spar.Recording
    faults: tuple[SensorFault, ...]

    @property
    def seconds(self) -> float:
        """Its length."""
        return spar.seconds(self.recorded)

    def fault_shares(
        self, modalities: Iterable[str], kinds: Iterable[FaultKind]
    ) -> dict[str, dict[str, float]]:
        """Modality -> kind of fault -> share of the time with that fault."""
        return {
            modality: {kind: share_of(self.faults, kind, modality, self.seconds) for kind in kinds}
            for modality in modalities
        }


def device_recording(series: tuple[spar.Series, ...], device: DemoDevice, seed: int) -> FaultyRecording:
    """A device's recording with its faults; the seed decides the order of exercises and the faults."""
    number = [d.name for d in DEVICES].index(device.name)
    own = spar.on_one_wrist(spar.of_person(series, *device.people))
    clean = spar.recording(own, seed=seed * 100 + number)
    faults = plan_faults(clean, device.faults, seed * 100 + number)
    return FaultyRecording(inject(clean, faults, seed * 100 + number), tuple(faults))


def device_windows(chosen: Task, series: tuple[spar.Series, ...], seed: int) -> dict[str, WindowSet]:
    """Training device -> its windows."""
    return {d.name: windows(chosen, device_recording(series, d, seed).recorded) for d in DEVICES}


def unseen(series: tuple[spar.Series, ...]) -> spar.Recording:
    """The recording that judges the fleet: whole sensors, unseen people."""
    return spar.recording(spar.on_one_wrist(spar.of_person(series, *UNSEEN)))


def observer_recording(series: tuple[spar.Series, ...], seed: int) -> FaultyRecording:
    """The observing device's recording: some seconds an exercise, the gyroscope silent in the middle."""
    own = spar.on_one_wrist(spar.of_person(series, OBSERVED))
    clean = spar.recording(own, seed=seed, limit_s=20.0)
    length = spar.seconds(clean)
    fault = SensorFault("outage", "gyroscope", length / 3, 2 * length / 3, "unplugged")
    return FaultyRecording(inject(clean, [fault], seed), (fault,))


def windows(chosen: Task, recorded: spar.Recording) -> WindowSet:
    """The windows of a recording, as on a device."""
    names = modalities_of(recorded)
    streams = {m: Stream(recorded[f"{m}/t"], recorded[f"{m}/values"]) for m in names}
    return windows_of_recording(chosen, Recording(streams, recorded["label/t"], recorded["label/values"]))
