"""The watches, their sensors and targets, and the fleet's task.

Kinds of devices differ in both: only the exercise is a target of all. The observing watch has a combination
of sensor and targets that no training device has.
"""

from dataclasses import dataclass
from typing import Any, Final

from lichen_lab.demo.core.scenario import Layout, Options, agent_config, observer_config
from lichen_lab.simulation.data.sensor_faults import FaultPlan
from lichen_lab.simulation.data.sets import spar
from protocol.tasks.links import Uplink
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import LABEL, Target, Task, Window

TASK_NAME: Final = "spar-watches"
ARM: Final = "arm"
SPEED: Final = "speed"
ACCELEROMETER, GYROSCOPE = (m.name for m in spar.MODALITIES)
TARGETS: Final = (
    Target(name=ARM, labels=("left", "right")),
    # Mean length of the angular velocity: a gyroscope measures it, a watch without one can learn it.
    Target(name=SPEED, kind="regression", unit="rad/s", offset=2.0, scale=1.0),
)
MAX_WINDOWS: Final = 400
"""A device trains on this many of its newest windows: about one turn of its recording."""
IN_WORDS: Final = {LABEL: "exercise", ARM: "which arm", SPEED: "turning speed"}


@dataclass(frozen=True)
class LabelledWatch:
    """One device: person, sensors, targets with labels."""

    name: str
    person: int
    sensors: tuple[str, ...]
    targets: tuple[str, ...]
    later: tuple[str, ...] = ()
    """Sensors that are plugged in during training."""
    faults: FaultPlan | None = None

    @property
    def kind(self) -> str:
        """Sensors and targets, in words."""
        sensors = " and ".join(self.sensors)
        if self.later:
            sensors += f", later also {' and '.join(self.later)}"
        return f"{sensors} -> {', '.join(IN_WORDS[name] for name in self.targets)}"


DEVICES: Final = (
    LabelledWatch("cladonia", 1, (ACCELEROMETER,), (LABEL, ARM)),
    LabelledWatch("evernia", 2, (ACCELEROMETER,), (LABEL, SPEED)),
    LabelledWatch("lobaria", 3, (GYROSCOPE,), (LABEL,)),
    LabelledWatch("parmelia", 4, (GYROSCOPE,), (LABEL, SPEED)),
    LabelledWatch(
        "usnea",
        5,
        (ACCELEROMETER, GYROSCOPE),
        (LABEL, ARM, SPEED),
        faults=FaultPlan(outage_time=0.3, outage_bias={ACCELEROMETER: 0.0}),
    ),
    LabelledWatch("xanthoria", 6, (ACCELEROMETER,), (LABEL, SPEED), later=(GYROSCOPE,)),
)
OBSERVED: Final = LabelledWatch("physcia", 7, (ACCELEROMETER,), (LABEL, ARM, SPEED))
"""Only observes. No training device reads the accelerometer alone and learns all three."""
OBSERVER_SPEED: Final = 30.0
OBSERVED_S: Final = 12.0
"""Seconds of each series, so that a turn of the recording is short."""
PLUGGED_AFTER: Final = 3
"""The later sensors are plugged in after one n-th of the rounds."""


def task(rounds: int, *, seed: int = 0, **config: Any) -> Task:
    """What the fleet learns: two sensors, three targets."""
    return Task(
        name=TASK_NAME,
        method="disentafl",
        labels=spar.LABELS,
        modalities=spar.MODALITIES,
        targets=TARGETS,
        window=Window(length_s=2.56, stride_s=1.28),
        rounds=Rounds(
            count=rounds, deadline_s=40.0, quorum=1.0, min_devices=len(DEVICES) - 1, min_windows=40
        ),
        uplink=Uplink(codec="int8", error_carry=True),
        config={"domains": 2, "epochs": 2, "lr": 0.003, **config},
        seed=seed,
    )


def plug_round(rounds: int) -> int:
    """After this round the later sensors are plugged in."""
    return max(1, rounds // PLUGGED_AFTER)


def plug(layout: Layout, name: str) -> Any:
    """The later sensors of a watch deliver while this file exists."""
    return layout.root / "recordings" / f"{name}.plugged"


def later(name: str) -> str:
    """The recording of its later sensors, as a layout names recordings."""
    return f"{name}-later"


def watch_config(layout: Layout, watch: LabelledWatch, options: Options) -> dict[str, Any]:
    """Configuration of a training device that also runs its own model. Its recordings loop."""
    sources = [layout.replay(watch.name, options.speed, loop=True)]
    if watch.later:
        plugged = str(plug(layout, watch.name))
        again = {"kind": "hotplug", "start_s": layout.start_s.get(watch.name, 0.0), "when": plugged}
        sources.append(layout.replay(later(watch.name), options.speed, loop=True, **again))
    return agent_config(
        layout,
        watch.name,
        options.speed,
        infer={"enabled": True, "output": str(layout.predictions(watch.name))},
        learn={"max_windows": MAX_WINDOWS},
        source=sources,
    )


def observing_config(layout: Layout) -> dict[str, Any]:
    """Configuration of the device that only observes, without torch."""
    name = OBSERVED.name
    sources = [layout.replay(name, OBSERVER_SPEED, loop=True)]
    return observer_config(layout, name, OBSERVER_SPEED, source=sources)
