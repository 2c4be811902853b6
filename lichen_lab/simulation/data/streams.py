"""Streams of windows for simulated devices: seeded, so that the same seed is the same stream.

The setting of the QQR paper (Wang et al., section VI): a pool of windows a device, drawn by a Dirichlet share
of the classes; an evolving set into which new windows come each round and from which the oldest go; rounds in
which part of the windows lack a modality (quantity imbalance), and rounds in which a modality is noisy
(quality imbalance). The paper's lambda_p, lambda_r and delta_r are ``missing_share``, ``affected_rounds`` and
``noisy_rounds`` here.

Shapes: B windows, M modalities, C channels, T samples.
"""

from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from models.contract import WindowSet
from models.data.streams import context as contexts
from models.data.window_set import select

Indices = NDArray[np.int64]
_NOISE: Final = 1
_MISSING: Final = 2


class RoundStream(Protocol):
    """What a device holds at each round (counted from 1)."""

    def at(self, round_: int) -> WindowSet:
        """The windows to train on in that round; the same for the same round."""


@dataclass(frozen=True)
class Fixed:
    """A device whose windows do not change."""

    windows: WindowSet

    def at(self, round_: int) -> WindowSet:  # noqa: ARG002 - a stream is asked by round
        """Always the same windows."""
        return self.windows


@dataclass(frozen=True)
class Unlabelled:
    """A device with the windows of another stream, without their classes."""

    stream: RoundStream

    def at(self, round_: int) -> WindowSet:
        """Its windows, without labels."""
        held = self.stream.at(round_)
        return replace(held, y_B=np.full_like(held.y_B, -1), targets={})


def rng_of(*keys: int) -> np.random.Generator:
    """An independent generator for a tuple of non-negative integers (seed, device, round, purpose)."""
    return np.random.default_rng(np.random.SeedSequence(keys))


