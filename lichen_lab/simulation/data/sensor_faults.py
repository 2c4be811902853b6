"""Injects seeded sensor faults into recordings, and keeps their truth.

The setting of QQR (Wang et al., section on quantity and quality imbalance): in part of the time most
windows lack one modality; in part of the time one modality is noisy. At most one modality is hurt at any
moment, so that the other one can repair it. Each device gets a plan of its own.

``plan_faults`` draws a device's mix of outages, noise and stuck values; ``plan_kind`` one kind alone at one
severity, for measuring how well it is found. The severity is a fault's ``amount``:

=======  =================================================================================================
noise    signal-to-noise ratio in dB: the modality's own power (about its mean) over the noise's
clip     the sensor's full scale as a share of the 99th percentile of absolute values (all channels)
gaps     share of the samples that is missing, in bursts of ``BURST_S``
gain     factor that the gain has reached at the fault's end; it grows evenly in its logarithm, from 1
=======  =================================================================================================

``outage`` (silence) and ``stuck`` (one value) have none.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

Recording = dict[str, NDArray[Any]]
FaultKind = Literal["outage", "noise", "stuck", "clip", "gaps", "gain"]
BURST_S: Final = 0.4
"""Length of the bursts that ``gaps`` is made of: about what a radio link loses at a time."""
Values = NDArray[Any]


@dataclass(frozen=True)
class FaultPlan:
    """The sensor faults of one device.

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
class SensorFault:
    """One fault: kind, modality, begin and end (seconds of the recording), severity."""

    kind: FaultKind
    modality: str
    start_s: float
    end_s: float
    detail: str = ""
    amount: float = 0.0
    """Its severity; the module's text says in what."""

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
    """Disjoint blocks for each share, drawn without replacement."""
    count = max(1, int(np.ceil(length_s / block_s)))
    order = [int(i) for i in rng.permutation(count)]
    drawn: list[list[int]] = []
    for share in shares:
        take = round(share * count)
        drawn.append(sorted(order[:take]))
        order = order[take:]
    return drawn


