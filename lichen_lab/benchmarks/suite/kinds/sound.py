"""What a fleet of microphones reaches with ``mel``, against central training, on a speaker no device has met.

FSDD: spoken digits. Five speakers are five devices with 250 recordings each; evaluated on all 500 of the
sixth. Each speaker is the sixth in turn but :data:`DEVELOPMENT`, on whom the options were chosen. Seeds
change which recordings are used and the first model.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby
from statistics import fmean
from typing import Final

import numpy as np

from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, Say
from lichen_lab.benchmarks.suite.kinds.against_central import (
    MARGIN,
    TwoScores,
    TwoWays,
    compared,
    rows_of,
)
from lichen_lab.simulation.data.access.split import complete
from lichen_lab.simulation.data.sets import av_mnist, fsdd
from lichen_lab.simulation.data.streams import rng_of
from models.contract import WindowSet
from models.data.window_set import select
from protocol.tasks.kinds import Augment
from protocol.tasks.network import Encoder, Network
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Modality, Task, Window

SETTING: Final = "5 speakers, 250 recordings each, the sixth unseen, 36 rounds of 2 epochs, augmented"
ACCURACY: Final = "accuracy on the unseen speaker, %"
SPEAKERS: Final = "mean of the five speakers"
PAIRS: Final = "every run"
DEVELOPMENT: Final = "yweweler"
"""Unseen while the options were chosen, so never unseen in a stored figure."""
_ROUNDS: Final = 36
_EACH: Final = 250
_SEEDS: Final = 3
_PURPOSE: Final = 33
WINDOW: Final = Window(length_s=0.8, stride_s=0.8)
_MICROPHONE: Final = Modality(
    name="microphone",
    kind="sound",
    channels=1,
    rate_hz=fsdd.RATE_HZ,
    low=-32768,
    high=32767,
    scale=4000.0,
    augment=Augment(shift=0.1, speed=0.2, gain_db=20, noise=0.1, mask=0.1, bands=0.2),
)


def task_of(seed: int, rounds: int = _ROUNDS) -> Task:
    """One microphone, 32 bands, four convolutions; two epochs a round in small batches: 50 steps."""
    encoder = Encoder(kind="mel", width=8, depth=4, bands=32)
    return Task(
        name="sound",
        labels=av_mnist.LABELS,
        modalities=(_MICROPHONE,),
        window=WINDOW,
        network=Network(encoders={_MICROPHONE.name: encoder}, feature_dim=64, hidden_dim=64),
        rounds=Rounds(count=rounds),
        config={"epochs": 2, "batch": 10, "lr": 0.06, "lr_decay": 0.955},
        seed=seed,
    )


def windows_of(clips: fsdd.Clips) -> WindowSet:
    """The first 0.8 s of each recording, in the middle of a window; silence around it."""
    x_BCT = np.zeros((len(clips.audio), 1, round(WINDOW.length_s * fsdd.RATE_HZ)), np.float32)
    for x_T, clip in zip(x_BCT[:, 0], clips.audio, strict=True):
        part = clip[: len(x_T)]
        begin = (len(x_T) - len(part)) // 2
        x_T[begin : begin + len(part)] = part
    return complete({_MICROPHONE.name: x_BCT}, clips.digit)


def fleet(unseen: str, seed: int, rounds: int = _ROUNDS, each: int = _EACH) -> TwoWays:
    """One repetition; ``each``: so many recordings of a speaker train."""
    clips, rng = fsdd.clips(), rng_of(_PURPOSE, seed)
    whole = windows_of(clips)
    own = {
        name: rng.permutation(np.flatnonzero(clips.speaker == one)) for one, name in enumerate(fsdd.SPEAKERS)
    }
    test = select(whole, own.pop(unseen))
    devices = {name: select(whole, at[:each]) for name, at in own.items()}
    return TwoWays(f"FSDD, {unseen}", SETTING, task_of(seed, rounds), devices, test)


def _cases(quick: bool) -> Iterator[partial[TwoWays]]:  # noqa: FBT001 - as run()
    if quick:
        yield partial(fleet, DEVELOPMENT, 0, rounds=2, each=60)
        return
    for seed in range(_SEEDS):
        for unseen in fsdd.SPEAKERS:
            if unseen != DEVELOPMENT:
                yield partial(fleet, unseen, seed)


def over_speakers(scores: Iterable[TwoScores]) -> list[TwoScores]:
    """For each unseen speaker the mean of both ways over the seeds, then every run, as two more data sets.

    Runs on one speaker share their test recordings: only the speakers are independent of each other.
    """
    runs = sorted(scores, key=lambda one: one.of.dataset)
    means = []
    for _, group in groupby(runs, key=lambda one: one.of.dataset):
        own = [*group]
        means.append(
            TwoScores(
                replace(own[0].of, dataset=f"FSDD, {SPEAKERS}"),
                fmean(one.fleet for one in own),
                fmean(one.central for one in own),
                fmean(one.bytes_up for one in own),
                sum(one.seconds for one in own),
            )
        )
    return means + [replace(one, of=replace(one.of, dataset=f"FSDD, {PAIRS}")) for one in runs]


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Five speakers unseen in turn, three seeds each; quick: two rounds with one, on few recordings."""
    import torch  # noqa: PLC0415 - heavy, and only needed here

    torch.set_num_threads(1)
    scores = [*compared(_cases(quick), say)]
    return rows_of([*scores, *over_speakers(scores)], ACCURACY)


BENCH: Final = Bench(
    name="sound", run=run, goals=(Goal(MARGIN, -2.0, above=True, dataset=f"FSDD, {SPEAKERS}"),)
)