def dirichlet_pools(
    y_B: NDArray[np.int64], devices: int, size: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    """One pool of window indices a device, its class shares drawn from Dirichlet(``alpha``).

    A pool repeats no window while its class has enough; pools of different devices overlap (five pools of
    2,000 are more than the 7,352 windows of UCI-HAR).

    Args:
        y_B: the class of every window; negative ones are left out.
        devices: how many pools.
        size: windows in each.
        alpha: small is uneven, large is even.
        rng: where chance comes from.
    """
    classes = np.unique(y_B[y_B >= 0])
    members = {int(c): np.flatnonzero(y_B == c) for c in classes}
    pools = []
    for _ in range(devices):
        wanted = rng.multinomial(size, rng.dirichlet(np.full(len(classes), alpha)))
        parts = [
            rng.choice(members[int(c)], size=int(n), replace=int(n) > len(members[int(c)]))
            for c, n in zip(classes, wanted, strict=True)
        ]
        pools.append(rng.permutation(np.concatenate(parts)))
    return pools


def without_modality(windows: WindowSet, share: float, rng: np.random.Generator) -> WindowSet:
    """Quantity imbalance: that share of the windows loses one of the modalities it has, never its last.

    Returns:
        New windows; the values of what is missing are zeros, and its quality is 1 (unknown).
    """
    present_BM = windows.present_BM.copy()
    candidates = np.flatnonzero(present_BM.sum(axis=1) > 1)
    chosen = rng.permutation(candidates)[: round(share * len(candidates))]
    here_NM = present_BM[chosen]
    nth_N = rng.integers(0, here_NM.sum(axis=1))
    present_BM[chosen] = here_NM & ~(here_NM.cumsum(axis=1) == nth_N[:, None] + 1)
    return masked(windows, present_BM)


def masked(windows: WindowSet, keep_BM: NDArray[np.bool_]) -> WindowSet:
    """The windows with some modalities masked: zeros of unknown quality (1), without context.

    Args:
        windows: any; modalities are in the task's order.
        keep_BM: whether a modality is kept in a window; (M,): in all.
    """
    keep_BM = np.atleast_2d(keep_BM)
    present_BM = windows.present_BM & keep_BM
    x = {
        name: np.where(present_BM[:, column, None, None], values, np.float32(0))
        for column, (name, values) in enumerate(windows.x.items())
    }
    quality_BM = np.where(present_BM, windows.quality_BM, np.float32(1))
    context = contexts.masked(windows.context, keep_BM, tuple(windows.x))
    return replace(windows, x=x, present_BM=present_BM, quality_BM=quality_BM, context=context)


def with_noise(
    windows: WindowSet, modality: str, snr_db: float, rng: np.random.Generator, *, quality: float = 0.0
) -> WindowSet:
    """Quality imbalance: white Gaussian noise on one modality, each channel at that signal-to-noise ratio.

    Args:
        windows: without noise. Its dictionary of modalities must be in the task's order.
        modality: the noisy one.
        snr_db: power of the signal about its mean, over the power of the noise, in decibels.
        rng: where chance comes from.
        quality: what the quality indicator says of it (0 to 1).
    """
    column = list(windows.x).index(modality)
    values = windows.x[modality]
    here = windows.present_BM[:, column]
    power = values[here].var(axis=(0, 2)) if here.any() else np.zeros(values.shape[1], np.float32)
    deviation = np.sqrt(power / 10 ** (snr_db / 10))[None, :, None]
    noise = rng.standard_normal(values.shape).astype(np.float32) * deviation.astype(np.float32)
    noisy = np.where(here[:, None, None], values + noise, values).astype(np.float32)
    quality_BM = windows.quality_BM.copy()
    quality_BM[here, column] = quality
    made = replace(windows, x={**windows.x, modality: noisy}, quality_BM=quality_BM)
    return made if windows.context is None else _with_noisy_past(made, modality, deviation, rng)


def _with_noisy_past(
    windows: WindowSet, modality: str, deviation: NDArray[np.float32], rng: np.random.Generator
) -> WindowSet:
    """The same noise on what is known of the stream before each window, so that contexts end with windows."""
    if windows.context is None:
        return windows
    x_BCL = windows.context.x[modality].copy()
    before = x_BCL.shape[2] - windows.x[modality].shape[2]
    points_B = windows.context.points_BM[:, list(windows.x).index(modality)]
    known_BL = np.arange(before) >= x_BCL.shape[2] - points_B[:, None]
    noise = rng.standard_normal((*x_BCL.shape[:2], before)).astype(np.float32) * deviation.astype(np.float32)
    x_BCL[..., :before] += np.where(known_BL[:, None], noise, np.float32(0))
    x_BCL[..., before:] = windows.x[modality]
    return replace(windows, context=replace(windows.context, x={**windows.context.x, modality: x_BCL}))


@dataclass(frozen=True)
class Evolving:
    """A set of fixed size over a pool: each round the newest windows come in and the oldest go out.

    Each kind of fault has chance of its own, so a fault that is turned on changes nothing else: neither which
    windows are held, nor the other faults. A larger share or probability adds faults to those of a smaller
    one, and a lower signal-to-noise ratio makes the same noise louder.

    Attributes:
        pool: the windows that this device will see, in the order of their coming; they wrap around.
        seed: with the round, decides every fault.
        size: windows held at a time.
        step: new windows a round.
        missing_share: share of the windows that lack a modality in an affected round (the paper's lambda_p).
        affected_rounds: probability that a round is affected (lambda_r).
        noisy_rounds: probability that one modality is noisy in a round (delta_r).
        snr_db: signal-to-noise ratio of a noisy modality.
        order: places in ``pool`` in the order of their coming, so that devices share one pool in memory; None
            is the pool as it stands.
    """

    pool: WindowSet
    seed: int
    size: int = 500
    step: int = 20
    missing_share: float = 0.0
    affected_rounds: float = 0.0
    noisy_rounds: float = 0.0
    snr_db: float = 10.0
    order: Indices | None = None

    def at(self, round_: int) -> WindowSet:
        """The set at that round, with its faults; worked out anew at each call."""
        held = select(self.pool, self.held(round_))
        affected, noisy = rng_of(self.seed, round_).random(2) < (self.affected_rounds, self.noisy_rounds)
        if noisy:
            rng = rng_of(self.seed, round_, _NOISE)
            names = tuple(held.x)
            held = with_noise(held, names[int(rng.integers(len(names)))], self.snr_db, rng)
        if affected:
            held = without_modality(held, self.missing_share, rng_of(self.seed, round_, _MISSING))
        return held

    def held(self, round_: int) -> Indices:
        """Indices in the pool of the windows held at that round, the oldest first."""
        length = len(self.pool) if self.order is None else len(self.order)
        first = (round_ - 1) * self.step
        at = np.arange(first, first + self.size, dtype=np.int64) % length
        return at if self.order is None else self.order[at]
