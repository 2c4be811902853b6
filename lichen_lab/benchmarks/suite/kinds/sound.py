"""What a fleet of microphones reaches with ``mel``, against central training, on a speaker no device has met.

FSDD: spoken digits. Five speakers are five devices with their 500 recordings each; evaluated on the 500 of
the sixth. Seeds change who is the sixth. No option was chosen by the accuracy on these three speakers.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np

from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, Say
from lichen_lab.benchmarks.suite.kinds.against_central import MARGIN, TwoWays, compared, rows_of
from lichen_lab.simulation.data.access.split import complete
from lichen_lab.simulation.data.sets import av_mnist, fsdd
from models.contract import WindowSet
from models.data.window_set import select
from protocol.tasks.kinds import Augment
from protocol.tasks.network import Encoder, Network
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Modality, Task, Window

SETTING: Final = "5 speakers, 500 recordings each, the sixth unseen, 8 rounds, augmented"
ACCURACY: Final = "accuracy on the unseen speaker, %"
_ROUNDS: Final = 8
_EACH: Final = 500
_MICROPHONE: Final = Modality(
    name="microphone",
    kind="sound",
    channels=1,
    rate_hz=fsdd.RATE_HZ,
    low=-32768,
    high=32767,
    scale=4000.0,
    augment=Augment(shift=0.1, speed=0.1, gain_db=10, noise=0.1, mask=0.1, bands=0.2),
)


def task_of(seed: int, rounds: int = _ROUNDS) -> Task:
    """One microphone, 32 bands, four convolutions; an epoch a round in small batches: 100 steps."""
    encoder = Encoder(kind="mel", width=8, depth=4, bands=32)
    return Task(
        name="sound",
        labels=av_mnist.LABELS,
        modalities=(_MICROPHONE,),
        window=Window(length_s=1, stride_s=1),
        network=Network(encoders={_MICROPHONE.name: encoder}, feature_dim=64, hidden_dim=64),
        rounds=Rounds(count=rounds),
        config={"epochs": 1, "batch": 5, "lr": 0.05, "lr_decay": 0.85},
        seed=seed,
    )


def windows_of(clips: fsdd.Clips) -> WindowSet:
    """The first second of each recording, in the middle of a window; silence around it."""
    x_BCT = np.zeros((len(clips.audio), 1, fsdd.RATE_HZ), np.float32)
    for x_T, clip in zip(x_BCT[:, 0], clips.audio, strict=True):
        part = clip[: len(x_T)]
        begin = (len(x_T) - len(part)) // 2
        x_T[begin : begin + len(part)] = part
    return complete({_MICROPHONE.name: x_BCT}, clips.digit)


def fleet(seed: int, rounds: int = _ROUNDS, each: int = _EACH) -> TwoWays:
    """One repetition; ``each``: at most so many recordings of a speaker."""
    clips = fsdd.clips()
    whole = windows_of(clips)
    by_speaker = [
        select(whole, np.random.default_rng(seed).permutation(np.flatnonzero(clips.speaker == one))[:each])
        for one in range(len(fsdd.SPEAKERS))
    ]
    unseen = by_speaker.pop(seed % len(by_speaker))
    devices = {f"d{i}": windows for i, windows in enumerate(by_speaker)}
    return TwoWays("FSDD", SETTING, task_of(seed, rounds), devices, unseen)


def _cases(quick: bool) -> Iterator[partial[TwoWays]]:  # noqa: FBT001 - as run()
    if quick:
        yield partial(fleet, 0, rounds=2, each=60)
        return
    for seed in range(3):
        yield partial(fleet, seed)


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Three speakers unseen in turn; quick: two rounds with one, on few recordings."""
    import torch  # noqa: PLC0415 - heavy, and only needed here

    torch.set_num_threads(1)
    return rows_of(compared(_cases(quick), say), ACCURACY)


BENCH: Final = Bench(name="sound", run=run, goals=(Goal(MARGIN, -2.0, above=True),))
