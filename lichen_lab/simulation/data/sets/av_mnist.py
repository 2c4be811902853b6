"""AV-MNIST: a handwritten digit (MNIST) beside a spoken one (FSDD) of the same class.

Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits;
:mod:`lichen_lab.simulation.data.sets.fsdd` has the
sounds. Paired in the manner of P. P. Liang et al., MultiBench, NeurIPS 2021, but nothing is taken out of the
images or mixed into the sounds as there: each modality alone tells most digits.

Both are streams of one second, as sensors deliver them: the image row by row (28 rows of 28 channels), the
sound as 50 frames of 32 log-mel bands. The splits are the official ones of both.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.simulation.data.access import idx, locations, log_mel
from lichen_lab.simulation.data.access.split import DataSplit, Part, complete
from lichen_lab.simulation.data.sets import fsdd
from protocol.errors import Misconfigured
from protocol.tasks.task import Modality

FOLDER: Final = "mnist"
WINDOW_S: Final = log_mel.SECONDS
ROWS: Final = 28
LABELS: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
IMAGE: Final = Modality(
    name="image", channels=ROWS, rate_hz=ROWS / WINDOW_S, low=0.0, high=1.0, offset=0.13, scale=0.31
)
AUDIO: Final = Modality(
    name="audio",
    channels=log_mel.BANDS,
    rate_hz=log_mel.FRAMES_HZ,
    unit="dB",
    low=0.0,
    high=log_mel.RANGE_DB,
    offset=19.0,
    scale=25.0,
)
MODALITIES: Final = (IMAGE, AUDIO)
_PREFIX: Final[Mapping[Part, str]] = {"train": "train", "test": "t10k"}
FILES: Final = ("images-idx3-ubyte", "labels-idx1-ubyte")
FASHION: Final = "fashion_mnist"
"""Folder of Fashion-MNIST: 10 kinds of clothing in MNIST's files and split. H. Xiao, K. Rasul, R. Vollgraf,
Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms, 2017, arXiv:1708.07747."""
CLOTHING: Final = (
    *("T-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)


def load(part: Part, seed: int = 0, limit: int | None = None) -> DataSplit:
    """Pairs in MNIST's order; ``person_B`` is the speaker.

    Args:
        part: train (60,000 images, 2,700 recordings) or test (10,000, 300).
        seed: which recording an image is paired with, and which images a limit leaves.
        limit: at most so many pairs; None: all (of the training part they take 570 MB). An image has the same
            partner under any limit.

    Returns:
        ``image``: brightness, 0 (paper) to 1 (ink). ``audio``: dB above silence. All present.

    Raises:
        Misconfigured: MNIST or FSDD is not here, or a file is not what it should be.
    """
    image_BHW, digit_B = images(part)
    sounds = fsdd.load()
    rng = np.random.default_rng(seed)
    partner_B = partners(digit_B, sounds.digit, sounds.of(part), rng)
    if limit is not None and limit < len(digit_B):
        kept = np.sort(rng.choice(len(digit_B), limit, replace=False))
        image_BHW, digit_B, partner_B = image_BHW[kept], digit_B[kept], partner_B[kept]
    # Rows are time: channel w of sample h.
    image_BCT = np.divide(image_BHW.transpose(0, 2, 1), np.float32(255), dtype=np.float32, order="C")
    windows = complete({IMAGE.name: image_BCT, AUDIO.name: sounds.mel[partner_B]}, digit_B)
    return DataSplit(windows, sounds.speaker[partner_B])


def images(part: Part, folder: str = FOLDER) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """MNIST's images (B, 28, 28) and digits (B,), from idx files, gzipped or not.

    Args:
        part: which.
        folder: of the data set: :data:`FASHION` is published in the same files.

    Raises:
        Misconfigured: they are not here, or not what they should be.
    """
    names = [f"{_PREFIX[part]}-{file}" for file in FILES]
    paths = [locations.file(folder, f"{name}.gz", name) for name in names]
    pixels, digits = (idx.read(path) for path in paths)
    if pixels.shape != (len(digits), ROWS, ROWS):
        raise Misconfigured(f"{paths[0]}: shape {pixels.shape}; MNIST has {(len(digits), ROWS, ROWS)}")
    if digits.ndim != 1 or (digits >= len(LABELS)).any():
        raise Misconfigured(f"{paths[1]}: labels must be 0 to {len(LABELS) - 1}, on one axis")
    return pixels, digits.astype(np.int64)


def partners(
    digit_B: NDArray[np.int64],
    said_S: NDArray[np.int64],
    candidates: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """For each image the index of a recording of its digit, drawn uniformly.

    Args:
        digit_B: of the images.
        said_S: digits of all recordings.
        candidates: indices of those to draw from.
        rng: where chance comes from.

    Raises:
        Misconfigured: a digit has no recording among them.
    """
    partner_B = np.zeros(len(digit_B), np.int64)
    for digit in np.unique(digit_B):
        members = candidates[said_S[candidates] == digit]
        if not len(members):
            raise Misconfigured(f"{fsdd.FILE}: no recording of digit {digit} in this part")
        wanted_B = digit_B == digit
        partner_B[wanted_B] = rng.choice(members, int(wanted_B.sum()))
    return partner_B
