"""The watches, their sensors and faults, and the task of a fleet without labels.

Devices have no labels. The coordinator has labels for one in ten windows of the same people.
"""

from dataclasses import dataclass
from typing import Any, Final

from lichen_lab.simulation.data.sensor_faults import FaultPlan
from lichen_lab.simulation.data.sets import spar
from protocol.tasks.labelling import Labelled
from protocol.tasks.links import Uplink
from protocol.tasks.network import Encoder, Network
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task, Window

TASK_NAME: Final = "spar-unlabelled"
ACCELEROMETER, GYROSCOPE = (m.name for m in spar.MODALITIES)
BOTH: Final = (ACCELEROMETER, GYROSCOPE)
LABELLED_SHARE: Final = 0.1
"""Share of the training people's windows with a label."""
BROKEN_DB: Final = -10.0
"""Signal-to-noise ratio of the broken watch: the noise has ten times the power of what was measured."""

CONFIG: Final = {
    "epochs": 3,
    # Each person wears the watch at another angle.
    "rotate_deg": 20.0,
    "gain": 0.2,
    # By classes, an encoder trained on noise differs more from the others than by the mean of all windows.
    "summary": "classes",
    "finetune_epochs": 60,
    "finetune_rotate_deg": 40.0,
    "finetune_gain": 0.2,
    # The labelled windows have both sensors; without this the last version would need both.
    "finetune_dropout": 0.2,
}


@dataclass(frozen=True)
class UnlabelledWatch:
    """One device: person, sensors and their faults."""

    name: str
    person: int
    trouble: str
    sensors: tuple[str, ...] = BOTH
    faults: FaultPlan | None = None
    broken: bool = False
    """All its sensors deliver noise, all of the time."""


DEVICES: Final = (
    UnlabelledWatch("cladonia", 1, "healthy"),
    UnlabelledWatch("evernia", 2, "has no gyroscope", sensors=(ACCELEROMETER,)),
    UnlabelledWatch("lobaria", 3, "healthy"),
    UnlabelledWatch("parmelia", 4, "both drop out in turn", faults=FaultPlan(outage_time=0.3)),
    UnlabelledWatch("usnea", 5, "healthy"),
    UnlabelledWatch("xanthoria", 6, "broken: its sensors deliver noise", broken=True),
)


def task(rounds: int, labelled: str = "labelled.npz", *, seed: int = 0, **config: Any) -> Task:
    """What the fleet learns: seven exercises from two sensors; ``labelled`` is the coordinator's file."""
    return Task(
        name=TASK_NAME,
        method="tactfl",
        labels=spar.LABELS,
        modalities=spar.MODALITIES,
        # Context of two windows, so that segments come from the stream and not from stored windows alone.
        window=Window(length_s=2.56, stride_s=1.28, context_s=5.12),
        network=Network(
            encoders={name: Encoder(kind="cnn1d", width=16, depth=4) for name in BOTH},
            feature_dim=64,
            hidden_dim=64,
        ),
        rounds=Rounds(
            count=rounds, deadline_s=40.0, quorum=1.0, min_devices=len(DEVICES) - 1, min_windows=40
        ),
        uplink=Uplink(codec="int8", error_carry=True),
        labelled=Labelled(file=labelled),
        config={**CONFIG, **config},
        seed=seed,
    )