def plan_faults(recorded: Recording, plan: FaultPlan, seed: int) -> list[SensorFault]:
    """Plan faults and their times; the recording stays unchanged.

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
    for index in noise:
        span = (index * plan.block_s, index * plan.block_s + plan.block_s)
        faults.append(
            SensorFault("noise", str(plan.noise_modality), *span, f"{plan.snr_db:g} dB", plan.snr_db)
        )
    for index in stuck:
        span = (index * plan.block_s, index * plan.block_s + plan.block_s)
        faults.append(SensorFault("stuck", str(plan.stuck_modality), *span, "one value"))
    return sorted(faults, key=lambda f: (f.start_s, f.modality))


def _outages(
    plan: FaultPlan, names: Sequence[str], blocks: Sequence[int], rng: np.random.Generator
) -> list[SensorFault]:
    weight = np.array([plan.outage_bias.get(name, 1.0) for name in names])
    chance = weight / weight.sum()
    faults = []
    for index in blocks:
        for slot in range(max(1, round(plan.block_s / plan.slot_s))):
            # Both numbers are drawn always, so that the rate does not move later draws.
            hit, pick = rng.random(), rng.choice(len(names), p=chance)
            if hit < plan.outage_rate:
                start = index * plan.block_s + slot * plan.slot_s
                faults.append(SensorFault("outage", names[int(pick)], start, start + plan.slot_s))
    return faults


def plan_kind(
    recorded: Recording,
    kind: FaultKind,
    modality: str,
    amount: float,
    seed: int,
    *,
    share: float = 0.3,
    block_s: float = 25.6,
    from_s: float = 0.0,
) -> list[SensorFault]:
    """Faults of one kind and severity on one modality, in a share of the time (at least one block).

    Args:
        recorded: where; it is not touched.
        kind: of all the faults.
        modality: with the fault.
        amount: the severity.
        seed: decides which blocks.
        share: of the time from ``from_s`` on.
        block_s: length of a fault; faults may follow each other.
        from_s: nothing happens before.

    Raises:
        ValueError: the recording lacks the modality, is too short, or the amount means nothing for that kind.
    """
    names = modalities_of(recorded)
    if modality not in names:
        raise ValueError(f"no modality {modality!r}; the recording has {', '.join(names)}")
    if not {"clip": amount > 0, "gaps": 0 <= amount < 1, "gain": amount > 0}.get(kind, True):
        raise ValueError(f"{kind}: an amount of {amount:g} means nothing")
    room_s = float(recorded[f"{modality}/t"][-1]) - from_s
    count = int(room_s / block_s)
    if count < 1:
        raise ValueError(f"{kind}: no block of {block_s:g} s fits into the {room_s:g} s from {from_s:g} s on")
    rng = np.random.default_rng(seed)
    first_s = from_s + rng.uniform(0, room_s - count * block_s)  # not on the windows' grid
    drawn = sorted(rng.permutation(count)[: max(1, round(share * count))].tolist())
    starts = [first_s + index * block_s for index in drawn]
    return [SensorFault(kind, modality, start, start + block_s, amount=amount) for start in starts]


def inject(recorded: Recording, faults: Sequence[SensorFault], seed: int) -> Recording:
    """A copy of the recording with these faults. Labels stay unchanged."""
    out = {key: value.copy() for key, value in recorded.items()}
    rng = np.random.default_rng(seed)
    for name in modalities_of(recorded):
        t_n, x_TC = out[f"{name}/t"], out[f"{name}/values"]
        full_TC = recorded[f"{name}/values"]
        keep_n = np.ones(len(t_n), bool)
        for fault in faults:
            if fault.modality != name:
                continue
            first, last = np.searchsorted(t_n, [fault.start_s, fault.end_s])
            here = slice(first, last)
            if fault.kind in ("outage", "gaps"):
                keep_n[here] &= _kept(fault, t_n[here], rng)
            elif last > first:
                x_TC[here] = _HURT[fault.kind](fault, t_n[here], x_TC[here], full_TC, rng)
        out[f"{name}/t"], out[f"{name}/values"] = t_n[keep_n], x_TC[keep_n]
    return out


def gain_at(fault: SensorFault, t_n: NDArray[np.float64]) -> NDArray[np.float64]:
    """The gain of a ``gain`` fault at these times; 1 before and after it."""
    part = (t_n - fault.start_s) / (fault.end_s - fault.start_s)
    return np.where((part >= 0) & (part < 1), fault.amount**part, 1.0)


def _kept(fault: SensorFault, t_n: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which samples arrive: in an outage none; in gaps, slots of ``BURST_S`` are silent by chance."""
    if fault.kind == "outage":
        return np.zeros(len(t_n), bool)
    slots = int(np.ceil((fault.end_s - fault.start_s) / BURST_S))
    silent = rng.random(slots) < fault.amount
    return ~silent[np.minimum(((t_n - fault.start_s) / BURST_S).astype(np.int64), slots - 1)]


def _noise(fault: SensorFault, _: Values, x_TC: Values, full_TC: Values, rng: np.random.Generator) -> Values:
    power_C = full_TC.var(axis=0)
    noise_TC = rng.standard_normal(x_TC.shape) * np.sqrt(power_C / 10 ** (fault.amount / 10))
    hurt_TC: Values = x_TC + noise_TC.astype(x_TC.dtype)
    return hurt_TC


def _stuck(_: SensorFault, __: Values, x_TC: Values, ___: Values, ____: np.random.Generator) -> Values:
    return np.broadcast_to(x_TC[0], x_TC.shape)


def _clip(fault: SensorFault, _: Values, x_TC: Values, full_TC: Values, __: np.random.Generator) -> Values:
    rail = float(np.percentile(np.abs(full_TC), 99)) * fault.amount
    return np.clip(x_TC, -rail, rail)


def _gain(fault: SensorFault, t_n: Values, x_TC: Values, _: Values, __: np.random.Generator) -> Values:
    hurt_TC: Values = x_TC * gain_at(fault, t_n)[:, None].astype(x_TC.dtype)
    return hurt_TC


Hurt = Callable[[SensorFault, Values, Values, Values, np.random.Generator], Values]
"""``(fault, t_n, x_TC, the whole recording's x_TC, rng) -> x_TC``."""
_HURT: Final[Mapping[FaultKind, Hurt]] = {"noise": _noise, "stuck": _stuck, "clip": _clip, "gain": _gain}


def share_of(faults: Sequence[SensorFault], kind: FaultKind, modality: str, length_s: float) -> float:
    """The share of the time in which this modality had this fault."""
    total = sum(
        max(0.0, min(f.end_s, length_s) - min(f.start_s, length_s))
        for f in faults
        if f.kind == kind and f.modality == modality
    )
    return total / length_s if length_s > 0 else 0.0
