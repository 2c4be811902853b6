"""The device registry: the devices' own retained ``State`` messages, stored on disk as well.

The broker may deliver only some of its retained messages (iotcore: 100 to a wildcard), so a state from before
a restart stays valid until the device sends another.
"""

import asyncio
import heapq
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
import structlog
from pydantic import ValidationError

from coordinator.fleet.limits import REPLACED_A_SECOND, REPLACED_BURST, Room, RosterBounds
from coordinator.fleet.requirements import Requirements, sends_prototypes_alone
from coordinator.fleet.standing_sets import FleetSets
from coordinator.storage import schema
from coordinator.storage.database import Database
from protocol.errors import Reason, Refused
from protocol.messages import State
from runtime.metrics import MetricFamily, gauge
from runtime.pacing import TokenBucket
from runtime.process.garbage import collector_paused
from runtime.waits import span

log = structlog.get_logger(__name__)

_DAY_S: Final = 86400.0
_RECENT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Device:
    """One device's last state; ``wall`` is when it came, Unix seconds."""

    state: State
    wall: float

    @property
    def online(self) -> bool:
        """Whether its last state says that it is online."""
        return self.state.status == "online"


class DeviceRegistry:
    """All devices that ever reported. Changed on the event loop alone; scrapes read it from a thread.

    Args:
        store: the rows from before the start.
        wall: Unix seconds.
        now: monotonic seconds.
        bounds: its limits.
    """

    def __init__(
        self,
        store: Database,
        wall: Callable[[], float],
        now: Callable[[], float] = time.monotonic,
        bounds: RosterBounds | None = None,
    ) -> None:
        self._room = Room(bounds or RosterBounds())
        self._replacing = TokenBucket(REPLACED_BURST, REPLACED_A_SECOND)
        self._wall = wall
        self._now = now
        self._began = now()
        self._devices: dict[str, Device] = {}
        self.sets = FleetSets()
        """Who is online, who trains, who is eligible."""
        with collector_paused():
            for row in store.rows(sa.select(schema.devices)):
                if (device := read_device(row)) is not None:
                    self._devices[row["device"]] = device
                    self._room.put(row["device"], _size(device.state))
                    self.sets.put(device.state)
        updates = schema.updates.c.device
        self._contributed = {row["device"] for row in store.rows(sa.select(updates).distinct())}
        """Devices that delivered an update, as far as the history goes."""
        self._replaced: list[str] = []
        self._heard: dict[str, float] = {}
        """When a device was last heard since the start, monotonic seconds."""
        self.prototypers = {
            name for name, device in self._devices.items() if sends_prototypes_alone(device.state)
        }
        """Devices that can learn only by prototypes, online or not."""
        self._prototyper_came = asyncio.Event()

    def __contains__(self, device: object) -> bool:
        return device in self._devices

    def __len__(self) -> int:
        return len(self._devices)

    def get(self, device: str) -> Device | None:
        """The entry of a device."""
        return self._devices.get(device)

    def names(self) -> tuple[str, ...]:
        """All devices, sorted."""
        return tuple(sorted(self._devices))

    def online(self) -> tuple[str, ...]:
        """Online devices, sorted."""
        return tuple(sorted(self.sets.online))

    def secrets(self) -> dict[str, str]:
        """Fingerprints of the fleet secret that online devices have, by device."""
        known = ((name, self._devices[name].state.fleet_secret) for name in self.online())
        return {name: shown for name, shown in known if shown is not None}

    def unheard(self) -> tuple[str, ...]:
        """Devices that were not heard since the start; first those that were online when last heard."""
        silent = [name for name in self._devices if name not in self._heard]
        return tuple(sorted(silent, key=lambda name: (not self._devices[name].online, name)))

    def update(self, state: State, keep: Collection[str] = ()) -> bool:
        """Store a device's state; what a will cannot know (modalities, roles) stays as it was.

        Args:
            state: the report.
            keep: devices that must not be replaced.

        Returns:
            Whether the device has just come online.

        Raises:
            Refused: the registry is full (FULL).
        """
        before = self._devices.get(state.device)
        if before is not None and state.status != "online" and not state.modalities:
            state = before.state.model_copy(update={"status": state.status})
        self._make_room(state.device, _size(state), keep)
        self._heard[state.device] = self._now()
        self._put(state, self._wall())
        if sends_prototypes_alone(state):
            self.prototypers.add(state.device)
            self._prototyper_came.set()
        else:
            self.prototypers.discard(state.device)
        return state.status == "online" and (before is None or not before.online)

    def follow(self, rows: Iterable[dict[str, Any]], gone: Iterable[str]) -> None:
        """Take over what another process wrote, without bounds: for a process that only reads.

        Args:
            rows: of ``schema.devices``, new or changed; a damaged one is as one that is gone.
            gone: devices whose rows were removed.
        """
        found = [(row["device"], read_device(row)) for row in rows]
        for name in (*gone, *(name for name, device in found if device is None)):
            self.forget(name)
        for name, device in found:
            if device is not None:
                self._put(device.state, device.wall)
                self.prototypers.discard(name)
                if sends_prototypes_alone(device.state):
                    self.prototypers.add(name)

    def _put(self, state: State, wall: float) -> None:
        self._devices[state.device] = Device(state, wall)
        self.sets.put(state)

    def _make_room(self, device: str, size: int, keep: Collection[str]) -> None:
        while not self._room.fits(device, size):
            # The rate limit first: finding a device to replace takes long, and names come at full speed.
            may = self._room.bounds.replaces and self._replacing.take(self._now())
            old = self._least(device, keep) if may else None
            if old is None:
                words = f"the registry holds {self._room.bounds} at most (devices.most): no room for {device}"
                raise Refused(Reason.FULL, f"{words}; `lichen device forget` makes some")
            self.forget(old)
            self._replaced.append(old)
        self._room.put(device, size)

    def _least(self, device: str, keep: Collection[str]) -> str | None:
        """The device to replace: never contributed, preferably offline, heard longest ago."""
        firm = {*keep, device} | self._contributed
        strangers = [name for name in self._devices if name not in firm]
        heard = self._heard.get
        order = [(self._devices[n].online, heard(n, self._began), n) for n in strangers]
        return min(order)[2] if order else None

    def contributed(self, device: str) -> None:
        """Record that an update of it was accepted."""
        self._contributed.add(device)

    def forget(self, device: str) -> None:
        """Remove a device; an online one sends its state again."""
        self._devices.pop(device, None)
        self.sets.drop(device)
        self._heard.pop(device, None)
        self.prototypers.discard(device)
        self._room.drop(device)

    def replaced(self) -> list[str]:
        """Devices replaced since the last call."""
        found, self._replaced = self._replaced, []
        return found

    def stale(self, days: float) -> list[str]:
        """Devices that are offline and silent for so many days."""
        since = self._wall() - days * _DAY_S
        return [name for name, known in self._devices.items() if not known.online and known.wall < since]

    def touch(self, device: str) -> None:
        """Record a message of a registered device that is not a state."""
        if device in self._devices:
            self._heard[device] = self._now()

    def hush(self, silent_s: float) -> tuple[str, ...]:
        """Mark devices as offline that say they are online, and were silent for this long.

        A will that the broker lost, or never had, leaves a dead device ``online``. For devices not heard
        since the start the time counts from there.

        Returns:
            Their names.
        """
        now, heard = self._now(), self._heard.get
        found = tuple(name for name in self.online() if now - heard(name, self._began) >= silent_s)
        for name in found:
            known = self._devices[name]
            self._put(known.state.model_copy(update={"status": "offline"}), known.wall)
        return found

    def row(self, device: str) -> dict[str, Any]:
        """One device as a row of ``schema.devices``."""
        known = self._devices[device]
        state = known.state.model_dump(mode="json", exclude_none=True)
        return {"device": device, "state": state, "wall": known.wall}

    async def wait_for_prototypers(self) -> None:
        """Wait until there is one."""
        if not self.prototypers:
            await self._prototyper_came.wait()

    def eligible(self, terms: Requirements) -> tuple[str, ...]:
        """Devices that are online and meet the requirements; sorted."""
        return tuple(sorted(self.eligible_set(terms)))

    def eligible_set(self, terms: Requirements) -> AbstractSet[str]:
        """The same as a set that changes with each state: nothing is looked up or sorted."""
        return self.sets.eligible(terms, (one.state for one in self._devices.values()))

    def trains(self, device: str) -> bool:
        """Whether a device has the role ``train``."""
        return device in self.sets.trainers

    def missing_requirement(self, device: str, terms: Requirements) -> str:
        """What keeps a device out of a round; empty if nothing does."""
        known = self._devices.get(device)
        if known is None:
            return "never reported a state"
        if not known.online:
            return known.state.status
        return terms.lacks(known.state)

    def last_heard(self, device: str) -> str:
        """When a device last sent a state, as text; empty if less than a minute ago."""
        known = self._devices.get(device)
        ago = 0.0 if known is None else self._wall() - known.wall
        return f"last heard {span(ago)} ago" if ago >= _RECENT_S else ""

    def ineligible(self, terms: Requirements, most: int) -> Iterator[tuple[str, str]]:
        """The first of the other devices by name, and what each of them lacks."""
        able = self.eligible_set(terms)
        for name in heapq.nsmallest(most, (name for name in self._devices if name not in able)):
            yield name, self.missing_requirement(name, terms)

    def counts(self, device: str) -> Mapping[str, Sequence[int]]:
        """Per modality, windows per class of a registered device."""
        return {name: modality.windows for name, modality in self._devices[device].state.modalities.items()}

    def windows_by_modality(self, device: str) -> Mapping[str, Sequence[int]]:
        """Per modality, one number: windows of a device in which it is present, labelled or not."""
        state = self._devices[device].state
        return {
            name: (round(state.windows * (1.0 - modality.missing)),)
            for name, modality in state.modalities.items()
        }

    def coverage(
        self, modalities: tuple[str, ...], classes: int, *, labelled: bool = True
    ) -> dict[str, list[int]]:
        """Per modality, online devices with windows of each class; without classes, of any, as one number."""
        table = {name: [0] * (classes if labelled else 1) for name in modalities}
        for device in self.online():
            for name, per_class in (self.counts if labelled else self.windows_by_modality)(device).items():
                for k, n in enumerate(per_class[:classes]):
                    if name in table and n > 0:
                        table[name][k] += 1
        return table

    def metrics(self) -> Iterable[MetricFamily]:
        """How many devices are online, and how many secrets they have."""
        yield gauge("lichen_devices_online", "Devices that are online", len(self.sets.online))
        words = "Different fleet secrets of online devices with knowledge graphs; more than 1 is wrong"
        yield gauge("lichen_fleet_secrets", words, len(set(self.secrets().values())))


def _size(state: State) -> int:
    return len(state.model_dump_json(exclude_none=True))


def read_device(row: dict[str, Any]) -> Device | None:
    """The state in a row; None if it is damaged: the device will send it again."""
    try:
        return Device(State.model_validate(row["state"]), row["wall"])
    except ValidationError as error:
        log.warning("device_forgotten", device=row["device"], why=f"its row is damaged: {error}"[:300])
        return None
