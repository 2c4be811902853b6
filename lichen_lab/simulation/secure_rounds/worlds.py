"""Worlds of the two tables of secure rounds alone: attempts whose messages are lost, repeated and reordered.

Both sides are the daemons' own machines (``driver``), without daemons: a world takes some hundredths of a
second. A device, or the coordinator, is killed before or after it has stored what it decided; stages end at
any time; the last device may lie. What must hold of all messages is in ``invariants``.
"""

import copy
import hashlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from coordinator.secure_aggregation import record
from coordinator.secure_aggregation.events import SecureEvent, SecurePhase, SecureResumed
from edge_agent.secure_aggregation.events import MaskingResumed
from lichen_lab.simulation.deterministic.outcome import WorldOutcome
from lichen_lab.simulation.deterministic.protected.hostile import Forger
from lichen_lab.simulation.deterministic.protected.uniformity import UNIFORM, histogram
from lichen_lab.simulation.deterministic.scenario.scenario import draw
from lichen_lab.simulation.secure_rounds.driver import SimulatedCoordinator, SimulatedDevice, Transcript
from lichen_lab.simulation.secure_rounds.fleet import attempt_of, fleet_of
from lichen_lab.simulation.secure_rounds.invariants import PlayedAttempt, violations
from protocol.errors import Refused
from protocol.secure_aggregation.messages import MaskedUpdate, SecureMessage, encode
from protocol.secure_aggregation.ring import Words, packed, to_numbers, to_words
from protocol.tasks.folding import SecureAggregation

_SIZE: Final = 96
_LARGEST: Final = 40
"""Magnitude of an element of a vector."""
_STEPS: Final = 400
"""Of an attempt; then its stages end one after the other."""
_MANY: Final = 0.03
"""Share of worlds with so many devices that not all are neighbours."""
_OVER: Final = (SecurePhase.DONE, SecurePhase.FAILED)


@dataclass
class StoredCoordinator(SimulatedCoordinator):
    """A coordinator whose memory ends with its process: it begins again with what it stored last."""

    stored: bytes = field(default=b"", repr=False)

    def take(self, event: SecureEvent) -> list[tuple[str, SecureMessage]]:
        """See the base class; the end of a stage is stored."""
        before = self.state.phase
        messages = super().take(event)
        if self.state.phase is not before:
            self.stored = record.to_bytes(self.state, self.book)
        return messages

    def killed(self) -> list[tuple[str, SecureMessage]]:
        """End, and begin again from the disk."""
        if self.stored:
            self.state, self.book = record.from_bytes(self.stored, self.rules, self.attempt, self.authority)
        return self.take(SecureResumed())


@dataclass(frozen=True)
class Chances:
    """Of a world, by step."""

    lose: float
    repeat: float
    kill: float
    end: float

    @classmethod
    def of(cls, rng: random.Random) -> "Chances":
        """Half of the worlds are calm in each respect."""
        ranges = ((0.05, 0.2), (0.1, 0.3), (0.02, 0.1), (0.005, 0.03))
        return cls(*(rng.choice((0.0, 0.0, low, high)) for low, high in ranges))


