"""WAV files -> recordings: each file an example of equal length, or files one after the other.

Shapes: n samples, C channels.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lichen.data_import.import_options import DEFAULT_NAMES, ImportOptions
from lichen.data_import.listing import ImportedFile
from lichen.data_import.output.forms import Form
from lichen.data_import.output.recordings import RecordingWriter
from lichen.data_import.sounds import wav
from lichen.data_import.sounds.resampling import Resampler
from lichen.data_import.sounds.wav import WavFile
from lichen.data_import.tables.table_import import SESSION_GAP_S
from protocol.errors import Misconfigured

_SHORT_S: Final = 10.0
"""Labelled files that are all shorter than this are examples."""
_LOWEST_HZ: Final = 1000


@dataclass(frozen=True)
class SoundPlan:
    """What is done with the files.

    Attributes:
        files: those that can be read.
        refused: the others, each with the reason.
        rate_hz: of the recordings.
        clip_s: seconds of an example; None: files follow each other.
        why: of ``rate_hz`` and ``clip_s``, for people.
    """

    files: tuple[tuple[ImportedFile, WavFile], ...]
    refused: tuple[str, ...]
    rate_hz: int
    clip_s: float | None
    why: tuple[str, ...]


def plan(files: Sequence[ImportedFile], options: ImportOptions) -> SoundPlan:
    """Read all headers and choose a rate and the length of examples.

    Raises:
        Misconfigured: no file can be read.
    """
    found, refused = [], []
    for file in files:
        try:
            opened = wav.opened(file.path)
        except Misconfigured as error:
            refused.append(str(error))
            continue
        if options.channels in {1, opened.channels}:
            found.append((file, opened))
        else:
            refused.append(f"{file.path}: {opened.channels} channels, --channels says {options.channels}")
    if not found:
        raise Misconfigured(f"none of {len(files)} sound files can be read; the first: {refused[0]}")
    rates = Counter(one.rate_hz for _, one in found)
    rate = round(options.rate_hz) if options.rate_hz else rates.most_common(1)[0][0]
    if rate < _LOWEST_HZ:
        raise Misconfigured(f"--rate-hz {rate}: sound needs {_LOWEST_HZ} Hz or more")
    listed = ", ".join(f"{count} at {one} Hz" for one, count in rates.most_common(4))
    why = [f"{rate} Hz, one channel" if options.channels == 1 else f"{rate} Hz, {options.channels} channels"]
    why[0] += f" (files: {listed})"
    longest = max(one.seconds for _, one in found)
    clip_s = options.clip_s
    if clip_s is None and longest <= _SHORT_S and any(file.label is not None for file, _ in found):
        clip_s = math.ceil(longest * 10 - 1e-9) / 10
        why.append(f"each file is an example of {clip_s:g} s, the longest, filled with silence (--clip-s)")
    elif clip_s is not None:
        cut = sum(one.seconds > clip_s for _, one in found)
        why.append(f"each file is an example of {clip_s:g} s; {cut} are longer and are cut")
    else:
        why.append(f"files of a recording follow each other, {SESSION_GAP_S:g} s apart")
    return SoundPlan(tuple(found), tuple(refused), rate, clip_s, tuple(why))


@dataclass
class SoundImport:
    """Reads sound files into a writer; each recording's time is the sum of its files."""

    options: ImportOptions
    writer: RecordingWriter
    plan: SoundPlan
    _ends: dict[str, float] = field(default_factory=dict)

    def add(self, device: str, file: ImportedFile, sound: WavFile, progress: Callable[[int], None]) -> None:
        """Read one file.

        Raises:
            OSError: it cannot be read.
        """
        name = self.options.name or DEFAULT_NAMES["sound"]
        code = -1 if file.label is None else self.writer.classes.code(file.label)
        rate = self.plan.rate_hz
        if self.plan.clip_s is not None:
            clip = np.zeros((round(self.plan.clip_s * rate), self.options.channels), np.float32)
            at = 0
            for block in self._blocks(sound, progress):
                part = block[: len(clip) - at]
                clip[at : at + len(part)] = part
                at += len(part)
            begin = self.writer.of(device).examples * self.plan.clip_s
            t = begin + np.arange(len(clip)) / rate
            self.writer.samples(device, name, t, clip, Form("sound"))
            self.writer.label_examples(device, np.array([code], np.int32))
            return
        begin, count = self._ends.get(device, 0.0), 0
        if file.label is not None:
            self.writer.labels(device, np.array([begin]), np.array([code], np.int32))
        for block in self._blocks(sound, progress):
            t = begin + (count + np.arange(len(block))) / rate
            self.writer.samples(device, name, t, block, Form("sound"))
            count += len(block)
        end = begin + count / rate
        if file.label is not None:
            self.writer.labels(device, np.array([end]), np.array([-1], np.int32))
        self._ends[device] = end + SESSION_GAP_S

    def _blocks(self, sound: WavFile, progress: Callable[[int], None]) -> Iterator[NDArray[np.float32]]:
        """(n, C) at the rate and with the channels of the recordings."""
        resampler = None
        if sound.rate_hz != self.plan.rate_hz:
            resampler = Resampler(sound.rate_hz, self.plan.rate_hz, self.options.channels)
        for block in sound.blocks():
            progress(len(block) * sound.channels * sound.bits // 8)
            mixed = block if self.options.channels == sound.channels else block.mean(axis=1, keepdims=True)
            plain = np.nan_to_num(mixed, copy=False)
            yield plain if resampler is None else resampler.push(plain)
        if resampler is not None:
            yield resampler.finish()
