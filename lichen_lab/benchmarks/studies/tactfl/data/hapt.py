"""HAPT's raw streams: a device a person, and devices that are worn in different ways.

The devices are the 21 official training people of UCI-HAR (HAPT's people are the same), each with the windows
that the agent's windower cuts of their recordings, gravity included. The coordinator's windows are a random
tenth of what was recorded of them as it was worn in the laboratory; a device has the others, as *it* is worn:

- ``placement``: on another side of the body. All axes are turned about the vertical by a quarter, a half or
  three quarters of a turn, give or take 15 degrees, and motion is up to a quarter stronger or weaker (gravity
  is not).
- ``gravity``: askew. All axes are tilted by up to 60 degrees about a level axis, so that gravity points
  elsewhere.
- ``rate``: with a slower sensor. Every second or third sample alone is there (25 or 16.7 Hz); the windower
  interpolates. A third of the devices has the whole 50 Hz.

Judged on the official test people as they were recorded (:data:`HERE`), and as they would be recorded if they
differed from one another as the devices do (:data:`WORN`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.benchmarks.studies.tactfl.data import dealing
from lichen_lab.benchmarks.studies.tactfl.settings import (
    HERE,
    DealConditions,
    UnlabelledFleet,
)
from lichen_lab.simulation.data.sets import hapt, uci_har
from models.contract import FloatArray, WindowSet
from models.data.streams.cutting import cut
from models.data.streams.recording import Recording, Stream
from models.data.streams.windows import Windows
from models.data.window_set import concat, select
from protocol.errors import Misconfigured
from protocol.tasks.task import Task

NAME: Final = "hapt"
WORN: Final = "test people, worn as differently"
SHIFTS: Final = ("placement", "gravity", "rate")
SCALES: Final = {"accelerometer": 0.5, "gyroscope": 0.5}
"""Standard deviations of the signals, about, in g and rad/s."""
_VERTICAL: Final = np.array([1.0, 0.0, 0.0])
"""Of the phone at the waist: gravity lies along its first axis."""
_TUNED_ON: Final = 6
_PEOPLE: Final = 5
_SHIFT: Final = 21
_ASIDE_DEG: Final = 15.0
_TILT_DEG: Final = 60.0
_STRENGTH: Final = 0.25
_STEPS: Final = (1, 2, 3)
_MANY: Final = 1_000_000
Keys = NDArray[np.int64]


def build(
    seed: int, conditions: DealConditions, *, tuning: bool = False, tests: int | None = None
) -> UnlabelledFleet:
    """The fleet; arguments as of :func:`lichen_lab.benchmarks.studies.tactfl.data.uci_har.build`.

    ``alpha`` means nothing here: a device's windows are one person's.

    Raises:
        Misconfigured: the data set is not here, or there is no such shift.
    """
    strange = sorted(set(conditions.shift) - set(SHIFTS))
    if strange:
        raise Misconfigured(f"{NAME}: no shift {strange[0]!r}; there are {', '.join(SHIFTS)}")
    learned = dealing.fleet_task(NAME, SCALES, conditions.context_s)
    people, judged = _people(seed, tuning=tuning)
    recorded = {person: _windows(learned, person) for person in people}
    ours, left = _labelled(recorded, conditions.labelled, seed)
    held = {}
    for person in people[: conditions.devices]:
        own, key_B = _windows(learned, person, _worn(seed, person, conditions.shift))
        places = np.flatnonzero(np.isin(key_B, left[person]))
        held[f"p{person:02d}"] = select(own, dealing.some(places, conditions.windows))
    tests_by_name = {HERE: _judged(learned, judged, seed, (), tests)}
    if conditions.shift:
        tests_by_name[WORN] = _judged(learned, judged, seed, conditions.shift, tests)
    return UnlabelledFleet(NAME, learned, dealing.members(held, conditions, seed), ours, tests_by_name)


def _people(seed: int, *, tuning: bool) -> tuple[list[int], list[int]]:
    """Training people in a random order, and test people."""
    train = [person for person in hapt.PEOPLE if person not in uci_har.TEST_PEOPLE]
    order = dealing.rng_of(seed, _PEOPLE).permutation(train).tolist()
    return (order[_TUNED_ON:], order[:_TUNED_ON]) if tuning else (order, list(uci_har.TEST_PEOPLE))


def _labelled(
    recorded: Mapping[int, tuple[WindowSet, Keys]], share: float, seed: int
) -> tuple[WindowSet, dict[int, Keys]]:
    """The coordinator's windows, and the keys of all others by person, those without a label among them."""
    of_whom = [(person, at) for person, (own, _) in recorded.items() for at in np.flatnonzero(own.y_B >= 0)]
    chosen, _ = dealing.labelled_places(len(of_whom), share, seed)
    places: dict[int, list[int]] = {person: [] for person in recorded}
    for person, at in (of_whom[n] for n in chosen.tolist()):
        places[person].append(int(at))
    ours = concat([select(own, np.array(places[p], np.int64)) for p, (own, _) in recorded.items()])
    left = {person: np.delete(key_B, places[person]) for person, (_, key_B) in recorded.items()}
    return replace(ours, context=None), left


