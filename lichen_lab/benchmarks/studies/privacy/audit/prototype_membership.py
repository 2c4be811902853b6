"""Whose windows are in a device's prototypes: a likelihood ratio, with noise and without. Imports torch.

QQR's devices send the mean feature of each class and modality, and how many windows it is of. The attacker
has the encoders (they are in every version), sees one device's prototypes, and asks about a window: is its
feature one of the mean's? Features of a class are taken as normal, with a spread between people and one
within a person, both measured on other people; that gives the exact likelihood ratio.
"""

import math
import time
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.privacy.audit import rates, scores
from lichen_lab.benchmarks.studies.privacy.federation import task_of
from lichen_lab.benchmarks.studies.privacy.fleets import PrivacyFleet
from lichen_lab.benchmarks.studies.privacy.settings import PrivacyOutcome, PrivacySetting
from lichen_lab.simulation.training.workers import one_thread
from models import registry
from models.contract import Blobs, ClientContext, FloatArray, LocalResult, WindowSet
from models.data.window_set import select
from models.methods.qqr import METHOD
from models.methods.qqr.messages import QqrMessage
from models.methods.qqr.privacy import sensitivity
from models.methods.qqr.prototyper import QqrPrototyper, bounded
from models.methods.qqr.prototypes import values_name
from models.privacy.account import epsilon_of, rho_of
from models.training.supervised import whole
from protocol.frames.tensors import Codec, decode, encode
from protocol.tasks.task import Task

_QQR: Final = "qqr"
_LEAST: Final = 1e-3
"""Variance of every feature, at least: features of 8 in all, of 32 values."""
_SHRUNK: Final = 0.1
"""Share of the mean variance in an estimated covariance, against few windows."""
_NOISE: Final = 506
_BITS: Final = {Codec.INT2: 2, Codec.INT4: 4, Codec.INT8: 8}


def attack(fleet: PrivacyFleet, setting: PrivacySetting, seed: int, tell: Say) -> PrivacyOutcome:
    """Make a run: encoders trained on other people, prototypes of all devices, and the attack on each.

    ``config`` has options of QQR, such as ``dp_noise``.
    """
    began, options = time.process_time(), dict(setting.config)
    training = {key: options.pop(key) for key in ("batch", "lr") if key in options}
    plain = task_of(fleet, setting).model_copy(update={"method": _QQR, "config": training, "privacy": None})
    task = plain.model_copy(update={"config": {**training, "upload": "prototypes", **options}})
    own_B = np.arange(len(fleet.test)) % 4
    with one_thread():
        state = registry.method(_QQR).client().initial(plain, seed)
        state = scores.trained(plain, select(fleet.test, own_B == 0), state, seed, setting.rounds)
        tell("encoders are trained")
        found = _attacked(fleet, task, state, seed, own_B == 2)  # noqa: PLR2004 - overlaps none of the first
    config = METHOD.configure(task)
    rho = len(task.modality_names) * rho_of(config.dp_noise) if config.dp_noise else None
    return PrivacyOutcome(
        epsilon=None if rho is None else epsilon_of(rho, config.dp_delta),
        devices=len(fleet.devices),
        attack=found,
        seconds=time.process_time() - began,
    )


class FeatureModel:
    """A modality's features as the attacker takes them: a mean by class, spread between and within people."""

    def __init__(self, z_BD: FloatArray, y_B: NDArray[np.int64], person_B: NDArray[np.int64]) -> None:
        groups = {(label, person) for label, person in zip(y_B.tolist(), person_B.tolist(), strict=True)}
        self.mean = {label: z_BD[y_B == label].mean(axis=0) for label in set(y_B.tolist())}
        self._length = {label: float(np.linalg.norm(mean_D)) for label, mean_D in self.mean.items()}
        inside, between = [], []
        for label, person in sorted(groups):
            own_ND = z_BD[(y_B == label) & (person_B == person)].astype(np.float64)
            inside.append(own_ND - own_ND.mean(axis=0))
            between.append(own_ND.mean(axis=0) - self.mean[label])
        within_ND = np.concatenate(inside)
        self.within_DD = _spread(within_ND, len(within_ND) - len(groups))
        self.between_DD = _spread(np.stack(between), len(between))

    def ratio(
        self, x_BD: NDArray[np.float64], v_D: NDArray[np.float64], label: int, count: int, variance: float
    ) -> NDArray[np.float64]:
        """The log likelihood ratio of each feature being one of the ``count`` of a mean, (B,).

        Args:
            x_BD: features.
            v_D: the mean as it was sent; its length was changed, and is put back to the usual one.
            label: of its class.
            count: of its windows.
            variance: of what was added to each of its values.
        """
        size = len(v_D)
        mean_DD = self.between_DD + self.within_DD / count + variance * np.eye(size)
        usual = math.sqrt(self._length[label] ** 2 + float(np.trace(mean_DD)))
        v_D = v_D * (usual / max(float(np.linalg.norm(v_D)), _LEAST))
        one_DD = self.between_DD + self.within_DD
        both_BE = np.concatenate([x_BD, np.broadcast_to(v_D, x_BD.shape)], axis=1)
        both_BE -= np.tile(self.mean[label], 2)
        inside = _log_density(both_BE, one_DD, mean_DD, self.between_DD + self.within_DD / count)
        return inside - _log_density(both_BE, one_DD, mean_DD, self.between_DD)


