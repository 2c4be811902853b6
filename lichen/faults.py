"""Sensor faults put into recordings, seeded, with the truth of what was done kept.

The setting of QQR (Wang et al., section on quantity and quality imbalance): in part of the time most
windows lack one modality; in part of the time one modality is noisy. At most one modality is hurt at any
moment, so that the other one can repair it. Each device gets a plan of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Recording = dict[str, NDArray[Any]]
FaultKind = Literal["outage", "noise", "stuck"]


@dataclass(frozen=True)
class FaultPlan:
    """What goes wrong on one device.

    Attributes:
        outage_time: share of the time in which outages happen.
        outage_rate: share of the slots of that time in which one modality is silent.
        outage_bias: modality -> relative chance of being the silent one; absent: 1.
        noise_time: share of the time in which ``noise_modality`` carries white Gaussian noise.
        noise_modality: None is no noise.
        snr_db: ratio of the modality's own power (about its mean) to the noise's.
        stuck_time: share of the time in which ``stuck_modality`` repeats one value.
        stuck_modality: None is none.
        slot_s: length of an outage; a window's length makes whole windows fall out.
        block_s: length of the stretches that the shares of time are made of.
    """

    outage_time: float = 0.5
    outage_rate: float = 0.9
    outage_bias: Mapping[str, float] = field(default_factory=dict)
    noise_time: float = 0.0
    noise_modality: str | None = None
    snr_db: float = 10.0
    stuck_time: float = 0.0
    stuck_modality: str | None = None
    slot_s: float = 2.56
    block_s: float = 25.6


@dataclass(frozen=True)
class Fault:
    """One fault: what, where, from when to when (seconds of the recording)."""

    kind: FaultKind
    modality: str
    start_s: float
    end_s: float
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For the report's JSON."""
        return asdict(self)


def modalities_of(recorded: Recording) -> list[str]:
    """The names of its streams, without the label."""
    return sorted(
        k.removesuffix("/values") for k in recorded if k.endswith("/values") and k != "label/values"
    )


def _blocks(
    length_s: float, block_s: float, shares: Sequence[float], rng: np.random.Generator
) -> list[list[int]]:
    """Disjoint blocks for each share, drawn without putting back."""
    count = max(1, int(np.ceil(length_s / block_s)))
    order = [int(i) for i in rng.permutation(count)]
    drawn: list[list[int]] = []
    for share in shares:
        take = round(share * count)
        drawn.append(sorted(order[:take]))
        order = order[take:]
    return drawn


def plan_faults(recorded: Recording, plan: FaultPlan, seed: int) -> list[Fault]:
    """Decide what fails and when, without touching the recording.

    Raises:
        ValueError: the plan names a modality that the recording lacks, or its shares of time exceed 1.
    """
    names = modalities_of(recorded)
    named = {plan.noise_modality, plan.stuck_modality, *plan.outage_bias} - {None}
    stray = sorted(str(name) for name in named - set(names))
    if stray:
        raise ValueError(f"the fault plan names {', '.join(stray)}; the recording has {', '.join(names)}")
    shares = (
        plan.outage_time,
        plan.noise_time if plan.noise_modality else 0.0,
        plan.stuck_time if plan.stuck_modality else 0.0,
    )
    if sum(shares) > 1 + 1e-9:
        raise ValueError(f"outage, noise and stuck time add up to {sum(shares):.2f} of the recording")
    rng = np.random.default_rng(seed)
    length_s = max(float(recorded[f"{name}/t"][-1]) for name in names)
    outage, noise, stuck = _blocks(length_s, plan.block_s, shares, rng)
    faults = _outages(plan, names, outage, rng)
    spans = [("noise", plan.noise_modality, i) for i in noise] + [
        ("stuck", plan.stuck_modality, i) for i in stuck
    ]
    for kind, modality, index in spans:
        start = index * plan.block_s
        detail = f"{plan.snr_db:g} dB" if kind == "noise" else "one value"
        faults.append(
            Fault("noise" if kind == "noise" else "stuck", str(modality), start, start + plan.block_s, detail)
        )
    return sorted(faults, key=lambda f: (f.start_s, f.modality))


def _outages(
    plan: FaultPlan, names: Sequence[str], blocks: Sequence[int], rng: np.random.Generator
) -> list[Fault]:
    weight = np.array([plan.outage_bias.get(name, 1.0) for name in names])
    chance = weight / weight.sum()
    faults = []
    for index in blocks:
        for slot in range(max(1, round(plan.block_s / plan.slot_s))):
            # Both numbers are drawn always, so that the rate does not move later draws.
            hit, pick = rng.random(), rng.choice(len(names), p=chance)
            if hit < plan.outage_rate:
                start = index * plan.block_s + slot * plan.slot_s
                faults.append(Fault("outage", names[int(pick)], start, start + plan.slot_s))
    return faults


def inject(recorded: Recording, faults: Sequence[Fault], seed: int) -> Recording:
    """A copy of the recording in which these faults happened. Labels are untouched."""
    out = {key: value.copy() for key, value in recorded.items()}
    rng = np.random.default_rng(seed)
    for name in modalities_of(recorded):
        t_n, x_TC = out[f"{name}/t"], out[f"{name}/values"]
        power_C = recorded[f"{name}/values"].var(axis=0)
        keep_n = np.ones(len(t_n), bool)
        for fault in faults:
            if fault.modality != name:
                continue
            first, last = np.searchsorted(t_n, [fault.start_s, fault.end_s])
            if fault.kind == "outage":
                keep_n[first:last] = False
            elif fault.kind == "noise":
                ratio = 10 ** (float(fault.detail.split()[0]) / 10)
                noise_TC = rng.standard_normal((last - first, x_TC.shape[1])) * np.sqrt(power_C / ratio)
                x_TC[first:last] += noise_TC.astype(x_TC.dtype)
            elif last > first:
                x_TC[first:last] = x_TC[first]
        out[f"{name}/t"], out[f"{name}/values"] = t_n[keep_n], x_TC[keep_n]
    return out


def share_of(faults: Sequence[Fault], kind: FaultKind, modality: str, length_s: float) -> float:
    """The share of the time in which this modality had this fault."""
    total = sum(
        max(0.0, min(f.end_s, length_s) - min(f.start_s, length_s))
        for f in faults
        if f.kind == kind and f.modality == modality
    )
    return total / length_s if length_s > 0 else 0.0
