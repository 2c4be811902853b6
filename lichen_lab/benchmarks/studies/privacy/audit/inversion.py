"""Whether the windows of a small update can be computed back from it: gradient inversion. Imports torch.

The attacker knows the version that the update starts from, its network, options and clip, and from the
update's header how many windows of each class there are. It seeks windows whose training would give the
update: the direction of the parameters' change (Geiping et al. 2020), and the statistics of BatchNorm, which
devices measure on exactly these windows. It starts from the mean of other people's windows of that class.

The features of a window need no search: the gradient of the head's first layer is that of its biases times
the layer's input.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.privacy.audit import scores
from lichen_lab.benchmarks.studies.privacy.audit.coordinator_side import CoordinatorSide, framed
from lichen_lab.benchmarks.studies.privacy.federation import task_of
from lichen_lab.benchmarks.studies.privacy.fleets import PrivacyFleet
from lichen_lab.benchmarks.studies.privacy.settings import PrivacyOutcome, PrivacySetting
from lichen_lab.simulation.training.workers import one_thread
from models import registry
from models.contract import Blobs, ClientContext, FloatArray, WindowSet
from models.data.window_set import select
from models.methods.fedavg import METHOD
from models.multimodal.encoders.steps import BatchNorm
from models.multimodal.network import MultimodalNetwork
from models.multimodal.prototypes import normalise
from models.privacy.key_stream import derived_key
from models.privacy.noisy_fold import RoundNoise
from models.tensors import apply, difference, flatten, unflatten
from models.training.supervised import cross_entropy
from protocol.tasks.task import Task

_TARGETS: Final = 5
"""Updates that are attacked."""
_STEPS: Final = 200
_STEPS_SMALL: Final = 5
_LR: Final = 0.05
_STATISTICS: Final = 0.1
"""Weight of BatchNorm's statistics beside the direction."""
_START: Final = 507
_TINY: Final = 1e-8
Signals = Mapping[str, NDArray[np.float64]]
"""By modality, windows in standard deviations of other people's, (B, C, T)."""


@dataclass(frozen=True)
class _Scale:
    """The unit of errors: each modality's standard deviation over other people's windows."""

    deviation: Mapping[str, float]

    @classmethod
    def of(cls, windows: WindowSet) -> "_Scale":
        return cls({name: float((x - x.mean(axis=2, keepdims=True)).std()) for name, x in windows.x.items()})

    def signals(self, x: Mapping[str, FloatArray]) -> Signals:
        return {name: x[name].astype(np.float64) / self.deviation[name] for name in self.deviation}


def attack(fleet: PrivacyFleet, setting: PrivacySetting, seed: int, tell: Say) -> PrivacyOutcome:
    """Make a run: errors of the windows that are computed back from updates of the first round.

    ``config`` has ``windows``, of which a device trains on so many, and ``codec``, beside the options of the
    method. With protection the attacker sees the clipped update, and the noise of a round's sum in it: as one
    does who knows the updates of all others.
    """
    began, options = time.process_time(), dict(setting.config)
    count, codec = options.pop("windows"), options.pop("codec")
    task = task_of(fleet, replace(setting, config=options))
    task = task.model_copy(update={"uplink": task.uplink.model_copy(update={"codec": codec})})
    state = registry.method(task.method).client().initial(task, seed)
    scale, found, told = _Scale.of(fleet.test), [], []
    small = setting.rounds == 2  # noqa: PLR2004 - a small run
    steps = _STEPS_SMALL if small else _STEPS
    with one_thread():
        for number, (name, windows) in enumerate(_targets(fleet, count, 2 if small else _TARGETS, seed)):
            change = _change(task, state, name, windows, seed + number)
            guess = _inverted(task, state, change, windows.y_B, fleet.test, seed=seed + number, steps=steps)
            found += _errors(scale, windows, guess, fleet.test)
            told.append(_feature_errors(task, state, change, windows, fleet.test))
            tell(f"update {number + 1}")
    error_N, nearest_N = np.array(found).T
    features, of_others = np.median(np.array(told), axis=0).tolist()
    return PrivacyOutcome(
        devices=len(fleet.devices),
        parameters=sum(tensor.size for tensor in flatten(state).values()),
        attack={
            "error": float(np.median(error_N)),
            "nearest": float(np.median(nearest_N)),
            "better": 100 * float((error_N < nearest_N).mean()),
            "better_than_constant": 100 * float((error_N < 1).mean()),
            "features": features,
            "features_of_others": of_others,
        },
        seconds=time.process_time() - began,
    )


