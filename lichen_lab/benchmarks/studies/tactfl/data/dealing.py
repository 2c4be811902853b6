"""Distributes windows: labelled ones, each device's, missing modalities and faults. NumPy, seeded.

Each purpose has a random generator of its own, so that fleets of one seed that differ in one condition are
equal in all others. A larger share of labelled windows includes a smaller one, and a device that lacks a
modality at one rate lacks it at a larger rate.

A fault changes the measurements without any sign: the device trains on them as usual, and its quality scores
stay 1.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.benchmarks.studies.tactfl.settings import HERE, DealConditions, UnlabelledDevice, alone
from lichen_lab.simulation.data.sets import uci_har
from lichen_lab.simulation.data.streams import masked
from models.contract import FloatArray, WindowSet
from protocol.errors import Misconfigured
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task, Window

Fault = Callable[[FloatArray, np.random.Generator], FloatArray]
"""Replaces the windows ``x_BCT`` of one modality by those of a broken sensor."""


def noise(x_BCT: FloatArray, rng: np.random.Generator) -> FloatArray:
    """White noise, each channel as strong as its signal."""
    deviation_C = x_BCT.std(axis=(0, 2)) if len(x_BCT) else np.zeros(x_BCT.shape[1], np.float32)
    made: FloatArray = (rng.standard_normal(x_BCT.shape) * deviation_C[None, :, None]).astype(np.float32)
    return made


def flipped(x_BCT: FloatArray, rng: np.random.Generator) -> FloatArray:
    """One or two of the three axes with the wrong sign, the same in all windows."""
    sign_C = np.ones(x_BCT.shape[1], np.float32)
    sign_C[rng.permutation(x_BCT.shape[1])[: rng.integers(1, max(2, x_BCT.shape[1]))]] = -1
    return x_BCT * sign_C[None, :, None]


def stuck(x_BCT: FloatArray, rng: np.random.Generator) -> FloatArray:
    """A stuck sensor: every window repeats its first sample."""
    del rng
    return np.ascontiguousarray(np.broadcast_to(x_BCT[:, :, :1], x_BCT.shape))


FAULTS: Final[Mapping[str, Fault]] = {"noise": noise, "flipped": flipped, "stuck": stuck}
"""Name -> fault."""


def broken(windows: WindowSet, fault: str, rng: np.random.Generator) -> WindowSet:
    """Apply a fault to all present modalities of the windows; drops the context.

    Raises:
        KeyError: there is no such fault.
    """
    change = FAULTS[fault]
    x = {}
    for column, (name, x_BCT) in enumerate(windows.x.items()):
        here_B = windows.present_BM[:, column]
        made_BCT = x_BCT.copy()
        made_BCT[here_B] = change(x_BCT[here_B], rng)
        x[name] = made_BCT
    return replace(windows, x=x, context=None)


Places = NDArray[np.int64]
LABELLED: Final = 11
SHARED: Final = 12
LACKING: Final = 13
BROKEN: Final = 14


def rng_of(seed: int, purpose: int, *more: int) -> np.random.Generator:
    """A random generator for one purpose."""
    return np.random.default_rng([seed, purpose, *more])


def labelled_places(count: int, share: float, seed: int) -> tuple[Places, Places]:
    """Places of the coordinator's windows among ``count``, and the others; both ascending.

    Raises:
        Misconfigured: the share leaves one side without windows.
    """
    order = rng_of(seed, LABELLED).permutation(count)
    cut = round(share * count)
    if not 0 < cut < count:
        raise Misconfigured(f"a labelled share of {share} of {count} windows leaves one side without any")
    return np.sort(order[:cut]), np.sort(order[cut:])


def dirichlet_shares(y_B: NDArray[np.int64], devices: int, alpha: float, seed: int) -> list[Places]:
    """Divide each class among the devices by Dirichlet(``alpha``); every window goes to one device.

    Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification (2019).

    Args:
        y_B: class of every window.
        devices: number of devices; some may get nothing.
        alpha: small is uneven, large is even.
        seed: of the shares, and of who gets which window.
    """
    rng = rng_of(seed, SHARED)
    parts: list[list[Places]] = [[] for _ in range(devices)]
    for value in np.unique(y_B):
        members = rng.permutation(np.flatnonzero(y_B == value))
        ends = np.rint(rng.dirichlet(np.full(devices, alpha)).cumsum()[:-1] * len(members)).astype(np.int64)
        for own, places in zip(parts, np.split(members, ends), strict=True):
            own.append(places)
    return [np.sort(np.concatenate(own)) for own in parts]


def lacking(devices: int, modalities: int, missing: float, seed: int) -> NDArray[np.bool_]:
    """(devices, M): whether a device lacks a modality, drawn independently.

    A modality that no device would have stays on the device that would lose it last, so that its encoder is
    trained.
    """
    chance_DM = rng_of(seed, LACKING).random((devices, modalities))
    lacks_DM: NDArray[np.bool_] = chance_DM < missing
    lacks_DM[chance_DM.argmax(axis=0), np.arange(modalities)] &= ~lacks_DM.all(axis=0)
    return lacks_DM


def some(places: Places, most: int | None) -> Places:
    """All places, or at most ``most``, spread evenly."""
    count = len(places)
    spread = np.linspace(0, count - 1, min(count, most or count))
    return places[np.unique(spread.round().astype(np.int64))]


def fleet_task(name: str, scales: Mapping[str, float], context_s: float | None) -> Task:
    """The task on UCI-HAR's sensors; a run sets its network and options.

    Args:
        name: of the fleet.
        scales: about the standard deviations of the signals, in g and rad/s.
        context_s: see :class:`~lichen_lab.benchmarks.studies.tactfl.settings.DealConditions`.
    """
    return Task(
        name=name,
        method="tactfl",
        labels=uci_har.LABELS,
        modalities=tuple(m.model_copy(update={"scale": scales[m.name]}) for m in uci_har.MODALITIES),
        window=Window(length_s=uci_har.WINDOW_S, stride_s=uci_har.WINDOW_S / 2, context_s=context_s),
        rounds=Rounds(min_windows=1),
    )


def tested(windows: WindowSet) -> dict[str, WindowSet]:
    """The test sets of a fleet: the windows as they are, and with each modality alone."""
    one_MM = np.eye(windows.present_BM.shape[1], dtype=np.bool_)
    single = {alone(name): masked(windows, one_M) for name, one_M in zip(windows.x, one_MM, strict=True)}
    return {HERE: windows, **single}


def members(
    own: Mapping[str, WindowSet], conditions: DealConditions, seed: int
) -> tuple[UnlabelledDevice, ...]:
    """The devices of a fleet: without labels, some without a modality, the first one broken if asked for.

    Args:
        own: device -> its windows. One without windows or modalities is left out.
        conditions: of the fleet.
        seed: of missing modalities and of the fault.
    """
    made = []
    modalities = next(iter(own.values())).present_BM.shape[1]
    lacks_DM = lacking(len(own), modalities, conditions.missing, seed)
    for at, ((name, windows), lacks_M) in enumerate(zip(own.items(), lacks_DM, strict=True)):
        fault = conditions.broken if at == 0 else ""
        held = broken(windows, fault, rng_of(seed, BROKEN)) if fault else windows
        if len(held) and not lacks_M.all():
            unlabelled = replace(masked(held, ~lacks_M), y_B=np.full_like(held.y_B, -1))
            made.append(UnlabelledDevice(name, f"broken: {fault}" if fault else "", unlabelled))
    return tuple(made)
