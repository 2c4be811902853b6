"""Makes a run with a linear classifier on the start model's features in place of the fleet's training.

The labels of all devices are fitted together in each session, to the optimum: what is left of the differences
comes from the labels, not from the training. Cheap, so that rules are chosen with it. Imports torch.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.labels.federation import (
    CHOICE,
    LabelledPool,
    SameStart,
    answers,
    bad_share,
    choice_of,
    model_of,
    start_state,
)
from lichen_lab.benchmarks.studies.labels.fleets import LabelFleet
from lichen_lab.benchmarks.studies.labels.settings import OWN, UNMET, LabelOutcome, LabelSetting
from lichen_lab.benchmarks.studies.labels.strategies import LINEAR, STRATEGIES, Floats
from lichen_lab.benchmarks.study.run_spec import Run
from lichen_lab.simulation.data.streams import rng_of
from lichen_lab.simulation.training.workers import one_thread
from models.contract import WindowSet
from models.multimodal.inference import InferenceModel, probabilities
from models.training.evaluation import judge
from protocol.errors import Misconfigured

_PENALTY: Final = 1e-3
_STEPS: Final = 150


@dataclass(frozen=True)
class StartFeatures:
    """Features of the start model, ``z_BD`` of unit length by modality.

    Attributes:
        pools: of the devices.
        later: of the devices.
        test: of the people whom no device met.
        p_pools: the start model's probabilities of the devices' pools.
    """

    pools: tuple[Floats, ...]
    later: tuple[Floats, ...]
    test: Floats
    p_pools: tuple[NDArray[np.float32], ...]


def fitted(z_BD: Floats, y_B: NDArray[np.int64], classes: int) -> Floats:
    """Weights ``(D + 1, K)`` of a softmax regression, by accelerated gradient steps from zero."""
    x_BE, y_BK = _with_one(z_BD), np.eye(classes)[y_B]
    bound = 0.5 * float(np.linalg.eigvalsh(x_BE.T @ x_BE / len(x_BE))[-1]) + _PENALTY
    w_EK = ahead_EK = np.zeros((x_BE.shape[1], classes))
    pace = 1.0
    for _ in range(_STEPS):
        slope_EK = x_BE.T @ (_softmax(x_BE @ ahead_EK) - y_BK) / len(x_BE) + _PENALTY * ahead_EK
        before_EK, w_EK = w_EK, ahead_EK - slope_EK / bound
        faster = (1 + (1 + 4 * pace**2) ** 0.5) / 2
        ahead_EK = w_EK + (pace - 1) / faster * (w_EK - before_EK)
        pace = faster
    return w_EK


def predicted(w_EK: Floats, z_BD: Floats) -> NDArray[np.float32]:
    """Probabilities ``p_BK``."""
    return _softmax(_with_one(z_BD) @ w_EK).astype(np.float32)


def _with_one(z_BD: Floats) -> Floats:
    return np.concatenate([z_BD, np.ones((len(z_BD), 1))], axis=1)


def _softmax(scores_BK: Floats) -> Floats:
    raised_BK = np.exp(scores_BK - scores_BK.max(axis=1, keepdims=True))
    return np.asarray(raised_BK / raised_BK.sum(axis=1, keepdims=True), np.float64)


def run_of(name: str) -> Run[LabelFleet, LabelSetting, LabelOutcome]:
    """The run of a rule."""

    def run(fleet: LabelFleet, setting: LabelSetting, seed: int, tell: Say) -> LabelOutcome:
        began = time.process_time()
        with one_thread():
            outcome = _run(name, fleet, setting, seed, tell)
        return replace(outcome, seconds=time.process_time() - began)

    return run


def _run(name: str, fleet: LabelFleet, setting: LabelSetting, seed: int, tell: Say) -> LabelOutcome:
    first, start = start_state(fleet, setting, seed)
    if first is None:
        raise Misconfigured("a linear classifier needs the features of a start model: start_rounds is 0")
    seen = _features(SameStart.of(fleet, setting, seed))
    classes = len(fleet.task.labels)
    pools = [
        LabelledPool(windows, answers(windows, classes, setting.wrong, seed, place))
        for place, windows in enumerate(fleet.pools)
    ]
    w_EK: Floats | None = None
    for session in range(setting.sessions):
        for place, pool in enumerate(pools):
            z_PD = seen.pools[place]
            p_PK = seen.p_pools[place] if w_EK is None else predicted(w_EK, z_PD)
            rng = rng_of(seed, CHOICE, place, session)
            choice = choice_of(pool, (p_PK, z_PD), setting, session, rng)
            pool.places += STRATEGIES[name](choice).tolist()
        z_BD = np.concatenate([z_PD[pool.places] for z_PD, pool in zip(seen.pools, pools, strict=True)])
        w_EK = fitted(z_BD, np.concatenate([pool.answers_P[pool.places] for pool in pools]), classes)
        tell(f"session {session + 1} of {setting.sessions}")
    return _judged(w_EK if w_EK is not None else np.zeros((1, classes)), fleet, seen, pools, start)


def _judged(
    w_EK: Floats,
    fleet: LabelFleet,
    seen: StartFeatures,
    pools: Sequence[LabelledPool],
    start: dict[str, float],
) -> LabelOutcome:
    test = judge(fleet.test.y_B, predicted(w_EK, seen.test)).metrics
    own = [
        judge(one.y_B, predicted(w_EK, z_BD)).metrics
        for one, z_BD in zip(fleet.later, seen.later, strict=True)
    ]

    def by_view(metric: str) -> dict[str, float]:
        return {UNMET: 100 * test[metric], OWN: 100 * fmean(one[metric] for one in own)}

    return LabelOutcome(
        by_view("accuracy"),
        by_view("macro_f1"),
        start,
        given=fmean(len(pool.places) for pool in pools),
        bad_share=bad_share(pools[: fleet.faulty]),
        classes=fmean(len({int(pool.windows.y_B[at]) for at in pool.places}) for pool in pools),
    )


@lru_cache(maxsize=2)
def _features(same: SameStart) -> StartFeatures:
    """The start model's view of all windows; the same for all runs of a seed on a fleet."""
    fleet = same.fleet
    model = model_of(same.federation(state=start_state(fleet, same.setting, same.seed)[0]))
    return StartFeatures(
        tuple(_inner(model, one) for one in fleet.pools),
        tuple(_inner(model, one) for one in fleet.later),
        _inner(model, fleet.test),
        tuple(probabilities(model, one) for one in fleet.pools),
    )


def _inner(model: InferenceModel, windows: WindowSet) -> Floats:
    x = tuple(torch.from_numpy(windows.x[name]) for name in model.net.names)
    with torch.inference_mode():
        z = torch.cat(model.features(torch.from_numpy(windows.present_BM), x), dim=1)
    return z.numpy().astype(np.float64) / model.feature_scale


RUNS: Final = {f"{LINEAR}{name}": run_of(name) for name in STRATEGIES}
"""The run of each rule, by name."""
