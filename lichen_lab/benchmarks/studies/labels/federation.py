"""Makes a run: people label, the fleet trains with the product's code, the last version is evaluated.

Imports torch. Runs of one seed share people, windows, start model, order of training and rounds; they differ
in which windows have a label, and in how many.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import fmean
from typing import Final, Self

import numpy as np
import torch
from numpy.typing import NDArray

from edge_agent.labels import proposals
from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.labels.fleets import LabelFleet
from lichen_lab.benchmarks.studies.labels.settings import OWN, UNMET, LabelOutcome, LabelSetting
from lichen_lab.benchmarks.studies.labels.strategies import STRATEGIES, Floats, LabelChoice, Places
from lichen_lab.benchmarks.study.federation import Federation
from lichen_lab.benchmarks.study.run_spec import Run
from lichen_lab.simulation.data.streams import Fixed, rng_of
from lichen_lab.simulation.training.device import VirtualDevice
from lichen_lab.simulation.training.workers import one_thread
from models.contract import Blobs, WindowSet
from models.data.window_set import select
from models.methods.qqr.client import QqrClient
from models.multimodal.inference import InferenceModel, probabilities
from models.training.evaluation import judge

_POOL: Final = 256
"""Candidates: the newest, as on a device."""
_LEAST_QUALITY: Final = 0.5
_WRONG: Final = 411
CHOICE: Final = 412
"""Purpose of a session's random numbers."""


@dataclass
class LabelledPool:
    """A device's windows and the labels that its owner gave so far.

    Attributes:
        windows: with their true label.
        answers_P: what the owner says of each.
        places: of the windows with a label, in the order of labelling.
    """

    windows: WindowSet
    answers_P: NDArray[np.int64]
    places: list[int] = field(default_factory=list)

    def at(self, round_: int) -> WindowSet:
        """The windows with a label, with the label that was given."""
        del round_
        at = np.array(sorted(self.places), np.int64)
        return replace(select(self.windows, at), y_B=self.answers_P[at])

    def candidates(self, *, any_quality: bool) -> Places:
        """The newest windows without a label, of good quality."""
        good_P = np.ones(len(self.windows), np.bool_)
        if not any_quality:
            good_P = proposals.is_good(self.windows.quality_BM, self.windows.present_BM, _LEAST_QUALITY)
        good_P[self.places] = False
        return np.flatnonzero(good_P)[-_POOL:]


def answers(windows: WindowSet, classes: int, wrong: float, seed: int, place: int) -> NDArray[np.int64]:
    """What a person says of each window: the true class, or another one with probability ``wrong``.

    The same for every rule: a person who is wrong on a window is so whoever asks.
    """
    rng = rng_of(seed, _WRONG, place)
    chance_P, other_P = rng.random(len(windows)), rng.integers(1, classes, len(windows))
    return np.where(chance_P < wrong, (windows.y_B + other_P) % classes, windows.y_B)


def run_of(name: str) -> Run[LabelFleet, LabelSetting, LabelOutcome]:
    """The run of a rule."""

    def run(fleet: LabelFleet, setting: LabelSetting, seed: int, tell: Say) -> LabelOutcome:
        began = time.process_time()
        with one_thread():
            outcome = _run(name, fleet, setting, seed, tell)
        return replace(outcome, seconds=time.process_time() - began)

    return run


