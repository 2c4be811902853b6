"""A seed's scenario: the fleet, its settings, and a plan of faults. Pure."""

import random
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from edge_agent.config.privacy import PrivacySettings
from protocol.tasks.folding import Privacy, SecureAggregation
from protocol.tasks.links import CodecName, Uplink
from protocol.tasks.rounds import Rounds

COORDINATOR: Final = "coordinator"
BROKER: Final = "broker"


class FaultKind(StrEnum):
    """Kinds of planned faults."""

    KILL = "kill"  # SIGKILL: written data stays
    POWER = "power cut"  # as KILL, and un-synced data is lost or torn
    MOMENT = "end at a moment"  # at the n-th disk operation, thread or message from now on
    STOP = "orderly stop"
    DROP = "dropped connection"
    HALF_OPEN = "half-open connection"  # pings are answered, messages swallowed
    PARTITION = "partition"
    ONE_WAY = "one-way partition"
    BROKER_CRASH = "broker crash"
    BROKER_LOSS = "broker crash, sessions lost"
    CLOCK = "clock jump"
    DISK_FULL = "full disk"
    READ_ONLY = "read-only disk"
    ROT = "bit rot"
    FREEZE = "SIGSTOP"  # and SIGCONT
    STORE_PAUSE = "store: paused"
    STORE_FAILOVER = "store: failover"
    STORE_CUT = "store: dropped connection"
    COMMIT_LOST = "store: connection lost in a commit"
    BUCKET_DOWN = "bucket: no answer"


@dataclass(frozen=True, slots=True)
class ScheduledFault:
    """One planned fault.

    Attributes:
        at: virtual seconds since the start.
        kind: of fault.
        node: which machine.
        span_s: how long it lasts; for a process: until it is started again.
        amount: seconds of a clock jump; moments until a power cut (until a SIGKILL where negative); which
            file rots; which way is cut.
    """

    at: float
    kind: FaultKind
    node: str
    span_s: float = 0.0
    amount: float = 0.0

    def __str__(self) -> str:
        return f"{self.at:7.2f} s  {self.kind.value}: {self.node}, {self.span_s:.1f} s, {self.amount:g}"


@dataclass(frozen=True, slots=True)
class Weather:
    """Message faults, as shares of messages."""

    delay_s: float
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    lose: float = 0.0
    cut: float = 0.0
    slow: float = 0.0


@dataclass(frozen=True, slots=True)
class StageFault:
    """A fault that waits for a moment of a protected round.

    Attributes:
        stage: kind of a message of a secure round, ``masked`` (a device stores its update) or ``version``.
        after: so many of them have been.
        fault: what happens then; its node, if empty, is the one that just did that.
    """

    stage: str
    after: int
    fault: ScheduledFault