def _judged(
    learned: Task, people: Sequence[int], seed: int, shifts: tuple[str, ...], tests: int | None
) -> WindowSet:
    alone = learned.model_copy(update={"window": learned.window.model_copy(update={"context_s": None})})
    whole = concat([_windows(alone, person, _worn(seed, person, shifts))[0] for person in people])
    return select(whole, dealing.some(np.flatnonzero(whole.y_B >= 0), tests))


@dataclass(frozen=True)
class Worn:
    """The way in which a device is worn.

    Attributes:
        turn_33: applied to the axes of both sensors.
        strength: of motion: acceleration about its mean, and rotation.
        step: every so many samples one is there.
    """

    turn_33: NDArray[np.float64] = field(default_factory=lambda: np.eye(3))
    strength: float = 1.0
    step: int = 1


def _worn(seed: int, person: int, shifts: tuple[str, ...]) -> Worn:
    """Draw each shift independently."""
    turn_33, strength, step = np.eye(3), 1.0, 1
    if "placement" in shifts:
        rng = dealing.rng_of(seed, _SHIFT, person, 0)
        angle_deg = 90.0 * rng.integers(1, 4) + rng.uniform(-_ASIDE_DEG, _ASIDE_DEG)
        turn_33 = _rotation(_VERTICAL, angle_deg)
        strength = float(rng.uniform(1 - _STRENGTH, 1 + _STRENGTH))
    if "gravity" in shifts:
        rng = dealing.rng_of(seed, _SHIFT, person, 1)
        around = rng.uniform(0, 2 * np.pi)
        level = np.array([0.0, np.cos(around), np.sin(around)])
        turn_33 = _rotation(level, rng.uniform(-_TILT_DEG, _TILT_DEG)) @ turn_33
    if "rate" in shifts:
        step = int(dealing.rng_of(seed, _SHIFT, person, 2).choice(_STEPS))
    return Worn(turn_33, strength, step)


def _rotation(axis: NDArray[np.float64], angle_deg: float) -> NDArray[np.float64]:
    """Rotation about a unit vector (Rodrigues)."""
    x, y, z = axis
    cross_33 = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    angle = np.deg2rad(angle_deg)
    turn_33: NDArray[np.float64] = (
        np.eye(3) + np.sin(angle) * cross_33 + (1 - np.cos(angle)) * cross_33 @ cross_33
    )
    return turn_33


def _as_worn(signal: str, values_NC: FloatArray, how: Worn) -> FloatArray:
    still_C = values_NC.mean(axis=0) if signal == "accelerometer" else np.zeros(3)
    made_NC: FloatArray = ((still_C + how.strength * (values_NC - still_C)) @ how.turn_33.T).astype(
        np.float32
    )
    return made_NC[:: how.step]


def _windows(learned: Task, person: int, how: Worn | None = None) -> tuple[WindowSet, Keys]:
    """All windows of a person, and what names each whatever is done to the streams: recording and start."""
    sets, keys = [], []
    for session in _sessions(person):
        arrays = session.recorded
        streams = {}
        for name in learned.modality_names:
            t, values_NC = arrays[f"{name}/t"], arrays[f"{name}/values"]
            if how is not None:
                t, values_NC = t[:: how.step], _as_worn(name, values_NC, how)
            streams[name] = Stream(t, values_NC)
        for windows in cut(learned, Recording(streams, arrays["label/t"], arrays["label/values"])):
            index_B = np.rint(windows.start_B / learned.window.stride_s).astype(np.int64)
            keys.append(session.number * _MANY + index_B)
            sets.append(_of(windows))
    return concat(sets), np.concatenate(keys)


def _of(windows: Windows) -> WindowSet:
    quality_BM = np.ones(windows.present_BM.shape, np.float32)
    return WindowSet(windows.x, windows.present_BM, quality_BM, windows.y_B, context=windows.context)


@cache
def _sessions(person: int) -> tuple[hapt.HaptSession, ...]:
    return tuple(session for session in _everybody() if session.person == person)


@cache
def _everybody() -> tuple[hapt.HaptSession, ...]:
    return hapt.sessions(transitions=False)
