"""SPAR: 10 people, 7 shoulder exercises, wrist accelerometer and gyroscope at 50 Hz.

D. M. Burns et al., Shoulder physiotherapy exercise recognition: machine learning the inertial signals from
a smartwatch, Physiol. Meas. 39 (2018) 075007. The part read here ships inside the package ``seglearn``; only
its data file is opened, the package is never imported. That file is a pickle, so it is compared with the
SHA-256 of the published one before a byte of it is interpreted.
"""

import hashlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protocol.errors import Misconfigured
from protocol.tasks.task import Modality

RATE_HZ: Final = 50.0
LABELS: Final = ("PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW")
LABEL_NAMES: Final = {
    "PEN": "pendulum",
    "ABD": "abduction",
    "FEL": "forward elevation",
    "IR": "internal rotation",
    "ER": "external rotation",
    "TRAP": "trapezius row",
    "ROW": "bent-over row",
}
PEOPLE: Final = tuple(range(1, 11))
MODALITIES: Final = (
    Modality(name="accelerometer", channels=3, rate_hz=RATE_HZ, unit="g", low=-16.0, high=16.0, scale=0.7),
    Modality(name="gyroscope", channels=3, rate_hz=RATE_HZ, unit="rad/s", low=-35.0, high=35.0, scale=1.7),
)
SHA256: Final = "eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537"
FILE_VARIABLE: Final = "LICHEN_SPAR_FILE"

Recording = dict[str, NDArray[Any]]
"""``<modality>/t`` (n,) s, ``<modality>/values`` (n, C), ``label/t``, ``label/values`` (-1: none)."""


@dataclass(frozen=True)
class Series:
    """One exercise by one arm of one person, without a gap.

    Attributes:
        person: 1 to 10.
        side: 0 or 1, the arm.
        label: index into ``LABELS``.
        values: ``x_TC`` float32, three accelerometer channels (g), then three gyroscope channels (rad/s).
    """

    person: int
    side: int
    label: int
    values: NDArray[np.float32]

    @property
    def seconds(self) -> float:
        """Its length."""
        return len(self.values) / RATE_HZ


def locate() -> Path:
    """The data file: ``LICHEN_SPAR_FILE`` where it is set, else inside the installed ``seglearn``.

    Raises:
        Misconfigured: it is in neither place.
    """
    override = os.environ.get(FILE_VARIABLE)
    if override:
        path = Path(override)
        if not path.is_file():
            raise Misconfigured(f"{FILE_VARIABLE}={override}: there is no such file")
        return path
    # For a top-level name find_spec asks the finders where the package lies; it does not run its code.
    spec = find_spec("seglearn")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "data" / "watch_dataset.npy"
        if path.is_file():
            return path
    raise Misconfigured(
        "SPAR is not here: it comes with seglearn 1.2.5 (pip install lichen-lab), "
        f"or name a copy of its watch_dataset.npy in {FILE_VARIABLE}"
    )


def load(path: Path | None = None) -> tuple[Series, ...]:
    """All 140 series, in the file's order.

    Raises:
        Misconfigured: the file is missing or is not the published one.
    """
    source = path or locate()
    try:
        data = source.read_bytes()
    except OSError as error:
        raise Misconfigured(f"{source}: cannot be read: {error.strerror}") from None
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise Misconfigured(
            f"{source}: SHA-256 is {found}, the published file's is {SHA256}; "
            "it is a pickle and is not opened (reinstall: pip install --force-reinstall seglearn==1.2.5)"
        )
    content = np.load(io.BytesIO(data), allow_pickle=True).item()  # its digest was compared
    rows = zip(content["X"], content["subject"], content["side"], content["y"], strict=True)
    return tuple(
        Series(int(person), int(side), int(label), np.asarray(x, dtype=np.float32))
        for x, person, side, label in rows
    )


def on_one_wrist(series: Sequence[Series]) -> list[Series]:
    """All series as if worn on the same arm: a watch knows its wrist, and mirrors what the other measures.

    The mirror is the plane across the forearm's x axis: of the accelerometer (a vector) x changes its sign,
    of the gyroscope (an axial vector) y and z do.
    """
    mirror_C = np.array([-1, 1, 1, 1, -1, -1], np.float32)
    return [replace(one, side=0, values=one.values * mirror_C) if one.side == 1 else one for one in series]


def of_person(series: Sequence[Series], *people: int) -> list[Series]:
    """The series of these people."""
    return [one for one in series if one.person in people]


def recording(
    series: Sequence[Series], *, seed: int | None = None, pause_s: float = 1.0, limit_s: float | None = None
) -> Recording:
    """One continuous stream: the series one after another, with pauses in which nothing is measured.

    Args:
        series: what to join.
        seed: shuffles the order; None keeps it.
        pause_s: between series, unlabelled.
        limit_s: keep at most so much from the beginning of each series.
    """
    order = np.arange(len(series)) if seed is None else np.random.default_rng(seed).permutation(len(series))
    times: list[NDArray[np.float64]] = []
    values: list[NDArray[np.float32]] = []
    label_t: list[float] = []
    labels: list[int] = []
    now = 0.0
    for index in order:
        one = series[int(index)]
        kept = one.values if limit_s is None else one.values[: max(1, round(limit_s * RATE_HZ))]
        t = now + np.arange(len(kept)) / RATE_HZ
        times.append(t)
        values.append(kept)
        end = now + len(kept) / RATE_HZ
        label_t += [now, end]
        labels += [one.label, -1]
        now = end + pause_s
    t_n = np.concatenate(times) if times else np.empty(0)
    x_TC = np.concatenate(values) if values else np.empty((0, 6), np.float32)
    return {
        "accelerometer/t": t_n,
        "accelerometer/values": x_TC[:, :3].copy(),
        "gyroscope/t": t_n.copy(),
        "gyroscope/values": x_TC[:, 3:].copy(),
        "label/t": np.asarray(label_t, np.float64),
        "label/values": np.asarray(labels, np.int64),
    }


def seconds(recorded: Recording) -> float:
    """Time of its last sample or label."""
    return max((float(v[-1]) for k, v in recorded.items() if k.endswith("/t") and len(v)), default=0.0)


def save(path: Path, recorded: Recording) -> None:
    """Write a recording that the ``replay`` source reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = dict(recorded)
    np.savez(path, **arrays)