def _targets(fleet: PrivacyFleet, count: int, wanted: int, seed: int) -> list[tuple[str, WindowSet]]:
    """Devices with at least so many windows, and as many of them; evenly spread over the fleet."""
    able = [(name, windows) for name, windows in fleet.devices.items() if len(windows) >= count]
    rng = np.random.default_rng((seed, _START))
    chosen = np.sort(rng.choice(len(able), min(wanted, len(able)), replace=False)).tolist()
    return [
        (able[place][0], select(able[place][1], rng.permutation(len(able[place][1]))[:count]))
        for place in chosen
    ]


def _change(task: Task, state: Blobs, name: str, windows: WindowSet, seed: int) -> dict[str, FloatArray]:
    """What the attacker sees of an update."""
    side, client = CoordinatorSide.of(task, state), registry.method(task.method).client()
    result = client.train(ClientContext(task, name, 1, seed), windows, state, {})
    received = side.received(name, framed(task, name, 1, windows, result), task.privacy)
    if task.privacy is None:
        return dict(received.read(side.limits).tensors)
    noise = RoundNoise(task.privacy, derived_key(seed.to_bytes(32, "big"), ("inversion",)))
    after = side.folded(1, [received], noise, task.privacy)
    divisor = np.float32(task.privacy.divisor(1))
    return {name: x * divisor for name, x in difference(flatten(after), flatten(state)).items()}


def _feature_errors(
    task: Task, state: Blobs, change: Mapping[str, FloatArray], windows: WindowSet, public: WindowSet
) -> tuple[float, float]:
    """Errors of a window's features, relative to their length: of the one that is nearest to what is told.

    Returns:
        Of what the head's first layer tells, exact after one step on one window; and of the mean over other
        people's windows of the class.
    """
    weight_HF, bias_H = (change[f"head/fc1.{part}"].astype(np.float64) for part in ("weight", "bias"))
    seen_F = bias_H @ weight_HF / max(float(bias_H @ bias_H), _TINY**2)
    true_BF = _features(task, state, windows.x)
    gap_B = np.linalg.norm(true_BF - seen_F, axis=1) / np.linalg.norm(true_BF, axis=1)
    at = int(gap_B.argmin())
    same_N = np.flatnonzero(public.y_B == windows.y_B[at])
    mean_F = _features(task, state, select(public, same_N).x).mean(axis=0)
    usual = np.linalg.norm(true_BF[at] - mean_F) / np.linalg.norm(true_BF[at])
    return float(gap_B[at]), float(usual)


def _features(task: Task, state: Blobs, x: Mapping[str, FloatArray]) -> NDArray[np.float64]:
    """The input of the head as in training: BatchNorm uses the statistics of these windows, (B, F)."""
    net, config = scores.network(task, state), METHOD.configure(task)
    net.train()
    with torch.no_grad():
        z = [net.encode(name, torch.from_numpy(x[name])) for name in net.names]
        z = [normalise(z_BD, config.feature_scale) for z_BD in z] if config.normalise else z
        features_BF: NDArray[np.float64] = torch.cat(z, dim=1).numpy().astype(np.float64)
    return features_BF


def _inverted(
    task: Task,
    state: Blobs,
    change: Mapping[str, FloatArray],
    y_B: NDArray[np.int64],
    public: WindowSet,
    *,
    seed: int,
    steps: int,
) -> dict[str, FloatArray]:
    """Windows whose training would give the change, by modality."""
    net = scores.network(task, state)
    moved = scores.network(task, unflatten(apply(flatten(state), change)))
    net.train()
    generator = torch.Generator().manual_seed(seed)
    x = {
        name: torch.from_numpy(_means(public.x[name], public.y_B, y_B)).requires_grad_() for name in net.names
    }
    with torch.no_grad():
        for name, x_BCT in x.items():
            x_BCT.add_(torch.randn(x_BCT.shape, generator=generator), alpha=0.1 * float(public.x[name].std()))
    scales = {name: float((one - one.mean(axis=2, keepdims=True)).std()) for name, one in public.x.items()}
    groups = [{"params": [x[name]], "lr": _LR * scales[name]} for name in net.names]
    adam = torch.optim.Adam(groups)
    best, kept = np.inf, {name: one.detach().clone() for name, one in x.items()}
    for step in range(steps):
        for group, name in zip(adam.param_groups, net.names, strict=True):
            group["lr"] = _LR * scales[name] * (1 - step / steps)
        loss = _mismatch(task, (net, moved), x, torch.from_numpy(y_B), change)
        value = float(loss.detach())
        if value < best:
            best, kept = value, {name: one.detach().clone() for name, one in x.items()}
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
    return {name: one.numpy() for name, one in kept.items()}


