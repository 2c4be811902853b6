"""Counts updates of one group in order, as if each had come alone. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.round_machine import table
from coordinator.round_machine.events import Command, RoundState, Rules, UpdateAccepted
from coordinator.round_machine.queries import check_acceptable
from protocol.errors import Reason, Refused
from protocol.frames.headers import UpdateHeader

Key = tuple[int, str]
"""Round and device."""


@dataclass(frozen=True, slots=True)
class ReceivedUpdate:
    """An update whose frame is on disk: ``file`` of the round's folder (or its own file), from byte ``at``.

    ``blobs``: names of the blobs that it changes.
    """

    header: UpdateHeader
    digest: str
    size: int
    file: str = ""
    at: int = 0
    blobs: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        """The key under which it is counted, once."""
        return self.header.round, self.header.device


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Result for a group.

    Attributes:
        state: after the last one.
        events: of those that count, each with its update, in order.
        commands: of all events, in order.
        answers: for each update None (counted, now or before) or why not.
    """

    state: RoundState
    events: tuple[tuple[UpdateAccepted, ReceivedUpdate], ...]
    commands: tuple[Command, ...]
    answers: tuple[Refused | None, ...]


def accept_batch(
    rules: Rules, state: RoundState, group: Sequence[ReceivedUpdate], known: Mapping[Key, str], now: float
) -> BatchResult:
    """Count the updates that may be counted, up to the one that closes the round; the rest is too late.

    Args:
        rules: of the round machine.
        state: before.
        group: in order of arrival.
        known: digests of updates that are counted already, by round and device.
        now: on the driver's time line.
    """
    counted = dict(known)
    events: list[tuple[UpdateAccepted, ReceivedUpdate]] = []
    commands: list[Command] = []
    answers: list[Refused | None] = []
    for one in group:
        try:
            if check_update(state, one, counted):
                answers.append(None)
                continue
        except Refused as refused:
            answers.append(refused)
            continue
        event = UpdateAccepted(device=one.header.device, round=one.header.round)
        after, asked = table.apply(rules, state, event, now)
        if after == state:  # no receipt for an update that no round counts
            words = f"{one.header.device} is counted in round {one.header.round} already"
            answers.append(Refused(Reason.DUPLICATE, words))
            continue
        state, counted[one.key] = after, one.digest
        events.append((event, one))
        commands += asked
        answers.append(None)
    return BatchResult(state, tuple(events), tuple(commands), tuple(answers))


def check_update(state: RoundState, one: ReceivedUpdate, known: Mapping[Key, str]) -> bool:
    """Whether exactly this update is counted already.

    Raises:
        Refused: another update of the device is counted, the round is not open to it, or its base differs.
    """
    before = known.get(one.key)
    if before == one.digest:
        return True
    if before is not None:
        raise Refused(
            Reason.DUPLICATE,
            f"{one.header.device} already delivered another update in round {one.header.round}",
        )
    check_acceptable(state, one.header.device, one.header.round, one.header.base)
    return False