def _log_density(
    both_BE: NDArray[np.float64],
    one_DD: NDArray[np.float64],
    mean_DD: NDArray[np.float64],
    shared_DD: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Of features and a mean, but for a constant; ``shared_DD`` is their covariance."""
    whole_EE = np.block([[one_DD, shared_DD], [shared_DD, mean_DD]])
    whole_EE += 1e-9 * np.trace(whole_EE) / len(whole_EE) * np.eye(len(whole_EE))
    _, size = np.linalg.slogdet(whole_EE)
    density_B: NDArray[np.float64] = (
        -(both_BE * np.linalg.solve(whole_EE, both_BE.T).T).sum(axis=1) / 2 - size / 2
    )
    return density_B


def _spread(z_ND: NDArray[np.float64], freedom: int) -> NDArray[np.float64]:
    found_DD = z_ND.T @ z_ND / max(1, freedom)
    even = np.trace(found_DD) / len(found_DD)
    made_DD: NDArray[np.float64] = (1 - _SHRUNK) * found_DD + (_SHRUNK * even + _LEAST) * np.eye(
        len(found_DD)
    )
    return made_DD


def _attacked(
    fleet: PrivacyFleet, task: Task, state: Blobs, seed: int, known_B: NDArray[np.bool_]
) -> dict[str, float]:
    net, config = scores.network(task, state), METHOD.configure(task)
    rng = np.random.default_rng((seed, _NOISE))
    prototyper = QqrPrototyper(rng.standard_normal)
    known = select(fleet.test, known_B)

    def features(windows: WindowSet) -> dict[str, FloatArray]:
        batch = whole(windows, net.names)
        return {name: net.features(name, batch.x[name]).numpy() for name in net.names}

    normal = {
        name: FeatureModel(bounded(z_BD, config), known.y_B, fleet.person_B[known_B])
        for name, z_BD in features(known).items()
    }
    inside: list[NDArray[np.float64]] = []
    outside: list[NDArray[np.float64]] = []
    for name, windows in fleet.devices.items():
        made = prototyper.summarise(ClientContext(task, name, 1, seed), windows, features(windows), {})
        sent = _sent(made)
        for side, asked in ((inside, windows), (outside, fleet.others[name])):
            z = {
                modality: bounded(z_BD, config).astype(np.float64)
                for modality, z_BD in features(asked).items()
            }
            total_B = np.zeros(len(asked))
            for (modality, label), (v_D, count, step) in sent.items():
                at = np.flatnonzero(asked.y_B == label)
                moved = float(sensitivity(np.array([count]), config.feature_scale)[0])
                variance = (config.dp_noise * moved) ** 2 + step**2 / 12
                if len(at) and label in normal[modality].mean:
                    total_B[at] += normal[modality].ratio(z[modality][at], v_D, label, count, variance)
            side.append(total_B)
    figures = rates.figures(np.concatenate(inside), np.concatenate(outside))
    counted = [count for _, count, _ in sent.values()]
    return {**{f"ratio {name}": value for name, value in figures.items()}, "windows": float(np.mean(counted))}


def _sent(result: LocalResult) -> dict[tuple[str, int], tuple[NDArray[np.float64], int, float]]:
    """A device's prototypes as they are decoded, their numbers of windows, and the step of their values.

    By modality and class.
    """
    message, made = QqrMessage.read(result.extra), {}
    for modality, rows in message.prototypes.items():
        name = values_name(modality)
        bits = _BITS.get(result.codecs[name])
        values_RD = decode(encode(result.tensors[name], result.codecs[name])).astype(np.float64)
        for row, (label, count) in enumerate(zip(rows.classes, rows.counts, strict=True)):
            step = 0.0 if bits is None else float(np.ptp(values_RD)) / (2**bits - 1)
            made[modality, label] = values_RD[row], count, step
    return made