def _means(x_NCT: FloatArray, y_N: NDArray[np.int64], y_B: NDArray[np.int64]) -> FloatArray:
    """The mean window of each wanted class, (B, C, T)."""
    return np.stack([x_NCT[y_N == label].mean(axis=0) for label in y_B.tolist()]).astype(np.float32)


def _mismatch(
    task: Task,
    nets: tuple[MultimodalNetwork, MultimodalNetwork],
    x: Mapping[str, Tensor],
    y_B: Tensor,
    change: Mapping[str, FloatArray],
) -> Tensor:
    """How far the training of these windows is from the change."""
    net, moved = nets
    config = METHOD.configure(task)
    z = {name: net.encode(name, x[name]) for name in net.names}
    if config.normalise:
        z = {name: normalise(z_BD, config.feature_scale) for name, z_BD in z.items()}
    wanted = scores.parameters(net)
    made = torch.autograd.grad(cross_entropy(net.classify(z), y_B), list(wanted.values()), create_graph=True)
    made_P = torch.cat([one.reshape(-1) for one in made])
    change_P = torch.cat(
        [torch.from_numpy(np.ascontiguousarray(change[name])).reshape(-1) for name in wanted]
    )
    loss = 1 + torch.nn.functional.cosine_similarity(made_P, change_P, dim=0, eps=_TINY)
    for name in net.names:
        loss = loss + _STATISTICS * _statistics_gap(moved, name, x[name])
    return loss


def _statistics_gap(net: MultimodalNetwork, name: str, x_BCT: Tensor) -> Tensor:
    """The mean squared difference of BatchNorm's statistics from those in the network, relative to them."""
    z, gap, norms = net.in_range(name, x_BCT), torch.zeros(()), 0
    for step in net.stepped(name).steps():
        if not isinstance(step, BatchNorm):
            z = step(z)
            continue
        mean_C, var_C = z.mean(dim=(0, 2)), z.var(dim=(0, 2))
        known_mean_C, known_var_C = cast("Tensor", step.running_mean), cast("Tensor", step.running_var)
        usual_C = known_var_C.clamp(min=1e-3)
        gap = gap + ((mean_C - known_mean_C) ** 2 / usual_C).mean() + ((var_C / usual_C - 1) ** 2).mean()
        norms += 1
        z = step(z)
    return gap / max(1, norms)


def _errors(
    scale: _Scale, windows: WindowSet, guess: Mapping[str, FloatArray], public: WindowSet
) -> list[tuple[float, float]]:
    """For each window: the error of its guess, and of the nearest of other people's windows.

    Relative to the best constants (a mean for each channel). Guesses of one class are compared in the order
    that suits them best.
    """
    true, made, known = scale.signals(windows.x), scale.signals(guess), scale.signals(public.x)
    flat = {name: _flat(one) for name, one in (("true", true), ("made", made), ("known", known))}
    around_B = _around(true)
    gap_BB = np.linalg.norm(flat["true"][:, None] - flat["made"][None], axis=2)
    order = min(
        permutations(range(len(windows))), key=lambda some: sum(gap_BB[b, at] for b, at in enumerate(some))
    )
    nearest_B = np.array([np.linalg.norm(flat["known"] - row, axis=1).min() for row in flat["true"]])
    return [
        (float(gap_BB[b, at] / around_B[b]), float(nearest_B[b] / around_B[b])) for b, at in enumerate(order)
    ]


def _flat(x: Signals) -> NDArray[np.float64]:
    return np.concatenate([one.reshape(len(one), -1) for one in x.values()], axis=1)


def _around(x: Signals) -> NDArray[np.float64]:
    """The norm of each window around its constants, (B,)."""
    around_B: NDArray[np.float64] = np.linalg.norm(
        _flat({name: one - one.mean(axis=2, keepdims=True) for name, one in x.items()}), axis=1
    )
    return around_B
