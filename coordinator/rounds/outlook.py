"""Status of the fleet, for the daemon and ``lichen coordinator status``."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain, islice
from typing import Final

from coordinator.admission.access import DenialCheck
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.fleet.requirements import NEEDS_A_TRAINER, Requirements
from coordinator.messaging.sender import MessagePublisher
from coordinator.round_machine.events import RoundPhase, RoundState
from coordinator.rounds.progress import MAX_NAMES, FleetStatus
from protocol.tasks.task import Task
from runtime.metrics import MetricFamily

ANY_LABEL: Final = ""
"""The label of ``lichen_coverage`` if devices learn without labels: windows of any class, or of none; of
knowledge graphs, triples."""


def able(
    roster: DeviceRegistry, state: RoundState, terms: Requirements, barred: DenialCheck
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Devices that a round could select; and those it could if there were a device that trains."""
    return _sorted_out(roster, state, terms, barred, roster.eligible(terms))


def anybody(roster: DeviceRegistry, devices: Iterable[str], barred: DenialCheck) -> bool:
    """Whether one of these devices is online and not denied."""
    known = ((device, roster.get(device)) for device in devices)
    return any(one is not None and one.online and barred(device) is None for device, one in known)


def _sorted_out(
    roster: DeviceRegistry,
    state: RoundState,
    terms: Requirements,
    barred: DenialCheck,
    ready: tuple[str, ...],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found = tuple(d for d in ready if d not in state.refused and barred(d) is None)
    trained = chain(found, state.delivered.unsorted())
    if terms.needs_training and not any(map(roster.trains, trained)):
        return (), found
    return found, ()


def fleet_status(
    roster: DeviceRegistry,
    state: RoundState,
    terms: Requirements,
    barred: DenialCheck,
    broker: str = "",
) -> FleetStatus:
    """The eligible devices, and what keeps others out; ``MAX_NAMES`` of each kind are named.

    Args:
        roster: the devices.
        state: of the round.
        terms: what a device needs.
        barred: why a device is denied now (quarantined, revoked). It comes before everything else that a
            device lacks, because only time or the operator ends it.
        broker: why there is no connection to it.
    """
    ready = roster.eligible(terms)
    missing, lacks = state.first_missing(MAX_NAMES), dict[str, str]()
    if state.phase is RoundPhase.COLLECTING:
        lacks = {device: roster.missing_requirement(device, terms) for device in missing}
    elif state.phase is RoundPhase.WAITING:
        lacks = dict(islice(roster.ineligible(terms), MAX_NAMES))
    lacks |= {device: f"was refused: {state.refused[device]}" for device in state.refused.first(MAX_NAMES)}
    turned_away = {device: no for device in ready if (no := barred(device)) is not None}
    lacks |= {device: str(no) for device, no in islice(turned_away.items(), MAX_NAMES)}
    found, alone = _sorted_out(roster, state, terms, barred, ready)
    lacks |= dict.fromkeys(alone[:MAX_NAMES], NEEDS_A_TRAINER)
    heard = {device: roster.last_heard(device) for device in missing}
    return FleetStatus(found, lacks, len(roster), broker, heard)


class RoundView:
    """The fleet as a round sees it now.

    Args:
        task: what is learned.
        roster: the devices.
        terms: what a device needs for a round now.
        barred: why a device is denied now, and so not selected.
        link: without a broker no device can be selected.
    """

    def __init__(
        self,
        task: Task,
        roster: DeviceRegistry,
        terms: Callable[[], Requirements],
        barred: DenialCheck,
        link: MessagePublisher,
    ) -> None:
        self._task = task
        self._roster = roster
        self.terms = terms
        self._barred = barred
        self._link = link

    def broker_trouble(self) -> str:
        """Why there is no connection to the broker; empty if there is one."""
        return "" if self._link.connected else self._link.why

    def may_select(self) -> bool:
        """Whether opening a round is useful now: not without a broker."""
        return self._link.connected

    def able(self, state: RoundState) -> tuple[str, ...]:
        """Devices that a round could select."""
        return able(self._roster, state, self.terms(), self._barred)[0] if self.may_select() else ()

    def has_any(self, devices: Iterable[str]) -> bool:
        """Whether one of these devices is online and not denied."""
        return anybody(self._roster, devices, self._barred)

    def outlook(self, state: RoundState, disk: str) -> FleetStatus:
        """The status of the fleet; ``disk``: why nothing can be written, if so."""
        seen = fleet_status(self._roster, state, self.terms(), self._barred, self.broker_trouble())
        return replace(seen, disk=disk)

    def metrics(self) -> Iterable[MetricFamily]:
        """How many online devices have data, by modality and label."""
        labelled = self.terms().needs_labels
        labels = self._task.labels if labelled else (ANY_LABEL,)
        table = self._roster.coverage(self._task.modality_names, len(labels), labelled=labelled)
        values = [
            ((name, label), float(devices))
            for name, per_class in table.items()
            for label, devices in zip(labels, per_class, strict=True)
        ]
        words = "Online devices with data"
        yield MetricFamily("lichen_coverage", words, "gauge", values, ("modality", "label"))
