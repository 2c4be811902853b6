"""Counts the updates of one group in one step, as if each had come alone. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.round_machine import table
from coordinator.round_machine.closing import up_to_close
from coordinator.round_machine.commands import Command
from coordinator.round_machine.events import RoundState, Rules, UpdatesAccepted
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
        event: of those that count; None: none of them does.
        counted: their updates, in order.
        commands: of the event.
        answers: for each update None (counted, now or before) or why not.
    """

    state: RoundState
    event: UpdatesAccepted | None
    counted: tuple[ReceivedUpdate, ...]
    commands: tuple[Command, ...]
    answers: tuple[Refused | None, ...]


def accept_batch(
    rules: Rules, state: RoundState, group: Sequence[ReceivedUpdate], known: Mapping[Key, str], now: float
) -> BatchResult:
    """Count the updates that may be counted, up to the one that closes the round; the rest is too late.

    The whole group is one event, so it costs the machine one step.

    Args:
        rules: of the round machine.
        state: before.
        group: in order of arrival.
        known: digests of updates that are counted already, by round and device.
        now: on the driver's time line.
    """
    counted: dict[Key, str] = dict(known)
    fresh: dict[str, int] = {}
    answers: list[Refused | None] = []
    for place, one in enumerate(group):
        answers.append(_answer(state, one, counted))
        if answers[-1] is None and one.key not in counted:
            counted[one.key], fresh[one.header.device] = one.digest, place
    if not fresh:
        return BatchResult(state, None, (), (), tuple(answers))
    taken = up_to_close(rules, state, tuple(fresh))
    event = UpdatesAccepted(round=state.round, devices=tuple(taken))
    after, commands = table.apply(rules, state, event, now)
    updates = tuple(group[fresh[device]] for device in taken)
    if after.phase is not state.phase:  # it is closed to what came after the last one
        digests, late = {**known, **{one.key: one.digest for one in updates}}, fresh[taken[-1]] + 1
        answers[late:] = [_answer(after, one, digests) for one in group[late:]]
    return BatchResult(after, event, updates, commands, tuple(answers))


def _answer(state: RoundState, one: ReceivedUpdate, known: Mapping[Key, str]) -> Refused | None:
    """None: it is counted, or may be; else why not."""
    try:
        if not check_update(state, one, known) and one.header.device in state.delivered:
            words = f"{one.header.device} is counted in round {one.header.round} already"
            return Refused(Reason.DUPLICATE, words)  # no receipt for an update that no round counts
    except Refused as refused:
        return refused
    return None


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
