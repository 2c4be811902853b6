"""Whose windows an update was trained on: attacks on a device's update, and on a round's mean. Imports torch.

The attacker knows the version that a round begins with, and sees the update of one device (as a coordinator
does) or what the next version differs by (as everybody does who gets versions; without noise: the sum of a
secure round). It tries each window by itself. By the loss, which training has lowered, compared to windows of
other people, of the same class. By the gradient, along which the update points: with the statistics of
BatchNorm that the update tells, and without the directions that gradients of other people's windows share.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.privacy.audit import rates, scores
from lichen_lab.benchmarks.studies.privacy.audit.coordinator_side import (
    CheckedUpdate,
    CoordinatorSide,
    framed,
)
from lichen_lab.benchmarks.studies.privacy.federation import history_of, task_of
from lichen_lab.benchmarks.studies.privacy.fleets import PrivacyFleet
from lichen_lab.benchmarks.studies.privacy.settings import PrivacyOutcome, PrivacySetting
from lichen_lab.simulation.training.workers import one_thread
from models import registry
from models.contract import Blobs, ClientContext, FloatArray, WindowSet
from models.data.window_set import concat, select
from models.privacy.key_stream import derived_key
from models.privacy.noisy_fold import RoundNoise
from models.tensors import apply, difference, flatten, unflatten
from protocol.tasks.task import Task

ONE: Final = "one"
"""Whose updates are seen: each by itself; or the mean of a round's."""
_KNOWN: Final = 24
"""Windows of other people, of each class."""
_AT_ONCE: Final = 16
_SHARED: Final = 20
"""Directions that are left out of gradients."""
_TINY: Final = 1e-12


@dataclass(frozen=True)
class SeenChange:
    """What the attacker sees: a change of the model, and the windows that it asks about.

    Attributes:
        change: of all tensors.
        members: places of windows that the change was trained on, among those of all devices.
    """

    change: dict[str, FloatArray]
    members: NDArray[np.int64]


def attack(fleet: PrivacyFleet, setting: PrivacySetting, seed: int, tell: Say) -> PrivacyOutcome:
    """Make a run: train a fleet for some rounds without protection, and attack the next one.

    ``config`` has ``seen`` (``one`` or ``mean``) beside the options of the method.
    """
    began, options = time.process_time(), dict(setting.config)
    whose = options.pop("seen")
    protected = replace(setting, config=options)
    plain = replace(protected, noise_multiplier=0.0)
    history = history_of(fleet, plain, seed, tell, at_once=_AT_ONCE)
    state, task = history.state, task_of(fleet, protected)
    fleet = _cohort(fleet, setting.rate)
    with one_thread():
        seen = _seen(fleet, task, state, seed, alone=whose == ONE)
        found = _attacked(fleet, task_of(fleet, plain), state, seen)
    return PrivacyOutcome(
        devices=len(fleet.devices),
        parameters=sum(tensor.size for tensor in flatten(state).values()),
        taken=float(len(fleet.devices)),
        attack=found,
        seconds=time.process_time() - began,
    )


def _cohort(fleet: PrivacyFleet, rate: float) -> PrivacyFleet:
    """That share of the devices, evenly spread over the people: those of the next round."""
    names = list(fleet.devices)[:: max(1, round(1 / rate))]
    some = {name: fleet.devices[name] for name in names}
    return replace(fleet, devices=some, others={name: fleet.others[name] for name in names})


def _seen(fleet: PrivacyFleet, task: Task, state: Blobs, seed: int, *, alone: bool) -> list[SeenChange]:
    """The updates of all devices from this version, or their mean."""
    side, client = CoordinatorSide.of(task, state), registry.method(task.method).client()
    received: list[CheckedUpdate] = []
    for number, (name, windows) in enumerate(fleet.devices.items()):
        result = client.train(ClientContext(task, name, 1, seed + number), windows, state, {})
        frame = framed(task, name, 1, windows, result)
        received.append(side.received(name, frame, task.privacy))
    ends = np.cumsum([len(windows) for windows in fleet.devices.values()])
    places = np.split(np.arange(ends[-1]), ends[:-1])
    if alone:
        return [
            SeenChange(dict(one.read(side.limits).tensors), at)
            for one, at in zip(received, places, strict=True)
        ]
    privacy = task.privacy
    noise = None if privacy is None else RoundNoise(privacy, derived_key(seed.to_bytes(32, "big"), ("mean",)))
    change = difference(flatten(side.folded(1, received, noise, privacy)), flatten(state))
    return [SeenChange(change, np.arange(ends[-1]))]


