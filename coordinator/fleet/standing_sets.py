"""Which devices are online, train, and could take part: sets that change with each state message. Pure.

To go through the whole fleet for each message would stop a coordinator of 10,000 devices.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from coordinator.fleet.requirements import Requirements, trains
from protocol.messages import State


class FleetSets:
    """Sets of registered devices.

    Attributes:
        online: those whose last state says so.
        trainers: those with the role ``train``, online or not.
    """

    def __init__(self) -> None:
        self.online: set[str] = set()
        self.trainers: set[str] = set()
        self._eligible: set[str] = set()
        self._terms: Requirements | None = None
        self._changed: set[str] = set()

    def put(self, state: State) -> None:
        """Sort a device in by its newest state."""
        online = state.status == "online"
        _sort_in(self.online, state.device, belongs=online)
        _sort_in(self.trainers, state.device, belongs=trains(state))
        if self._terms is not None:
            _sort_in(self._eligible, state.device, belongs=online and not self._terms.lacks(state))
        self._changed.add(state.device)

    def drop(self, device: str) -> None:
        """Remove a device from all sets."""
        for group in (self.online, self.trainers, self._eligible):
            group.discard(device)
        self._changed.add(device)

    def eligible(self, terms: Requirements, states: Iterable[State]) -> AbstractSet[str]:
        """Devices that are online and meet the requirements; only new requirements look at all ``states``."""
        if terms != self._terms:
            self._terms = terms
            self._eligible = {one.device for one in states if one.status == "online" and not terms.lacks(one)}
        return self._eligible

    def take_changed(self) -> set[str]:
        """Devices whose state changed since the last call."""
        found, self._changed = self._changed, set()
        return found


def _sort_in(group: set[str], device: str, *, belongs: bool) -> None:
    if belongs:
        group.add(device)
    else:
        group.discard(device)
