"""Scenarios of protected tasks: secure rounds, privacy, or both. Pure; faults are the plain world's."""

import random
from dataclasses import replace
from functools import lru_cache
from typing import Final

from edge_agent.config.privacy import PrivacySettings
from lichen_lab.simulation.deterministic.scenario.scenario import (
    COORDINATOR,
    FaultKind,
    Protection,
    Scenario,
    ScheduledFault,
    StageFault,
    draw,
)
from models.privacy.accountant import epsilon_after
from models.privacy.shared_noise import SharedNoise
from protocol.tasks.folding import AdaptiveClip, Privacy, SecureAggregation

SECURE_STAGES: Final = ("keys", "roster", "shares", "delivery", "masked", "survivors", "revealed")
VERSION: Final = "version"
_NUMBERS: Final = ((32, 16, 16.0), (32, 16, 16.0), (24, 10, 16.0), (48, 16, 16.0), (16, 6, 16.0))
"""Bits of the ring, of the fraction, and the bound: with room for the prototypes of the toy training."""
_STRIKES: Final = {
    FaultKind.MOMENT: 6,
    FaultKind.KILL: 3,
    FaultKind.POWER: 3,
    FaultKind.DROP: 2,
    FaultKind.CLOCK: 2,
    FaultKind.DISK_FULL: 2,
    FaultKind.READ_ONLY: 1,
    FaultKind.PARTITION: 1,
}
_JUMPS: Final = (-3600.0, -20.0, 20.0, 3600.0)
_CLIPS: Final = (0.05, 0.3, 5.0)
"""Far below, about and above the norm of the toy training's updates."""


def draw_secure(seed: int) -> Scenario:
    """The scenario of a seed: four to six devices with secure rounds."""
    rng = random.Random(f"secure rounds {seed}")  # noqa: S311 - a seed, not a secret
    plain = draw(seed)
    devices = _named(rng.choice((4, 4, 5, 6)))
    bits, fraction, bound = rng.choice(_NUMBERS)
    options = SecureAggregation(
        identities="none",
        ring_bits=bits,
        fraction_bits=fraction,
        bound=bound,
        weights=rng.choice(("equal", "equal", "samples")) if bits > 24 else "equal",  # noqa: PLR2004 - there is room
        min_devices=rng.choice((3, 3, len(devices) - 1)),
        max_lost=rng.choice((0.1, 0.3, 0.4)),
    )
    rounds = plain.rounds.model_copy(
        update={
            "min_devices": options.min_devices,
            "deadline_s": rng.uniform(25.0, 70.0),
            "quorum": rng.choice((0.5, 0.67, 1.0)),
            "devices_per_round": rng.choice((None, None, len(devices) - 1)),
            "selection": "coverage",
        }
    )
    hostile = devices[-1:] if rng.random() < 0.3 and len(devices) > options.min_devices else ()  # noqa: PLR2004 - of the worlds
    protection = Protection(
        rng.choice(("fedavg", "qqr")),
        secure=options,
        hostile=hostile,
        stage_faults=_stage_faults(rng, SECURE_STAGES, devices),
    )
    made = _protected(rng, plain, devices, protection, rounds=rounds, train_s=rng.choice((1.0, 4.0)))
    chance = random.Random(f"guided secure rounds {seed}")  # noqa: S311 - a seed
    return replace(made, guided=chance.random() < 0.3)  # noqa: PLR2004 - of the worlds


def draw_shared(seed: int) -> Scenario:
    """The scenario of a seed of secure rounds, of which each device adds its share of noise."""
    rng, plain = random.Random(f"noise of devices {seed}"), draw_secure(seed)  # noqa: S311 - a seed
    its = plain.protection
    assert its is not None  # noqa: S101 - secure rounds are one
    assert its.secure is not None  # noqa: S101
    bits, fraction = rng.choice(((32, 16), (48, 16), (24, 8)))
    numbers = {"ring_bits": bits, "fraction_bits": fraction, "weights": "equal"}
    options = SecureAggregation.model_validate({**its.secure.model_dump(), **numbers})
    privacy = Privacy(clip=rng.choice(_CLIPS), noise_multiplier=rng.choice((0.5, 1.0, 4.0)))
    if rng.random() < 0.5:  # noqa: PLR2004 - of the worlds
        noise = SharedNoise.of(privacy, options)
        most = noise.epsilon(rng.randint(1, plain.rounds.count), privacy.delta)
        privacy = privacy.model_copy(update={"max_epsilon": most * 1.01})
    protection = replace(its, method="fedavg", secure=options, privacy=privacy)
    return replace(plain, protection=protection)