class _Attempt:
    """One attempt that is played step by step."""

    def __init__(
        self,
        rng: random.Random,
        coordinator: StoredCoordinator,
        devices: dict[str, SimulatedDevice],
        *,
        chances: Chances,
        forger: tuple[str, Forger] | None,
        outcome: WorldOutcome,
    ) -> None:
        self.transcript = Transcript()
        self._rng, self._chances, self._forger, self._outcome = rng, chances, forger, outcome
        self.coordinator, self.devices = coordinator, devices
        self._air: list[tuple[str, str, bytes]] = []
        """Sender, receiver (empty: the coordinator) and message."""

    def play(self) -> PlayedAttempt:
        """To its end."""
        waiting = list(self.devices)
        self._rng.shuffle(waiting)
        for step in range(_STEPS):
            if self.coordinator.state.phase in _OVER:
                break
            if waiting and self._rng.random() < 0.5:  # noqa: PLR2004 - of the steps
                self._device(waiting.pop(), lambda one: one.join(self.coordinator.attempt))
            self._outcome.steps = self._outcome.steps + 1
            self._step(late=step > _STEPS // 2)
        while self.coordinator.state.phase not in _OVER:
            self._send("", self.coordinator.end_stage())
        snapshot = {name: copy.copy(device) for name, device in self.devices.items()}
        return PlayedAttempt(self.coordinator, snapshot, self.transcript)

    def _step(self, *, late: bool) -> None:
        rng, chances = self._rng, self._chances
        if rng.random() < chances.kill:
            self._kill()
        elif rng.random() < chances.end or (late and not self._air):
            self._count("end of a stage")
            self._send("", self.coordinator.end_stage())
        elif self._air:
            self._deliver(rng.randrange(len(self._air)))
        else:  # whoever has no answer says it again
            self._resume()

    def _resume(self) -> None:
        """A device that has its update for this attempt says again what it said last."""
        here = [name for name, one in self.devices.items() if one.state.attempt == self.coordinator.attempt]
        if here:
            self._device(self._rng.choice(here), lambda one: one.take(MaskingResumed()))

    def _deliver(self, at: int) -> None:
        sender, receiver, payload = self._air[at]
        if self._rng.random() < self._chances.repeat:
            self._count("message: duplicate")
        else:
            del self._air[at]
        if self._rng.random() < self._chances.lose:
            self._count("message: lose")
        elif receiver:
            self._device(receiver, lambda one: one.receive(payload))
        else:
            self._outcome.messages += 1
            try:
                self._send("", self.coordinator.receive(sender, payload))
            except Refused as refused:
                self.transcript.refusals.append(refused.detail)

    def _device(self, name: str, does: Callable[[SimulatedDevice], list[SecureMessage]]) -> None:
        """Let a device do something; it may be killed before that is on its disk, or before it is sent."""
        device = self.devices[name]
        before, masked = device.state, device.masked
        try:
            messages = does(device)
        except Refused as refused:
            self.transcript.refusals.append(refused.detail)
            return
        killed = self._rng.random() < self._chances.kill
        if killed:
            self._count("kill of a device")
            if self._rng.random() < 0.5:  # noqa: PLR2004 - of the kills
                device.state, device.masked = before, masked
            messages = []
        self._send(name, [("", message) for message in messages])

    def _kill(self) -> None:
        if self._rng.random() < 0.5:  # noqa: PLR2004 - of the kills
            self._count("kill of the coordinator")
            self._send("", self.coordinator.killed())
        else:
            self._count("kill of a device")
            self._resume()

    def _send(self, sender: str, messages: Iterable[tuple[str, SecureMessage]]) -> None:
        for receiver, message in messages:
            self.transcript.sent.append((sender, receiver, message))
            payloads = [encode(message)]
            lies = self._forger is not None and sender == self._forger[0]
            if lies and not isinstance(message, MaskedUpdate):
                payloads = self._forged(payloads[0])
            self._air += [(sender, receiver, payload) for payload in payloads]

    def _forged(self, payload: bytes) -> list[bytes]:
        """What a hostile device sends instead."""
        payloads = [payload] if self._forger is None else self._forger[1].payloads(payload)
        self._outcome.faults["forged or repeated by a device"] += payloads != [payload]
        return payloads

    def _count(self, what: str) -> None:
        self._outcome.faults[what] += 1


def run_tables(seed: int, *, trace: Callable[[str], None] | None = None) -> WorldOutcome:
    """Play the attempts of a seed; see ``deterministic.world.run_seed``.

    Args:
        seed: decides all.
        trace: is given what was sent.
    """
    rng = random.Random(f"secure tables {seed}")  # noqa: S311 - a seed, not a secret
    outcome = WorldOutcome(seed, replace(draw(seed), faults=()), kind="secure_tables")
    options = _options(rng)
    count = 24 if rng.random() < _MANY else rng.randint(options.min_devices, 7)
    names = [f"d{n:02}" for n in range(count)]
    hostile = names[-1] if rng.random() < 0.3 and count > options.min_devices else ""  # noqa: PLR2004 - of the worlds
    forger = (hostile, Forger(rng)) if hostile else None
    chances, played, devices = Chances.of(rng), list[PlayedAttempt](), dict[str, SimulatedDevice]()
    version, number = 1, 1
    for _ in range(rng.choice((1, 2, 3))):
        draw_N = np.random.default_rng(rng.getrandbits(32))
        vectors = {
            name: to_words(draw_N.integers(-_LARGEST, _LARGEST + 1, _SIZE), options.ring_bits)
            for name in names
        }
        attempt = attempt_of(version, number, f"{version:064x}")
        made, fresh = fleet_of(vectors, options, attempt=attempt)
        coordinator = StoredCoordinator(made.rules, attempt, made.size, made.expected)
        for name, device in fresh.items():
            device.entropy = rng.randbytes
            device.state = devices[name].state if name in devices else device.state
        devices = fresh
        played.append(
            _Attempt(rng, coordinator, devices, chances=chances, forger=forger, outcome=outcome).play()
        )
        found = violations(played) or list(_sum_violations(played[-1], vectors, hostile, outcome))
        if found:
            outcome.violation = found[0]
            break
        _count_bytes(outcome, played[-1], vectors)
        version, number = (version, number + 1) if not coordinator.state.survivors else (version + 1, 1)
    _tell(outcome, played, trace)
    return outcome


def _options(rng: random.Random) -> SecureAggregation:
    return SecureAggregation(
        identities="none",
        ring_bits=rng.choice((16, 24, 32, 48, 64)),
        fraction_bits=0,
        bound=float(_LARGEST),
        min_devices=rng.choice((3, 3, 4, 5)),
        max_lost=rng.choice((0.1, 0.3, 0.4)),
    )


def _sum_violations(
    one: PlayedAttempt, vectors: dict[str, Words], hostile: str, outcome: WorldOutcome
) -> Iterable[str]:
    """The opened sum is that of exactly the survivors, of which there are enough; or it is none at all."""
    coordinator = one.coordinator
    state, options, words = coordinator.state, coordinator.rules.options, coordinator.attempt.words
    if coordinator.total_N is None:
        outcome.faults["sum stayed closed"] += 1
        return
    if len(state.survivors) < options.min_devices:
        yield f"{words}: a sum over {len(state.survivors)} devices is opened"
    found_N = to_numbers(coordinator.total_N, options.ring_bits)
    wanted_N = sum(to_numbers(vectors[name], options.ring_bits) for name in state.survivors)
    if np.array_equal(found_N, wanted_N):
        outcome.faults["sum opened"] += 1
        outcome.counted += len(state.survivors)
    elif hostile and int(np.abs(found_N).max()) > _LARGEST * len(state.survivors):
        outcome.faults["sum spoilt by a forged share"] += 1  # beyond what devices can give: no version
    else:
        yield f"{words}: the opened sum is not that of {list(state.survivors)}"


def _count_bytes(outcome: WorldOutcome, one: PlayedAttempt, vectors: dict[str, Words]) -> None:
    bits = one.coordinator.rules.options.ring_bits
    for name, masked in one.coordinator.masked.items():
        outcome.journal.masked_V += histogram(masked)
        outcome.journal.control_V += histogram(packed(vectors[name], bits))
    found, control = outcome.journal.deviations
    if found > UNIFORM:
        outcome.violation = f"masked updates in the journal are {found:.1f} deviations from uniform bytes"
    elif outcome.journal.count and control <= UNIFORM:
        outcome.violation = f"plain vectors are {control:.1f} deviations from uniform bytes: a blind test"


def _tell(
    outcome: WorldOutcome, played: Iterable[PlayedAttempt], trace: Callable[[str], None] | None
) -> None:
    mark = hashlib.sha256()
    for one in played:
        words, state = one.coordinator.attempt.words, one.coordinator.state
        lines = [
            f"{words}: {sender or 'coordinator'}: {type(message).__name__} {receiver}"
            for sender, receiver, message in one.transcript.sent
        ]
        for line in (*lines, f"{words}: {state.phase.value} {state.why}"):
            mark.update(line.encode())
            if trace is not None:
                trace(line)
    outcome.mark = mark.hexdigest()
