"""Who wears which sensors and learns what, and the task of the whole fleet.

Kinds of devices differ in both: only the exercise can be learned by all of them. The watch on the observed
person has a sensor and predicts things that no training device combines like that.
"""

from dataclasses import dataclass
from typing import Any, Final

from lichen_lab.demo.core.scenario import Layout, Options, agent_config, observer_config
from lichen_lab.simulation.data.sensor_faults import FaultPlan
from lichen_lab.simulation.data.sets import spar
from protocol.tasks.task import LABEL, Rounds, Target, Task, Uplink, Window

TASK_NAME: Final = "spar-watches"
ARM: Final = "arm"
SPEED: Final = "speed"
ACCELEROMETER, GYROSCOPE = (m.name for m in spar.MODALITIES)
TARGETS: Final = (
    Target(name=ARM, labels=("left", "right")),
    # Mean length of the angular velocity: what a gyroscope measures, and what a watch without one can learn.
    Target(name=SPEED, kind="regression", unit="rad/s", offset=2.0, scale=1.0),
)
MAX_WINDOWS: Final = 400
"""A device trains on its newest: about one turn of its recording."""
IN_WORDS: Final = {LABEL: "exercise", ARM: "which arm", SPEED: "turning speed"}


@dataclass(frozen=True)
class LabelledWatch:
    """One device: whose wrist, its sensors, what it has labels for."""

    name: str
    person: int
    sensors: tuple[str, ...]
    targets: tuple[str, ...]
    later: tuple[str, ...] = ()
    """Sensors that are plugged in when a part of the rounds is over."""
    faults: FaultPlan | None = None

    @property
    def kind(self) -> str:
        """What it is, in words."""
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
"""Of each series, so that a turn of its recording is short."""
PLUGGED_AFTER: Final = 3
"""One in so many rounds is over when the later sensors are plugged in."""


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
    """While this file exists, the later sensors of a watch deliver."""
    return layout.root / "recordings" / f"{name}.plugged"


def later(name: str) -> str:
    """The recording of its later sensors, as a layout names recordings."""
    return f"{name}-later"


def watch_config(layout: Layout, watch: LabelledWatch, options: Options) -> dict[str, Any]:
    """A training device; it also runs the model that is made for it. Its recordings play again and again."""
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
    """The device that only observes: no torch."""
    name = OBSERVED.name
    sources = [layout.replay(name, OBSERVER_SPEED, loop=True)]
    return observer_config(layout, name, OBSERVER_SPEED, source=sources)
