"""Status of the fleet, for the daemon and ``lichen coordinator status``."""

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import Final

from coordinator.admission.access import DenialCheck
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.fleet.requirements import NEEDS_A_TRAINER, Requirements
from coordinator.round_machine.events import RoundPhase, RoundState
from coordinator.rounds.progress import MAX_NAMES, FleetStatus
from protocol.tasks.task import Task
from runtime.metrics import MetricFamily
from runtime.mqtt.running_link import MessagePublisher

ANY_LABEL: Final = ""
"""The label of ``lichen_coverage`` if devices learn without labels: windows of any class, or of none; of
knowledge graphs, triples."""


def has_trainer(
    roster: DeviceRegistry, state: RoundState, terms: Requirements, devices: AbstractSet[str]
) -> bool:
    """Whether one of these devices trains, or one that delivered, where a round needs one."""
    if not terms.needs_training or not devices.isdisjoint(roster.sets.trainers):
        return True
    return any(map(roster.trains, state.delivered.unsorted()))


def fleet_status(
    roster: DeviceRegistry,
    state: RoundState,
    terms: Requirements,
    barred: DenialCheck,
    broker: str = "",
) -> FleetStatus:
    """What the round waits for. ``MAX_NAMES`` devices of each kind are named.

    Between two rounds it looks at all eligible devices, so it is for whoever asks, not for each message.

    Args:
        roster: the devices.
        state: of the round.
        terms: what a device needs.
        barred: why a device is denied now (quarantined, revoked). It comes before everything else that a
            device lacks, because only time or the operator ends it.
        broker: why there is no connection to it.
    """
    missing, lacks, found = state.first_missing(MAX_NAMES), dict[str, str](), set[str]()
    waiting = state.phase is RoundPhase.WAITING
    if state.phase is RoundPhase.COLLECTING:
        lacks = {device: roster.missing_requirement(device, terms) for device in missing}
    elif waiting:
        lacks = dict(roster.ineligible(terms, MAX_NAMES))
    lacks |= {device: f"was refused: {state.refused[device]}" for device in state.refused.first(MAX_NAMES)}
    ready = roster.eligible_set(terms) if waiting else missing
    turned_away = {device: no for device in ready if (no := barred(device)) is not None}
    lacks |= {device: str(turned_away[device]) for device in nsmallest(MAX_NAMES, turned_away)}
    if waiting:
        found = {device for device in ready if device not in turned_away and device not in state.refused}
    if waiting and not has_trainer(roster, state, terms, found):
        lacks |= dict.fromkeys(nsmallest(MAX_NAMES, found), NEEDS_A_TRAINER)
        found = set()
    heard = {device: roster.last_heard(device) for device in missing}
    return FleetStatus(frozenset(found), lacks, len(roster), broker, heard)


def _none() -> str:
    return ""


@dataclass(eq=False, repr=False)
class RoundView:
    """The fleet as a round sees it now.

    Args:
        task: what is learned.
        roster: the devices.
        terms: what a device needs for a round now.
        barred: why a device is denied now, and so not selected.
        link: without a broker no device can be selected.
    """

    task: Task
    roster: DeviceRegistry
    terms: Callable[[], Requirements]
    barred: DenialCheck
    link: MessagePublisher
    hold: Callable[[], str] = _none
    """Why operators let no round be opened; empty if they do."""

    def broker_trouble(self) -> str:
        """Why there is no connection to the broker; empty if there is one."""
        return "" if self.link.connected else self.link.why

    def may_select(self) -> bool:
        """Whether a round may be opened now: not without a broker, nor while an operator holds the rounds."""
        return self.link.connected and not self.hold()

    def able(self, state: RoundState) -> tuple[str, ...]:
        """Devices that a round could select, sorted; looks at all eligible devices."""
        found = {device for device in self.eligible() if self.admits(device, state)}
        return tuple(sorted(found)) if self.may_select() and self.suffices(found, state) else ()

    def eligible(self) -> AbstractSet[str]:
        """Devices that are online with enough data; the set changes with each state."""
        return self.roster.eligible_set(self.terms())

    def admits(self, device: str, state: RoundState) -> bool:
        """Whether a device is neither denied nor refused in this round."""
        return device not in state.refused and self.barred(device) is None

    def suffices(self, devices: AbstractSet[str], state: RoundState) -> bool:
        """Whether a round of these devices has one that trains, if it needs one."""
        return has_trainer(self.roster, state, self.terms(), devices)

    def take_changed(self) -> set[str]:
        """Devices whose state changed since the last call."""
        return self.roster.sets.take_changed()

    def has_any(self, devices: Iterable[str]) -> bool:
        """Whether one of these devices is online and not denied."""
        online = self.roster.sets.online
        return any(device in online and self.barred(device) is None for device in devices)

    def outlook(self, state: RoundState, disk: str) -> FleetStatus:
        """The status of the fleet; ``disk``: why nothing can be written, if so."""
        seen = fleet_status(self.roster, state, self.terms(), self.barred, self.broker_trouble())
        return replace(seen, disk=disk, hold=self.hold())

    def metrics(self) -> Iterable[MetricFamily]:
        """How many online devices have data, by modality and label."""
        labelled = self.terms().needs_labels
        labels = self.task.labels if labelled else (ANY_LABEL,)
        table = self.roster.coverage(self.task.modality_names, len(labels), labelled=labelled)
        values = [
            ((name, label), float(devices))
            for name, per_class in table.items()
            for label, devices in zip(labels, per_class, strict=True)
        ]
        words = "Online devices with data"
        yield MetricFamily("lichen_coverage", words, "gauge", values, ("modality", "label"))
