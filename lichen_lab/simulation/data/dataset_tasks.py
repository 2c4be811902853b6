"""Tasks of the studies: a data set's modalities and classes, and a network for it.

The same task serves ``lichen simulate --dataset`` and ``lichen bench qqr``, so that both mean the same by a
data set's name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from lichen_lab.simulation.data.access.split import DataSplit, Part
from lichen_lab.simulation.data.online_fleet import PAPER, OnlineSetting
from lichen_lab.simulation.data.sets import av_mnist, spar_windows, uci_har
from protocol.errors import Misconfigured
from protocol.tasks.task import Encoder, Modality, Network, Rounds, Task, Window

UCI_HAR_ROUNDS: Final = 40
SPAR_ROUNDS: Final = 40
AV_MNIST_ROUNDS: Final = 40
_AV_MNIST_LIMIT: Final[Mapping[Part, int]] = {"train": 12_000, "test": 2_000}
"""Pairs of a part: all of them would take 0.7 GB."""


class MakeTask(Protocol):
    """A data set's task; the functions below say what the arguments are."""

    def __call__(
        self,
        *,
        rounds: int = ...,
        seed: int = 0,
        config: Mapping[str, Any] | None = None,
        codec: str = "int8",
    ) -> Task:
        """The task."""


@dataclass(frozen=True)
class DatasetStudy:
    """One data set.

    Attributes:
        title: for people.
        load: a part of it, for a seed (which decides who trains or what is paired, where that is left open).
        task: what is learned.
        setting: the devices and what they hold, unless told otherwise; without faults.
    """

    title: str
    load: Callable[[Part, int], DataSplit]
    task: MakeTask
    setting: OnlineSetting


def uci_har_task(
    *,
    rounds: int = UCI_HAR_ROUNDS,
    seed: int = 0,
    config: Mapping[str, Any] | None = None,
    codec: str = "int8",
) -> Task:
    """The QQR paper's study on UCI-HAR: five convolutions for the accelerometer, an LSTM for the gyroscope.

    The widths are ours, the paper names none: an LSTM of 64 hidden units takes three times as long.

    Args:
        rounds: of training.
        seed: of the task.
        config: options of the method, over its defaults (which are the paper's rates and batch).
        codec: how model deltas travel.
    """
    encoders = {
        "accelerometer": Encoder(kind="cnn1d", width=16, depth=5),
        "gyroscope": Encoder(kind="lstm", width=32, depth=1),
    }
    window = Window(length_s=uci_har.SAMPLES / uci_har.RATE_HZ, stride_s=1.28)
    return _task(
        "uci-har", uci_har.LABELS, uci_har.MODALITIES, window, encoders, rounds, seed, config or {}, codec
    )


def spar_task(
    *,
    rounds: int = SPAR_ROUNDS,
    seed: int = 0,
    config: Mapping[str, Any] | None = None,
    codec: str = "int8",
) -> Task:
    """Seven exercises from a watch: the demo's encoders. Arguments as for :func:`uci_har_task`."""
    encoders = {m.name: Encoder(kind="cnn1d", width=16, depth=4) for m in spar_windows.MODALITIES}
    window = Window(length_s=spar_windows.WINDOW_S, stride_s=1.28)
    return _task(
        "spar",
        spar_windows.LABELS,
        spar_windows.MODALITIES,
        window,
        encoders,
        rounds,
        seed,
        config or {},
        codec,
    )


def av_mnist_task(
    *,
    rounds: int = AV_MNIST_ROUNDS,
    seed: int = 0,
    config: Mapping[str, Any] | None = None,
    codec: str = "int8",
) -> Task:
    """Ten digits, written and spoken. Arguments as for :func:`uci_har_task`."""
    encoders = {m.name: Encoder(kind="cnn1d", width=16, depth=4) for m in av_mnist.MODALITIES}
    window = Window(length_s=av_mnist.WINDOW_S, stride_s=av_mnist.WINDOW_S)
    return _task(
        "av-mnist", av_mnist.LABELS, av_mnist.MODALITIES, window, encoders, rounds, seed, config or {}, codec
    )


def _task(  # noqa: PLR0917 - what differs between the three
    name: str,
    labels: tuple[str, ...],
    modalities: tuple[Modality, ...],
    window: Window,
    encoders: dict[str, Encoder],
    rounds: int,
    seed: int,
    config: Mapping[str, Any],
    codec: str,
) -> Task:
    return Task.model_validate(
        {
            "name": name,
            "method": "qqr",
            "labels": labels,
            "modalities": modalities,
            "window": window,
            "network": Network(encoders=encoders, feature_dim=128, hidden_dim=128),
            "rounds": Rounds(count=rounds, min_windows=1),
            "uplink": {"codec": codec, "error_carry": codec != "float32"},
            "config": dict(config),
            "seed": seed,
        }
    )


STUDIES: Final[Mapping[str, DatasetStudy]] = {
    "uci-har": DatasetStudy("UCI-HAR", lambda part, _: uci_har.load(part), uci_har_task, PAPER),
    "spar": DatasetStudy("SPAR", spar_windows.load, spar_task, replace(PAPER, pool=1000, size=250, step=10)),
    "av-mnist": DatasetStudy(
        "AV-MNIST",
        lambda part, seed: av_mnist.load(part, seed, _AV_MNIST_LIMIT[part]),
        av_mnist_task,
        PAPER,
    ),
}


def study(name: str) -> DatasetStudy:
    """The study of that name.

    Raises:
        Misconfigured: there is none.
    """
    if name not in STUDIES:
        raise Misconfigured(f"no data set {name!r}; there are {', '.join(STUDIES)}")
    return STUDIES[name]
