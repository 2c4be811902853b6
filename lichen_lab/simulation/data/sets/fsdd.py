"""FSDD: spoken digits, 6 speakers, 50 recordings of each digit by each, 8 kHz; as log-mel spectrograms.

Z. Jackson, C. Souza, J. Flaks, Y. Pan, H. Nicolas, A. Thite, Free Spoken Digit Dataset v1.0.8, 2018. The
official split: recordings 0 to 4 of each digit and speaker test, the others train; all speakers are in both.

Packed form, ``fsdd.npz``: ``audio`` (N,) int16, recordings one after another; per recording ``start`` and
``length`` (samples), ``digit``, ``speaker`` and ``index``.
"""

import hashlib
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.simulation.data.access import cache
from lichen_lab.simulation.data.access import log_mel as logmel
from lichen_lab.simulation.data.access.packed import ArrayForm, check_spans, read_packed
from lichen_lab.simulation.data.access.split import Part
from models.contract import FloatArray

FOLDER: Final = "fsdd"
FILE: Final = "fsdd.npz"
DIGITS: Final = 10
RATE_HZ: Final = 8000
SPEAKERS: Final = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
TEST_RECORDINGS: Final = 5
"""Of each digit and speaker."""
_FORMS: Final = {
    "audio": ArrayForm(("N",), "int16"),
    "start": ArrayForm(("S",)),
    "length": ArrayForm(("S",)),
    "digit": ArrayForm(("S",), low=0, high=DIGITS - 1),
    "speaker": ArrayForm(("S",), low=0, high=len(SPEAKERS) - 1),
    "index": ArrayForm(("S",)),
}


@dataclass(frozen=True)
class Sounds:
    """Spectrograms with digits and speakers.

    Attributes:
        mel: (S, bands, frames) float32, see :mod:`lichen_lab.simulation.data.access.log_mel`.
        digit: (S,) int64, 0 to 9.
        speaker: (S,) int64, index into ``SPEAKERS``.
        index: (S,) int64, counts a speaker's recordings of a digit.
    """

    mel: FloatArray
    digit: NDArray[np.int64]
    speaker: NDArray[np.int64]
    index: NDArray[np.int64]

    def of(self, part: Part) -> NDArray[np.int64]:
        """Indices of the recordings of that part."""
        test_S = self.index < TEST_RECORDINGS
        return np.flatnonzero(test_S if part == "test" else ~test_S)


@dataclass(frozen=True)
class Clips:
    """Recordings as they were made, with digits and speakers as in :class:`Sounds`.

    Attributes:
        audio: one array of int16 samples each, of different lengths, at :data:`RATE_HZ`.
    """

    audio: list[NDArray[np.int16]]
    digit: NDArray[np.int64]
    speaker: NDArray[np.int64]
    index: NDArray[np.int64]


def clips() -> Clips:
    """All recordings.

    Raises:
        Misconfigured: the data set is not here, or the file is not in the packed form.
    """
    arrays = read_packed(FOLDER, FILE, "FSDD", _FORMS)
    check_spans(arrays, FILE, "start", "length", len(arrays["audio"]))
    start, length = (arrays[key].astype(np.int64) for key in ("start", "length"))
    audio = [arrays["audio"][at : at + count] for at, count in zip(start, length, strict=True)]
    return Clips(audio, *(arrays[key].astype(np.int64) for key in ("digit", "speaker", "index")))


def load() -> Sounds:
    """All recordings as spectrograms, which are computed once and kept in the cache.

    Raises:
        Misconfigured: the data set is not here, or the file is not in the packed form.
    """
    made = clips()
    lengths = np.array([len(clip) for clip in made.audio], np.int64)
    starts = np.cumsum(lengths) - lengths
    content = hashlib.sha256(starts.tobytes() + lengths.tobytes())
    content.update(np.concatenate(made.audio).tobytes())
    mel = cache.cached(
        f"logmel{logmel.VERSION}-{content.hexdigest()}",
        (len(made.audio), logmel.BANDS, logmel.FRAMES),
        lambda: logmel.log_mel(made.audio),
    )
    return Sounds(mel, made.digit, made.speaker, made.index)
