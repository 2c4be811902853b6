"""MERGE-FA: two inputs, four targets, nine kinds of device (the paper's Table 4), two domains, concept drift.

Written digits (MNIST), clothing (Fashion-MNIST) and spoken digits (FSDD). Inputs: ``image``, 28 x 28, row by
row; ``audio``, a spoken digit's log-mel spectrum, its bands and frames averaged by twos. Targets: ``label``,
the digit; ``objects``, the clothing; ``gen_image``, the digit's image alone, 14 x 14 (the modality ``digit``,
which no device reads); ``gen_audio``, the spectrum of the spoken digit.

Two domains: if clothing is to be classified, an image shows the digit at the top left and the clothing at the
bottom right, each at half size; otherwise it shows the digit alone, at full size. A device has seen 5 of the
10 classes of each target, its own 5 (the concept drift). Its windows pair an image and a recording of the
same digit.

Members have MNIST's and Fashion-MNIST's official test images, the first half for training, and FSDD's
recordings 0 to 24 (0 to 4, the official test part, for evaluation); the judges have MNIST's official training
images and FSDD's recordings from 25 on.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.benchmarks.studies.disentafl.data import pictures
from lichen_lab.benchmarks.studies.disentafl.data.pictures import Pool
from lichen_lab.benchmarks.studies.disentafl.data.windows import seen_by, truths, words
from lichen_lab.benchmarks.studies.disentafl.settings import TargetDevice, TargetFleet
from lichen_lab.simulation.data.access import log_mel
from lichen_lab.simulation.data.access.split import Part, complete
from lichen_lab.simulation.data.sets import av_mnist, fsdd
from lichen_lab.simulation.data.sets.fsdd import Sounds
from models.contract import FloatArray, Profile, WindowSet
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import LABEL, Modality, Target, Task, Window

NAME: Final = "merge-fa"
EACH: Final = 3
TRAIN: Final = 120
TEST: Final = 60
CLASSES: Final = 5
"""Number of classes of each target, of 10, that a device has seen."""
_PARTS: Final[tuple[Part, ...]] = ("train", "test")
PROFILES: Final = (
    Profile(("image",), (LABEL,)),
    Profile(("audio",), (LABEL,)),
    Profile(("image", "audio"), (LABEL,)),
    Profile(("audio",), (LABEL, "gen_image")),
    Profile(("image",), ("gen_audio",)),
    Profile(("image", "audio"), ("gen_image", "gen_audio")),
    Profile(("image",), (LABEL, "objects")),
    Profile(("image",), ("objects", "gen_audio")),
    Profile(("image",), (LABEL, "objects", "gen_image")),
)
"""The kinds of device."""


def task() -> Task:
    """The task; a run sets its network and options."""
    window_s = av_mnist.WINDOW_S
    audio = av_mnist.AUDIO
    return Task(
        name=NAME,
        method="disentafl",
        labels=av_mnist.LABELS,
        modalities=(
            av_mnist.IMAGE,
            audio.model_copy(
                update={
                    "channels": log_mel.BANDS // pictures.POOL,
                    "rate_hz": log_mel.FRAMES_HZ / pictures.POOL,
                }
            ),
            Modality(
                name="digit",
                channels=pictures.HALF,
                rate_hz=pictures.HALF / window_s,
                low=0.0,
                high=1.0,
                offset=0.13,
                scale=0.27,
                input=False,
            ),
        ),
        targets=(
            Target(name="objects", labels=av_mnist.CLOTHING),
            Target(name="gen_image", kind="generation", modality="digit"),
            Target(name="gen_audio", kind="generation", modality="audio"),
        ),
        window=Window(length_s=window_s, stride_s=window_s),
        rounds=Rounds(min_windows=1),
    )


@dataclass(frozen=True)
class _Pools:
    """The sources of one part of the windows."""

    digits: Pool
    clothes: Pool
    sounds: Pool


def build(
    seed: int, *, each: int = EACH, train: int = TRAIN, test: int = TEST, classes: int = CLASSES
) -> TargetFleet:
    """Build the fleet.

    Args:
        seed: of the classes that devices have seen, of the pairs, and of the judges.
        each: devices of a kind.
        train: a device's training windows.
        test: its test windows.
        classes: of the 10 of each target, those that a device has seen; 10: no concept drift.

    Raises:
        Misconfigured: MNIST, Fashion-MNIST or FSDD is not here.
    """
    rng = np.random.default_rng([seed, 3])
    sounds = fsdd.load()
    learned, pools = task(), {part: _pools(sounds, part) for part in _PARTS}
    counts = tuple(zip(_PARTS, (train, test), strict=True))
    members = []
    for at, profile in enumerate(p for p in PROFILES for _ in range(each)):
        seen = tuple(np.sort(rng.permutation(10)[:classes]) for _ in ("digits", "clothes"))
        two = "objects" in profile.targets
        both = [_windows(pools[part], count, two, seen, rng) for part, count in counts]
        mine = [seen_by(learned, profile, windows) for windows in both]
        truth = [truths(learned, profile, {"digit": w.y_B, "audio": w.y_B}) for w in both]
        members.append(
            TargetDevice(f"d{at:02d}", words(profile), profile, mine[0], mine[1], truth[1], truth[0])
        )
    return TargetFleet(NAME, learned, tuple(members), pictures.judges(seed, sounds))


def _pools(sounds: Sounds, part: Part) -> _Pools:
    """The members' sources: halves of the official test images, and their recordings."""
    return _Pools(
        pictures.half(av_mnist.images("test"), part),
        pictures.half(av_mnist.images("test", av_mnist.FASHION), part),
        pictures.spoken(sounds, part),
    )


def _windows(
    pools: _Pools,
    count: int,
    two: bool,  # noqa: FBT001 - one of the two domains
    seen: tuple[NDArray[np.int64], ...],
    rng: np.random.Generator,
) -> WindowSet:
    """That number of windows of the classes seen, with all modalities and targets."""
    digit_B, object_B = (rng.permutation(np.resize(classes, count)) for classes in seen)
    written_BHW = pools.digits.drawn(digit_B, rng)
    worn_BHW = pools.clothes.drawn(object_B, rng)
    small_BHW = pictures.pooled(written_BHW)
    shown_BHW = pictures.side_by_side(small_BHW, pictures.pooled(worn_BHW)) if two else written_BHW
    x: dict[str, FloatArray] = {
        # Rows are time: channel w of sample h.
        "image": pictures.as_stream(shown_BHW),
        "audio": pools.sounds.drawn(digit_B, rng),
        "digit": pictures.as_stream(small_BHW),
    }
    return complete(x, digit_B.astype(np.int64), {"objects": object_B.astype(np.float32)} if two else {})