def _attacked(fleet: PrivacyFleet, task: Task, state: Blobs, seen: Sequence[SeenChange]) -> dict[str, float]:
    members, others = concat(list(fleet.devices.values())), concat(list(fleet.others.values()))
    known = _known(fleet.test, len(task.labels))
    every, count = concat([members, others, known]), len(members)
    loss_B = scores.losses(task, state, every)
    net = scores.network(task, state)
    names, moved_names = list(scores.last_parameters(net)), set(scores.parameters(net))
    shared_SP = np.linalg.svd(scores.gradients(task, state, known), full_matrices=False)[2][:_SHARED]
    found: dict[str, list[list[NDArray[np.float64]]]] = {"loss": [[], []], "gradient": [[], []]}
    for one in seen:
        asked = np.concatenate([one.members, count + one.members])
        with_known = np.concatenate([asked, 2 * count + np.arange(len(known))])
        after = unflatten(apply(flatten(state), one.change))
        fallen_B = loss_B[with_known] - scores.losses(task, after, select(every, with_known))
        measured = {name: tensor for name, tensor in flatten(after).items() if name not in moved_names}
        as_trained = unflatten({**flatten(state), **measured})
        gradient_BP = scores.gradients(task, as_trained, select(every, asked))
        moved_P = np.concatenate([one.change[name].reshape(-1) for name in names])
        aligned_B = -_cosines(_without(gradient_BP, shared_SP), _without(moved_P[None], shared_SP)[0])
        usual_B = _against(fallen_B, every.y_B[with_known], len(known))
        for name, score_B in (("loss", usual_B), ("gradient", aligned_B)):
            for side, some_B in enumerate(np.split(score_B, 2)):
                found[name][side].append(some_B)
    made: dict[str, float] = {}
    for name, (inside, outside) in found.items():
        figures = rates.figures(np.concatenate(inside), np.concatenate(outside))
        made |= {f"{name} {figure}": value for figure, value in figures.items()}
    return made


def _known(test: WindowSet, classes: int) -> WindowSet:
    """Windows of other people, as many of each class, evenly spread."""
    places = [np.flatnonzero(test.y_B == label) for label in range(classes)]
    return select(
        test, np.concatenate([at[:: max(1, len(at) // _KNOWN)][:_KNOWN] for at in places if len(at)])
    )


def _without(x_BP: FloatArray, shared_SP: FloatArray) -> FloatArray:
    """Vectors without their parts in some orthonormal directions."""
    return np.asarray(x_BP - (x_BP @ shared_SP.T) @ shared_SP, np.float32)


def _cosines(gradient_BP: FloatArray, moved_P: FloatArray) -> NDArray[np.float64]:
    lengths_B = np.linalg.norm(gradient_BP, axis=1) * np.linalg.norm(moved_P)
    cosine_B: NDArray[np.float64] = (gradient_BP @ moved_P).astype(np.float64) / (lengths_B + _TINY)
    return cosine_B


def _against(score_B: NDArray[np.float64], y_B: NDArray[np.int64], known: int) -> NDArray[np.float64]:
    """Scores in standard deviations from the mean of the known windows (the last ones) of the same class."""
    usual_B = np.zeros(len(score_B) - known)
    for label in np.unique(y_B[:-known]).tolist():
        same = score_B[-known:][y_B[-known:] == label]
        at = np.flatnonzero(y_B[:-known] == label)
        usual_B[at] = (score_B[at] - same.mean()) / (same.std() + _TINY) if len(same) else score_B[at]
    return usual_B
