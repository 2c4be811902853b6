"""What each stage of a secure round leads to. Pure.

An attempt fails closed: where a device's neighbours that are left are fewer than the threshold, its secrets
cannot be recovered, nothing is opened, and ``why`` says so.
"""

from collections.abc import Set as AbstractSet
from typing import Any

from coordinator.round_machine.device_sets import DeviceSet
from coordinator.secure_aggregation.events import (
    AskForShares,
    KeysCame,
    MaskedCame,
    OpenSum,
    RevealCame,
    SecureOutcome,
    SecurePhase,
    SecureResumed,
    SecureRules,
    SecureState,
    SendRosters,
    SendShares,
    SharesCame,
    StageTick,
    SumSpoilt,
)
from protocol.errors import Reason, Refused
from protocol.secure_aggregation.neighbours import graph, graph_size


def with_graph(rules: SecureRules, state: SecureState) -> SecureState:
    """With the graph over the devices with keys; the same after a restart."""
    size = graph_size(len(state.joined), rules.options.max_lost)
    return _with(state, graph=graph(rules.salt, state.joined.unsorted(), size))


def threshold_in(rules: SecureRules, state: SecureState) -> int:
    """How many neighbours must answer for one secret."""
    return graph_size(len(state.joined), rules.options.max_lost).threshold


def add_keys(rules: SecureRules, state: SecureState, event: KeysCame, now: float) -> SecureOutcome:
    """One more device takes part."""
    if event.device not in state.joined and len(state.joined) >= rules.capacity:
        raise Refused(Reason.FULL, rules.room_trouble(len(state.joined) + 1))
    new = _with(state, joined=state.joined.adding([event.device]))
    return _close_keys(rules, new, now) if len(new.joined) >= state.expected else (new, ())


def tick_keys(rules: SecureRules, state: SecureState, _event: StageTick, now: float) -> SecureOutcome:
    """The time for keys is over."""
    return _close_keys(rules, state, now) if now >= state.closes else (state, ())


def add_shares(rules: SecureRules, state: SecureState, event: SharesCame, now: float) -> SecureOutcome:
    """One more device has sent shares."""
    new = _with(state, shared=_added(state.shared, event.device, state.joined, "sent no keys in time"))
    return _close_shares(rules, new, now) if len(new.shared) == len(new.joined) else (new, ())


def tick_shares(rules: SecureRules, state: SecureState, _event: StageTick, now: float) -> SecureOutcome:
    """The time for shares is over."""
    return _close_shares(rules, state, now) if now >= state.closes else (state, ())


def add_masked(rules: SecureRules, state: SecureState, event: MaskedCame, now: float) -> SecureOutcome:
    """One more masked vector."""
    outside = "sent no shares in time"
    new = _with(state, delivered=_added(state.delivered, event.device, state.going, outside))
    return _close_masked(rules, new, now) if len(new.delivered) == len(new.going) else (new, ())


def tick_masked(rules: SecureRules, state: SecureState, _event: StageTick, now: float) -> SecureOutcome:
    """The time for masked vectors is over."""
    return _close_masked(rules, state, now) if now >= state.closes else (state, ())


def add_reveal(rules: SecureRules, state: SecureState, event: RevealCame, now: float) -> SecureOutcome:
    """One more device has answered. All survivors' answers are enough; fewer are counted at the deadline."""
    new = _with(state, revealed=_added(state.revealed, event.device, state.survivors, "is no survivor"))
    return _close_unmask(rules, new, now) if len(new.revealed) == len(new.survivors) else (new, ())


def tick_unmask(rules: SecureRules, state: SecureState, _event: StageTick, now: float) -> SecureOutcome:
    """The time for answers is over."""
    return _close_unmask(rules, state, now) if now >= state.closes else (state, ())


def spoil(_rules: SecureRules, state: SecureState, event: SumSpoilt, _now: float) -> SecureOutcome:
    """No version comes of this attempt."""
    return _failed(state, event.why)


def resume(_rules: SecureRules, state: SecureState, _event: SecureResumed, _now: float) -> SecureOutcome:
    """Say again what was said last."""
    match state.phase:
        case SecurePhase.SHARES:
            return state, (SendRosters(),)
        case SecurePhase.MASKED:
            return state, (SendShares(),)
        case SecurePhase.UNMASK:
            return state, (AskForShares(),)
        case SecurePhase.DONE:
            return state, (OpenSum(),)
        case _:
            return state, ()


def _close_keys(rules: SecureRules, state: SecureState, now: float) -> SecureOutcome:
    count, least = len(state.joined), rules.options.min_devices
    if count < least:
        return _failed(state, f"{count} devices have announced keys, the task adds {least} or more")
    new = _with(state, phase=SecurePhase.SHARES, closes=now + rules.stage_s)
    return with_graph(rules, new), (SendRosters(),)


def _close_shares(rules: SecureRules, state: SecureState, now: float) -> SecureOutcome:
    """Devices with too few neighbours left do not go on; which takes neighbours from others, and so on."""
    edges, threshold = state.graph, threshold_in(rules, state)
    going, gone = set(state.shared), set(state.joined) - set(state.shared)
    while gone:
        hit = {name for device in gone for name in edges[device] if name in going}
        gone = {device for device in hit if len(going.intersection(edges[device])) < threshold}
        going -= gone
    if len(going) < rules.options.min_devices:
        return _failed(
            state,
            f"{len(state.shared)} of {len(state.joined)} devices have sent shares; {len(going)} of them have "
            f"{threshold} or more neighbours left, the task adds {rules.options.min_devices} or more",
        )
    closes = now + rules.masked_s
    return _with(state, phase=SecurePhase.MASKED, going=DeviceSet(going), closes=closes), (SendShares(),)


def _close_masked(rules: SecureRules, state: SecureState, now: float) -> SecureOutcome:
    if len(state.delivered) < rules.options.min_devices:
        return _failed(
            state,
            f"{len(state.delivered)} of {len(state.going)} masked updates came, the task adds "
            f"{rules.options.min_devices} or more",
        )
    if words := _unrecoverable(rules, state, state.delivered, "have delivered"):
        return _failed(state, words)
    new = _with(state, phase=SecurePhase.UNMASK, survivors=state.delivered, closes=now + rules.stage_s)
    return new, (AskForShares(),)


def _close_unmask(rules: SecureRules, state: SecureState, _now: float) -> SecureOutcome:
    if words := _unrecoverable(rules, state, state.revealed, "have answered"):
        return _failed(state, words)
    return _with(state, phase=SecurePhase.DONE), (OpenSum(),)


def _unrecoverable(rules: SecureRules, state: SecureState, left: AbstractSet[str], what: str) -> str:
    """The first device, one with a mask in the sum, whose neighbours that are left are too few."""
    edges, threshold, there = state.graph, threshold_in(rules, state), set(left)
    for device in state.going:
        count = len(there.intersection(edges[device]))
        if count < threshold:
            return (
                f"the sum stays closed: {count} of {len(edges[device])} neighbours of device {device!r} "
                f"{what}; the threshold is {threshold}"
            )
    return ""


def _added(there: DeviceSet, device: str, among: DeviceSet, why: str) -> DeviceSet:
    if device not in among:
        raise Refused(Reason.NOT_SELECTED, f"device {device!r} {why}; it takes part in the next attempt")
    return there.adding([device])


def _failed(state: SecureState, why: str) -> SecureOutcome:
    return _with(state, phase=SecurePhase.FAILED, why=why), ()


def _with(state: SecureState, **change: Any) -> SecureState:
    """The state with these fields."""
    return state.model_copy(update=change)