def draw_private(seed: int) -> Scenario:
    """The scenario of a seed: three to five devices, and a task with a table ``[privacy]``."""
    rng = random.Random(f"rounds with privacy {seed}")  # noqa: S311 - a seed, not a secret
    plain = draw(seed)
    devices = _named(rng.choice((3, 4, 5)))
    privacy = _privacy(rng, plain.rounds.count, len(devices))
    free = privacy.rate is not None
    rounds = plain.rounds.model_copy(
        update={
            "min_devices": 1 if free else min(plain.rounds.min_devices, 2),
            "quorum": 1.0 if free else plain.rounds.quorum,
            "devices_per_round": None if free else rng.choice((None, None, len(devices) - 1)),
            "selection": "coverage",
        }
    )
    protection = Protection(
        "fedavg",
        privacy=privacy,
        floors=tuple((name, _floors(rng, privacy)) for name in devices[2:-1] if rng.random() < 0.7),  # noqa: PLR2004 - two have none
        hostile=devices[-1:] if rng.random() < 0.4 else (),  # noqa: PLR2004 - of the worlds
        stage_faults=_stage_faults(rng, ("masked", VERSION, VERSION, VERSION), devices),
    )
    return _protected(rng, plain, devices, protection, rounds=rounds)


def _named(count: int) -> tuple[str, ...]:
    return tuple(f"dev-{n + 1}" for n in range(count))


def _protected(
    rng: random.Random, plain: Scenario, devices: tuple[str, ...], protection: Protection, **changes: object
) -> Scenario:
    """A plain scenario with other devices. No bits rot: after a lost journal devices refuse the next sum."""
    faults = [
        replace(one, node=rng.choice(devices)) if one.node.startswith("dev-") else one
        for one in plain.faults
        if one.kind is not FaultKind.ROT
    ]
    return replace(
        plain,
        devices=devices,
        lacking=tuple(name for name in devices if rng.random() < 0.2),  # noqa: PLR2004 - of the devices
        faults=tuple(faults),
        evaluate=False,
        export=False,
        routed=False,
        guided=False,
        rollouts=False,
        protection=protection,
        **changes,  # type: ignore[arg-type] # fields of a scenario
    )


def _stage_faults(
    rng: random.Random, stages: tuple[str, ...], devices: tuple[str, ...]
) -> tuple[StageFault, ...]:
    """Up to four faults that strike at a stage, half of them the coordinator."""
    found = []
    for _ in range(rng.randint(0, 4)):
        kind = rng.choices(list(_STRIKES), list(_STRIKES.values()))[0]
        amount = 0.0
        if kind is FaultKind.MOMENT:
            amount = float(rng.choice((1, 1, 2, 3, rng.randint(1, 12))) * rng.choice((1, 1, -1)))
        elif kind is FaultKind.CLOCK:
            amount = rng.choice(_JUMPS)
        node = rng.choice((COORDINATOR, COORDINATOR, "", rng.choice(devices)))
        fault = ScheduledFault(0.0, kind, node, rng.choice((0.2, 2.0, 8.0)), amount)
        found.append(StageFault(rng.choice(stages), rng.choice((1, 1, 2, 3, rng.randint(1, 12))), fault))
    return tuple(found)


def _privacy(rng: random.Random, rounds: int, devices: int) -> Privacy:
    noise = rng.choice((0.5, 1.0, 2.0))
    made: dict[str, object] = {"clip": rng.choice(_CLIPS), "noise_multiplier": noise}
    if rng.random() < 0.3:  # noqa: PLR2004 - of the worlds
        made |= {"sampling": "poisson", "rate": 0.6, "devices": devices, "noise_multiplier": 1.0}
    if rng.random() < 0.4:  # noqa: PLR2004 - of the worlds
        made["adaptive_clip"] = AdaptiveClip(quantile=0.5, lr=1.0, count_noise=2.0)
        made["clip"] = rng.choice(_CLIPS[1:])  # it may shrink, and noise has a smallest size
    privacy = Privacy.model_validate(made)
    if rng.random() < 0.5:  # noqa: PLR2004 - of the worlds
        most = _epsilon(privacy, rng.randint(1, rounds))
        return privacy.model_copy(update={"max_epsilon": most * 1.01})
    return privacy


@lru_cache(64)
def _epsilon(privacy: Privacy, releases: int) -> float:
    return epsilon_after(privacy, releases)


def _floors(rng: random.Random, privacy: Privacy) -> PrivacySettings:
    """One of the floors, which the task meets or just fails to meet."""
    near = rng.choice((0.9, 1.1))
    match rng.choice(("noise", "epsilon", "clip")):
        case "noise":
            return PrivacySettings(min_noise_multiplier=privacy.noise_multiplier / near)
        case "epsilon":
            return PrivacySettings(max_epsilon=(privacy.max_epsilon or 1.0) * near)
        case _:
            return PrivacySettings(max_clip=privacy.clip * near)
