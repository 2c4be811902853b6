"""The account of differential privacy: the cost of a device's releases so far. Pure; NumPy alone.

A method adds noise to its updates and charges each release here, in zero-concentrated differential privacy
(Bun and Steinke 2016): the rhos of releases add (lemma 1.7). :class:`Account` is of one window store (one way
of cutting the streams), by modality and by window; a method gets it with its private tensors and gives it
back. :class:`DeviceAccount` is of all window stores of a device, over all tasks: they are cut from the same
streams, so they compose.

There are two units:

- A *window*: neighbouring data differ in the content of one window.
- A *moment*: neighbouring data differ in all samples of one instant of the streams. An instant is in the
  content of ``k = ceil(span / stride)`` windows of a store (:func:`span_of`). Replacing k windows costs up to
  ``k^2`` times the rho of one (group privacy, proposition 1.9): of releases that each hold at most k of them,
  the sum of the squares of those numbers is at most k times their sum, which is at most k times the number
  of one window.

A release without noise has no bound: epsilon is infinite from then on.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.contract import FloatArray, Tensors
from models.data.streams.tracks.kinds import track_of
from models.data.streams.tracks.track import Track
from protocol.tasks.task import Task

PREFIX: Final = "privacy/"
"""Prefix of an account's tensors among a method's private tensors."""
LIMIT: Final = "privacy/limit"
_REMEMBERED: Final = 4096
"""Limit of signals of a modality that are stored besides those in use: they may come back."""
_EPSILON: Final = 1e-9


def rho_of(dp_noise: float) -> float:
    """The rho of one release, ``1 / (2 dp_noise^2)``; infinite without noise."""
    return 1.0 / (2.0 * dp_noise**2) if dp_noise else math.inf


def epsilon_of(rho: float, delta: float) -> float:
    """rho-zCDP as (epsilon, delta): ``rho + 2 sqrt(rho ln(1 / delta))`` (Bun and Steinke, 1.3)."""
    return rho + 2.0 * math.sqrt(rho * math.log(1.0 / delta))


def rho_within(epsilon: float, delta: float) -> float:
    """The largest rho whose :func:`epsilon_of` is at most ``epsilon``."""
    log = math.log(1.0 / delta)
    return float((math.sqrt(log + epsilon) - math.sqrt(log)) ** 2)


def span_of(task: Task) -> float:
    """Seconds of stream whose samples are in one window's content; 0 for a task without windows.

    A point of the grid takes its value from the samples around it (``models.data.streams.tracks``), which
    may lie beside the window: as far as a gap is bridged, or, if the window has no sample at its edge, as far
    as ``min_coverage`` leaves points that hold the nearest sample. A frame of a window lies in it.
    """
    if task.graph is not None:
        return 0.0
    window = task.window
    sampled = [one for one in task.modalities if not one.framed]
    bridged = [track.beside_s for one in sampled if isinstance(track := track_of(one, window), Track)]
    beside_s = max([*bridged, (1.0 - window.min_coverage) * window.length_s]) if sampled else 0.0
    return max(window.length_s, window.context_s or 0.0) + 2.0 * beside_s


def overlap(span_s: float, stride_s: float, stretch_s: float = 0.0) -> int:
    """The largest number of windows that a stretch of ``stretch_s`` lies in; 0: a moment."""
    return max(1, math.ceil((span_s + stretch_s) / stride_s - _EPSILON)) if span_s and stride_s else 1


@dataclass(frozen=True)
class Ledger:
    """The rho that a device's releases have spent for each signal (a window's samples) of one modality.

    Attributes:
        rho: by signal, the last used at the end.
        gone: the largest rho of dropped signals.
    """

    rho: Mapping[int, float]
    gone: float = 0.0

    def after(self, used: Iterable[int], rho: float) -> "Ledger":
        """The ledger after one more release with these signals."""
        new = dict(self.rho)
        spent = {signal: new.pop(signal, 0.0) + rho for signal in used}
        forgotten = [new.pop(signal) for signal in list(new)[: max(0, len(new) - _REMEMBERED)]]
        return Ledger(new | spent, max([self.gone, *forgotten]))

    def plus(self, other: "Ledger") -> "Ledger":
        """A ledger of the releases of both; a signal that one lacks may be among its dropped ones."""
        signals = {**other.rho, **self.rho}
        rho = {
            signal: self.rho.get(signal, self.gone) + other.rho.get(signal, other.gone) for signal in signals
        }
        return Ledger(rho, self.gone + other.gone)

    @property
    def most(self) -> float:
        """The largest rho of any signal."""
        return max([self.gone, *self.rho.values()])

    def arrays(self) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
        """Signals (N,) and rhos (1 + N,), first that of dropped signals; rounded up as bounds."""
        rho_N = np.array([self.gone, *self.rho.values()])
        near_N = rho_N.astype(np.float32)
        up_N = np.where(near_N < rho_N, np.nextafter(near_N, np.float32(np.inf)), near_N)
        return np.array(list(self.rho), "<u8"), up_N.astype(np.float32)

    @classmethod
    def of_arrays(cls, ids_N: NDArray[np.uint64], rho_N: FloatArray) -> "Ledger":
        """The inverse of :meth:`arrays`.

        Raises:
            ValueError: they do not match.
        """
        gone, *rho = rho_N.astype(float).tolist()
        if min([gone, *rho]) < 0 or not math.isfinite(max([gone, *rho])):
            raise ValueError("a rho that is none")
        return cls(dict(zip(ids_N.tolist(), rho, strict=True)), gone)


class Account:
    """A device's ledgers by modality, for one window store."""

    def __init__(self, ledgers: Mapping[str, Ledger]) -> None:
        self._ledgers = dict(ledgers)

    @classmethod
    def of(cls, private: Mapping[str, FloatArray], modalities: Sequence[str]) -> "Account":
        """The account in ``private``; nothing spent if there is none."""
        return cls({name: _read(private, name) for name in modalities if _rho_name(name) in private})

    @property
    def ledgers(self) -> dict[str, Ledger]:
        """By modality."""
        return dict(self._ledgers)

    def rho(self, modality: str, ids: Sequence[int]) -> NDArray[np.float64]:
        """The rho that each of these signals has spent."""
        spent = self._ledgers.get(modality, Ledger({})).rho
        return np.array([spent.get(signal, 0.0) for signal in ids], np.float64)

    def after(self, modality: str, used: Iterable[int], rho: float) -> "Account":
        """The account after one more release."""
        ledger = self._ledgers.get(modality, Ledger({}))
        return Account(self._ledgers | {modality: ledger.after(used, rho)})

    @property
    def most(self) -> float:
        """An upper bound of any window's rho: the largest rho of each modality's signals, added up."""
        return sum(ledger.most for ledger in self._ledgers.values())

    def epsilon(self, delta: float) -> float:
        """A bound for every window, at this delta."""
        return epsilon_of(self.most, delta)

    def tensors(self) -> Tensors:
        """For ``LocalResult.private``; by modality ``ids`` (N, 4), 16 bits each, and ``rho`` (1 + N,)."""
        made: Tensors = {}
        for name, ledger in self._ledgers.items():
            ids_N, rho_N = ledger.arrays()
            ids_N4 = ids_N.view("<u2").reshape(-1, 4).astype(np.float32)
            made |= {f"{PREFIX}{name}/ids": ids_N4, _rho_name(name): rho_N}
        return made


def limit_in(private: Mapping[str, FloatArray]) -> float:
    """The rho that the device lets one window of this store spend in all; infinite without a limit."""
    return float(private[LIMIT].ravel()[0]) if LIMIT in private else math.inf


def _rho_name(modality: str) -> str:
    return f"{PREFIX}{modality}/rho"


def _read(private: Mapping[str, FloatArray], modality: str) -> Ledger:
    ids_N = private[f"{PREFIX}{modality}/ids"].astype("<u2").view("<u8").ravel()
    return Ledger.of_arrays(ids_N, private[_rho_name(modality)])