@dataclass(frozen=True, slots=True)
class Protection:
    """What a task promises of updates, and who breaks it; with both tables devices add the noise."""

    method: str
    secure: SecureAggregation | None = None
    privacy: Privacy | None = None
    floors: tuple[tuple[str, PrivacySettings], ...] = ()
    """By device, what its owner asks of a task."""
    hostile: tuple[str, ...] = ()
    """Devices that forge their messages, or do not clip."""
    stage_faults: tuple[StageFault, ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that a seed decides beforehand; details are drawn from the same seed later."""

    seed: int
    devices: tuple[str, ...]
    lacking: tuple[str, ...]
    """Devices without the second sensor."""
    rounds: Rounds
    uplink: Uplink
    head: int
    """Elements of the model's largest tensor."""
    chunk_bytes: int
    resend_s: float
    offer_every_s: float
    spread_s: float
    away_grace_s: float
    train_s: float
    window_every_s: float
    evaluate: bool
    export: bool
    work_fails: float
    sensor_fails: float
    weather: Weather
    faults: tuple[ScheduledFault, ...]
    faults_end_s: float
    goes_on: bool
    """Faults also come after the last round; else the simulation ends with the task."""
    routed: bool = False
    """Each kind of device gets a bundle of its own."""
    guided: bool = False
    """Guided rounds: the coordinator looks at every update before the fold, and trains after it."""
    rollouts: bool = False
    """Devices run models, and each version reaches them in stages."""
    receive_maximum: int | None = None
    """Of the broker, told at CONNACK."""
    max_packet_bytes: int | None = None
    """Of the broker, told at CONNACK."""
    leads: tuple[str, ...] = ()
    ingests: tuple[str, ...] = ()
    """Processes of a coordinator on a cluster; none: it is one process."""
    store_slow: float = 0.0
    """Share of statements of ingest processes that take up to some seconds."""
    protection: Protection | None = None
    """Of a task with secure rounds, or with privacy."""

    @property
    def rots(self) -> bool:
        """Whether bits rot: accepted updates may then be reported as lost."""
        return any(fault.kind is FaultKind.ROT for fault in self.faults)

    def jumps_at(self, node: str) -> bool:
        """Whether this node's clock is set: its deadlines then differ from those of a true clock."""
        staged = () if self.protection is None else self.protection.stage_faults
        faults = (*self.faults, *(one.fault for one in staged))
        return any(fault.kind is FaultKind.CLOCK and fault.node in {node, ""} for fault in faults)


_CODECS: Final[tuple[CodecName, ...]] = ("int8", "int8", "float32", "int4", "float16")
_WEIGHTS: Final = {
    FaultKind.KILL: 3,
    FaultKind.POWER: 2,
    FaultKind.MOMENT: 8,
    FaultKind.STOP: 2,
    FaultKind.DROP: 4,
    FaultKind.PARTITION: 2,
    FaultKind.ONE_WAY: 1,
    FaultKind.BROKER_CRASH: 1,
    FaultKind.BROKER_LOSS: 1,
    FaultKind.CLOCK: 2,
    FaultKind.DISK_FULL: 2,
    FaultKind.READ_ONLY: 1,
}
_ROTTEN: Final = 0.15
"""Share of seeds in which bits rot."""
_STAGED: Final = 0.4
"""Share of seeds with rollouts, of those without routes and without bit rot."""
_POLICIES: Final = ("coverage", "coverage", "bandit")
_OF_BROKER: Final = (FaultKind.BROKER_CRASH, FaultKind.BROKER_LOSS)


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    rng = random.Random(f"scenario {seed}")  # noqa: S311 - a seed, not a secret
    # Later additions are drawn separately, so that the rest of a seed's scenario stays the same.
    later = random.Random(f"selection and routes {seed}")  # noqa: S311 - a seed, not a secret
    links = random.Random(f"links {seed}")  # noqa: S311 - a seed, not a secret
    guided = random.Random(f"guided rounds {seed}").random() < 0.3  # noqa: S311, PLR2004 - a seed; of the worlds
    devices = tuple(f"dev-{n + 1}" for n in range(rng.choice((2, 3, 3, 3))))
    end = rng.uniform(25.0, 60.0)
    small = rng.random() < 0.4  # noqa: PLR2004 - of the worlds
    max_packet_bytes = links.choice((None, None, 4096))
    scenario = Scenario(
        seed=seed,
        devices=devices,
        lacking=tuple(d for d in devices if rng.random() < 0.2),  # noqa: PLR2004 - of the devices
        rounds=_rounds(rng, len(devices)).model_copy(update={"selection": later.choice(_POLICIES)}),
        uplink=Uplink(codec=rng.choice(_CODECS), error_carry=rng.random() < 0.8),  # noqa: PLR2004 - of the worlds
        head=rng.choice((16, 200)) if small else rng.randint(700, 1800),
        chunk_bytes=65536 if small or max_packet_bytes else 1024,
        resend_s=rng.uniform(2.0, 8.0),
        offer_every_s=rng.uniform(2.0, 6.0),
        spread_s=rng.choice((0.0, 1.0, 3.0)),
        away_grace_s=random.Random(f"away {seed}").choice((1.0, 4.0, 20.0)),  # noqa: S311 - a seed
        train_s=rng.choice((1.0, 8.0, 20.0)),
        window_every_s=rng.choice((8.0, 15.0, 30.0)),
        evaluate=rng.random() < 0.5,  # noqa: PLR2004 - of the worlds
        export=rng.random() < 0.5,  # noqa: PLR2004 - of the worlds
        work_fails=rng.choice((0.0, 0.0, 0.1, 0.3)),
        sensor_fails=rng.choice((0.0, 0.0, 0.2)),
        weather=_weather(rng),
        faults=tuple(sorted((*_faults(rng, devices, end), *_half_open(links, devices, end)), key=_at)),
        faults_end_s=end,
        goes_on=rng.random() < 0.1,  # noqa: PLR2004 - of the worlds
        routed=later.random() < 0.4,  # noqa: PLR2004 - of the worlds
        guided=guided,
        receive_maximum=links.choice((None, 1, 2, 20)),
        max_packet_bytes=max_packet_bytes,
    )
    staged = random.Random(f"rollouts {seed}").random() < _STAGED  # noqa: S311 - a seed, not a secret
    return replace(scenario, rollouts=staged and not scenario.routed and not scenario.rots)


def _rounds(rng: random.Random, devices: int) -> Rounds:
    return Rounds(
        count=rng.choice((1, 2, 2, 2, 3)),
        deadline_s=rng.uniform(8.0, 40.0),
        devices_per_round=rng.choice((None, None, max(1, devices - 1))),
        quorum=rng.choice((0.5, 0.67, 1.0, 1.0)),
        min_devices=rng.randint(1, max(1, devices - 1)),
        min_windows=2,
    )


def _weather(rng: random.Random) -> Weather:
    """Half of the seeds have no message faults: crashes alone find other errors."""
    if rng.random() < 0.5:  # noqa: PLR2004 - of the worlds
        return Weather(rng.choice((0.01, 0.1)))
    return Weather(
        delay_s=rng.choice((0.01, 0.2, 0.6)),
        duplicate=rng.choice((0.0, 0.05, 0.2)),
        reorder=rng.choice((0.0, 0.05, 0.2)),
        corrupt=rng.choice((0.0, 0.0, 0.01, 0.05)),
        lose=rng.choice((0.0, 0.0, 0.02, 0.1)),
        cut=rng.choice((0.0, 0.0, 0.01, 0.05)),
        slow=rng.choice((0.0, 0.0, 0.05)),
    )


def _faults(rng: random.Random, devices: tuple[str, ...], end: float) -> tuple[ScheduledFault, ...]:
    weights = dict(_WEIGHTS)
    if rng.random() < _ROTTEN:
        weights[FaultKind.ROT] = 6
    kinds = rng.choices(list(weights), list(weights.values()), k=rng.randint(6, 26))
    planned = [_fault(rng, kind, devices, end) for kind in kinds]
    closed = [f for f in planned if f.kind is FaultKind.ROT and rng.random() < 0.6]  # noqa: PLR2004 - databases rot while closed
    planned += [ScheduledFault(max(0.1, rot.at - 0.5), FaultKind.KILL, rot.node, 2.0) for rot in closed]
    return tuple(sorted(planned, key=_at))


def _half_open(rng: random.Random, devices: tuple[str, ...], end: float) -> list[ScheduledFault]:
    """In a third of the seeds one connection drops everything from some moment on."""
    node = rng.choice((COORDINATOR, *devices))
    return [ScheduledFault(end * rng.random(), FaultKind.HALF_OPEN, node)] if rng.random() < 0.3 else []  # noqa: PLR2004 - of the worlds


def _at(fault: ScheduledFault) -> float:
    return fault.at


def _fault(rng: random.Random, kind: FaultKind, devices: tuple[str, ...], end: float) -> ScheduledFault:
    at = end * rng.random() ** 1.3  # rather early: a finished task can hardly be damaged
    if kind in _OF_BROKER:
        return ScheduledFault(at, kind, BROKER, rng.uniform(0.2, 8.0))
    # Faults of the coordinator have the largest effect.
    node = COORDINATOR if rng.random() < 0.45 else rng.choice(devices)  # noqa: PLR2004 - of the faults
    span, amount = rng.choice((0.2, 1.0, rng.uniform(0.1, 15.0))), 0.0
    match kind:
        case FaultKind.MOMENT:
            moments = rng.choice((1, 2, 3, rng.randint(1, 12), rng.randint(1, 60)))
            amount = float(moments * rng.choice((1, 1, 1, -1)))
        case FaultKind.CLOCK:
            span, amount = 0.0, rng.choice((-86400.0, -3600.0, -30.0, 1.0, 45.0, 3600.0, 1e7))
        case FaultKind.ONE_WAY | FaultKind.PARTITION:
            span, amount = rng.choice((0.5, 5.0, 20.0)), float(rng.getrandbits(1))
        case FaultKind.DISK_FULL | FaultKind.READ_ONLY:
            span = rng.uniform(0.2, 12.0)
        case FaultKind.ROT:
            span, amount = 0.0, float(rng.getrandbits(30))
        case _:
            pass
    return ScheduledFault(at, kind, node, span, amount)