def _run(name: str, fleet: LabelFleet, setting: LabelSetting, seed: int, tell: Say) -> LabelOutcome:
    task = fleet.task.model_copy(update={"config": dict(setting.config), "seed": seed})
    pools = [
        LabelledPool(windows, answers(windows, len(task.labels), setting.wrong, seed, place))
        for place, windows in enumerate(fleet.pools)
    ]
    first, start = start_state(fleet, setting, seed)
    devices = [VirtualDevice(f"d{place}", pool, place) for place, pool in enumerate(pools)]
    federation = Federation(task, devices, state=first)
    sessions = setting.sessions
    for session in range(sessions):
        model = None if first is None and not session else model_of(federation)
        for place, pool in enumerate(pools):
            view = None if model is None else _view(model, pool.windows)
            choice = choice_of(pool, view, setting, session, rng_of(seed, CHOICE, place, session))
            pool.places += STRATEGIES[name](choice).tolist()
        for round_ in range(setting.rounds * session // sessions, setting.rounds * (session + 1) // sessions):
            federation.round(round_ + 1)
        tell(f"session {session + 1} of {sessions}")
    accuracy, macro_f1 = _scores(model_of(federation), fleet)
    return LabelOutcome(
        accuracy=accuracy,
        macro_f1=macro_f1,
        start=start,
        given=fmean(len(pool.places) for pool in pools),
        bad_share=bad_share(pools[: fleet.faulty]),
        classes=fmean(len({int(pool.windows.y_B[at]) for at in pool.places}) for pool in pools),
        refused=federation.refused,
    )


def choice_of(
    pool: LabelledPool,
    view: tuple[NDArray[np.float32], Floats] | None,
    setting: LabelSetting,
    session: int,
    rng: np.random.Generator,
) -> LabelChoice:
    """What a rule sees of a device in a session, and how many labels it asks for.

    Args:
        pool: of the device.
        view: the present model's probabilities and inner features of the whole pool; None: no model.
        setting: of the run.
        session: from 0.
        rng: of random numbers.
    """
    candidates_B = pool.candidates(any_quality=setting.any_quality)
    compared = np.array([*candidates_B, *pool.places], np.int64)
    some = select(pool.windows, compared)
    signal_NF = proposals.signal_features(some.x, some.present_BM)
    signal_PF = np.zeros((len(pool.windows), signal_NF.shape[1]))
    signal_PF[compared] = signal_NF
    p_PK, inner_PD = view or (None, None)
    until, before = ((setting.labels * one) // setting.sessions for one in (session + 1, session))
    places_L = np.array(pool.places, np.int64)
    return LabelChoice(candidates_B, places_L, p_PK, signal_PF, inner_PD, until - before, rng)


def bad_share(pools: Sequence[LabelledPool]) -> float:
    """Share of the labels on windows of bad quality, in %, the mean over these devices; 0 without one."""
    shares = [
        float((pool.windows.quality_BM[pool.places] < _LEAST_QUALITY).any(axis=1).mean()) for pool in pools
    ]
    return 100 * fmean(shares) if shares else 0.0


def start_state(fleet: LabelFleet, setting: LabelSetting, seed: int) -> tuple[Blobs | None, dict[str, float]]:
    """The start model, trained on the labelled windows of its people, and its accuracy by view.

    None without one.
    """
    if not setting.start_rounds:
        return None, {}
    return _started(SameStart.of(fleet, setting, seed))


@dataclass(frozen=True)
class SameStart:
    """The key of a cache: equal where all that a start model and its features depend on is equal.

    Attributes:
        fleet: whose people start.
        setting: with the training of the start model.
        seed: of the run.
        content: digest of the fleet's windows.
        training: the setting's.
    """

    fleet: LabelFleet = field(compare=False)
    setting: LabelSetting = field(compare=False)
    seed: int
    content: bytes
    training: str

    @classmethod
    def of(cls, fleet: LabelFleet, setting: LabelSetting, seed: int) -> Self:
        """The key of a run."""
        mark = hashlib.sha256(fleet.task.name.encode())
        for windows in (fleet.start, fleet.test, *fleet.pools, *fleet.later):
            mark.update(windows.y_B.tobytes())
            for x_BCT in windows.x.values():
                mark.update(x_BCT.tobytes())
        training = json.dumps([setting.start_rounds, dict(setting.start_config)], sort_keys=True)
        return cls(fleet, setting, seed, mark.digest(), training)

    def federation(self, devices: Sequence[VirtualDevice] = (), state: Blobs | None = None) -> Federation:
        """The start model's fleet."""
        config = dict(self.setting.start_config)
        task = self.fleet.task.model_copy(update={"config": config, "seed": self.seed})
        return Federation(task, devices, state=state)


@lru_cache(maxsize=2)
def _started(same: SameStart) -> tuple[Blobs, dict[str, float]]:
    """The start model and its accuracy by view; the same for all runs of a seed on a fleet."""
    alone = same.federation([VirtualDevice("start", Fixed(same.fleet.start))])
    for round_ in range(1, same.setting.start_rounds + 1):
        alone.round(round_)
    return alone.state, _scores(model_of(alone), same.fleet)[0]


def model_of(federation: Federation) -> InferenceModel:
    """The newest version, as devices run it."""
    client = federation.site.client
    if not isinstance(client, QqrClient):
        raise TypeError(f"the study trains with qqr, not with {federation.task.method}")
    return client.inference_model(federation.task, federation.state)


def _view(model: InferenceModel, windows: WindowSet) -> tuple[NDArray[np.float32], Floats]:
    """Probabilities, and the last features before the classes."""
    present_PM = torch.from_numpy(windows.present_BM)
    x = tuple(torch.from_numpy(windows.x[name]) for name in model.net.names)
    with torch.inference_mode():
        z = model.features(present_PM, x)
        inner_PD = torch.relu(model.net.two_layers.fc1(torch.cat(z, dim=1))).numpy().astype(np.float64)
    return probabilities(model, windows), inner_PD


def _scores(model: InferenceModel, fleet: LabelFleet) -> tuple[dict[str, float], dict[str, float]]:
    """Accuracy and macro-F1 by view, in %."""

    def of(sets: Sequence[WindowSet], metric: str) -> float:
        return 100 * fmean(judged[id(one)][metric] for one in sets)

    judged = {
        id(one): judge(one.y_B, probabilities(model, one)).metrics for one in (fleet.test, *fleet.later)
    }
    views = {UNMET: (fleet.test,), OWN: fleet.later}
    accuracy, macro_f1 = (
        {view: of(sets, metric) for view, sets in views.items()} for metric in ("accuracy", "macro_f1")
    )
    return accuracy, macro_f1


RUNS: Final = {name: run_of(name) for name in STRATEGIES}
"""The run of each rule, by name."""
