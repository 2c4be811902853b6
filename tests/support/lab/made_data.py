"""Small synthetic copies of the data sets, in their packed and in their official layouts."""

import gzip
import io
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lichen_lab.simulation.data.access.split import Part
from lichen_lab.simulation.data.sets import fsdd, uci_har, uci_har_official
from lichen_lab.simulation.data.sets.uci_har_digests import PARTS

Arrays = dict[str, NDArray[Any]]


def har_parts(rows: int = 5) -> dict[Part, Arrays]:
    """UCI-HAR's arrays with few windows, all values different."""
    rng = np.random.default_rng(7)
    parts: dict[Part, Arrays] = {}
    for number, part in enumerate(PARTS):
        count = rows - number
        parts[part] = {
            "x": rng.normal(0, 1, (count, 9, uci_har.SAMPLES)).astype(np.float32),
            "y": (np.arange(count) % 6 + 1).astype(np.int8),
            "subject": np.full(count, 1 + number, np.int8),
        }
    return parts


def har_texts(parts: Mapping[Part, Arrays], digits: int = 9) -> dict[str, bytes]:
    """The official text files, by path below the data set's own folder."""
    texts: dict[str, bytes] = {}
    for part, arrays in parts.items():
        for kind in ("y", "subject"):
            texts[f"{part}/{kind}_{part}.txt"] = "".join(f"{v}\n" for v in arrays[kind].tolist()).encode()
        for column, channel in enumerate(uci_har.CHANNELS):
            buffer = io.BytesIO()
            np.savetxt(buffer, arrays["x"][:, column], fmt=f" %{digits + 7}.{digits - 1}e")
            texts[uci_har_official.name_of(part, channel)] = buffer.getvalue()
    return texts


def zipped(files: Mapping[str, bytes], under: str = "UCI HAR Dataset/") -> bytes:
    """A ZIP archive of these files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(f"{under}{name}", content)
    return buffer.getvalue()


def nested(inner: bytes) -> bytes:
    """The archive as the repository offers it: with another one inside."""
    files = {"UCI HAR Dataset.zip": inner, "UCI HAR Dataset.names": b"about"}
    return zipped(files, "")


def write_har(root: Path, parts: Mapping[Part, Arrays]) -> None:
    """The packed form."""
    (root / uci_har.FOLDER).mkdir(parents=True)
    for part, arrays in parts.items():
        np.savez(root / uci_har.FOLDER / uci_har.file_name(part), **arrays)  # type: ignore[arg-type]


def idx(values: NDArray[np.uint8]) -> bytes:
    """Encode in the idx format."""
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()


def write_mnist(root: Path, digits: int = 40) -> None:
    """Images in which each pixel encodes its place: 28 * row + column + digit (mod 256)."""
    folder = root / "mnist"
    folder.mkdir(parents=True)
    places = np.arange(28 * 28).reshape(1, 28, 28)
    for prefix, count in (("train", digits), ("t10k", digits // 2)):
        labels = (np.arange(count) % 10).astype(np.uint8)
        pixels = ((places + labels[:, None, None]) % 256).astype(np.uint8)
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pixels)))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(labels))


def fsdd_arrays(recordings: int = 8) -> Arrays:
    """Of each digit and two speakers, tones with a pitch by digit, from short to too long."""
    rng = np.random.default_rng(3)
    keys = [(d, s, i) for d in range(10) for s in range(2) for i in range(recordings)]
    length = np.array([int(rng.integers(1200, 9000)) for _ in keys], np.int32)
    audio = [
        (9000 * np.sin(2 * np.pi * (200 + 150 * d) * np.arange(n) / 8000)).astype(np.int16)
        for (d, _, _), n in zip(keys, length.tolist(), strict=True)
    ]
    digit, speaker, index = (np.array([key[place] for key in keys], np.int8) for place in range(3))
    start = (np.cumsum(length) - length).astype(np.int32)
    return {
        "audio": np.concatenate(audio),
        "start": start,
        "length": length,
        "digit": digit,
        "speaker": speaker,
        "index": index,
    }


def write_fsdd(root: Path, arrays: Arrays | None = None) -> None:
    """The packed form."""
    (root / fsdd.FOLDER).mkdir(parents=True, exist_ok=True)
    np.savez(root / fsdd.FOLDER / fsdd.FILE, **(arrays or fsdd_arrays()))  # type: ignore[arg-type]


def hapt_arrays() -> Arrays:
    """Two recordings of 8 and 6 samples."""
    acc = np.arange(14 * 3, dtype=np.int16).reshape(14, 3)
    return {
        "acc": acc,
        "gyro": (-acc).astype(np.int16),
        "acc_lsb_g": np.array(0.5),
        "gyro_lsb_rad_s": np.array(0.25),
        "label": np.array([-1, -1, 5, 5, 7, 7, 5, -1, 1, 1, 2, 2, 2, 12], np.int8),
        "rec_start": np.array([0, 8], np.int32),
        "rec_length": np.array([8, 6], np.int32),
        "rec_subject": np.array([3, 30], np.int8),
        "rec_number": np.array([1, 2], np.int8),
    }
