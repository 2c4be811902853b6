"""Tasks of the studies: a data set's modalities and classes, and a network for it.

The same task serves ``lichen simulate --dataset`` and ``lichen bench qqr``, so that both mean the same by a
data set's name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lichen_lab.simulation.data.access.split import DataSplit, Part
from lichen_lab.simulation.data.online_fleet import OnlineSetting
from lichen_lab.simulation.data.sets import av_mnist, spar_windows, uci_har
from protocol.errors import Misconfigured
from protocol.tasks.network import Encoder, Network
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Modality, Task, Window

_AV_MNIST_LIMIT: Final[Mapping[Part, int]] = {"train": 12_000, "test": 2_000}
"""Pairs of a part: all of them would take 0.7 GB."""
_CNN: Final = Encoder(kind="cnn1d", width=16, depth=4)
ROUNDS: Final = 40


@dataclass(frozen=True, kw_only=True)
class DatasetStudy:
    """One data set.

    Attributes:
        name: of the task.
        title: for people.
        load: a part of it, for a seed (which decides who trains or what is paired, where that is left open).
        labels: classes.
        modalities: with an encoder for each in ``encoders``.
        encoders: of the network.
        window: of the task.
        setting: the devices and what they hold, unless told otherwise; without faults.
    """

    name: str
    title: str
    load: Callable[[Part, int], DataSplit]
    labels: tuple[str, ...]
    modalities: tuple[Modality, ...]
    encoders: Mapping[str, Encoder]
    window: Window
    setting: OnlineSetting = field(default_factory=OnlineSetting)

    def task(
        self,
        *,
        rounds: int = ROUNDS,
        seed: int = 0,
        config: Mapping[str, Any] | None = None,
        codec: str = "int8",
    ) -> Task:
        """What is learned.

        Args:
            rounds: of training.
            seed: of the task.
            config: options of the method, over its defaults (which are the paper's rates and batch).
            codec: how model deltas travel.
        """
        return Task.model_validate(
            {
                "name": self.name,
                "method": "qqr",
                "labels": self.labels,
                "modalities": self.modalities,
                "window": self.window,
                "network": Network(encoders=dict(self.encoders), feature_dim=128, hidden_dim=128),
                "rounds": Rounds(count=rounds, min_windows=1),
                "uplink": {"codec": codec, "error_carry": codec != "float32"},
                "config": dict(config or {}),
                "seed": seed,
            }
        )


UCI_HAR: Final = DatasetStudy(
    name="uci-har",
    title="UCI-HAR",
    load=lambda part, _: uci_har.load(part),
    labels=uci_har.LABELS,
    modalities=uci_har.MODALITIES,
    encoders={
        "accelerometer": Encoder(kind="cnn1d", width=16, depth=5),
        "gyroscope": Encoder(kind="lstm", width=32, depth=1),
    },
    window=Window(length_s=uci_har.WINDOW_S, stride_s=1.28),
)
"""The QQR paper's study: five convolutions for the accelerometer, an LSTM for the gyroscope. The widths are
ours, the paper names none: an LSTM of 64 hidden units takes three times as long."""
_SPAR: Final = DatasetStudy(
    name="spar",
    title="SPAR",
    load=spar_windows.load,
    labels=spar_windows.LABELS,
    modalities=spar_windows.MODALITIES,
    encoders={m.name: _CNN for m in spar_windows.MODALITIES},
    window=Window(length_s=spar_windows.WINDOW_S, stride_s=1.28),
    setting=OnlineSetting(pool=1000, size=250, step=10),
)
"""Seven exercises from a watch: the demo's encoders."""
_AV_MNIST: Final = DatasetStudy(
    name="av-mnist",
    title="AV-MNIST",
    load=lambda part, seed: av_mnist.load(part, seed, _AV_MNIST_LIMIT[part]),
    labels=av_mnist.LABELS,
    modalities=av_mnist.MODALITIES,
    encoders={m.name: _CNN for m in av_mnist.MODALITIES},
    window=Window(length_s=av_mnist.WINDOW_S, stride_s=av_mnist.WINDOW_S),
)
"""Ten digits, written and spoken."""
STUDIES: Final[Mapping[str, DatasetStudy]] = {one.name: one for one in (UCI_HAR, _SPAR, _AV_MNIST)}


def study(name: str) -> DatasetStudy:
    """The study of that name.

    Raises:
        Misconfigured: there is none.
    """
    if name not in STUDIES:
        raise Misconfigured(f"no data set {name!r}; there are {', '.join(STUDIES)}")
    return STUDIES[name]
