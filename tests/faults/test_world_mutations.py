"""Would the simulation see it? Each safeguard is taken out of the real code, and seeds must fail.

The same seeds pass with the code as it is, so that what fails here fails for the want of the safeguard.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import coordinator.objects.frames
import lichen_lab.simulation.deterministic.machine.node
from coordinator.delivery.bundle_delivery import BundleDelivery
from coordinator.ingest.group_commit import GroupCommit
from coordinator.round_machine import transitions
from coordinator.rounds.accepted_index import AcceptedIndex
from coordinator.rounds.driver import RoundDriver
from coordinator.storage.update_journal import Journal
from edge_agent.messaging.outbox import Outbox
from lichen_lab.simulation.deterministic.machine.disk import SimDisk
from lichen_lab.simulation.deterministic.scenario.scenario import (
    BROKER,
    COORDINATOR,
    FaultKind,
    ScheduledFault,
    Weather,
    draw,
)
from lichen_lab.simulation.deterministic.world import run_seed
from runtime.mqtt.flow_control import FlowControl
from runtime.mqtt.keepalive import Ask, KeepaliveMonitor
from runtime.mqtt.session import Session
from runtime.storage.disk import DISK, Disk
from runtime.storage.files import make_folder

pytestmark = pytest.mark.long

SEEDS = 8
STORM = Weather(0.1, duplicate=0.3, reorder=0.1, corrupt=0.05, lose=0.1)

Patch = Callable[[pytest.MonkeyPatch], None]


def no_sync_before_the_receipt(patch: pytest.MonkeyPatch) -> None:
    """A frame's bytes and name are not synced: ``write_atomic`` as most programs have it."""

    def write_atomic(path: Any, data: bytes) -> None:
        disk = DISK.get()
        make_folder(path.parent)
        part = disk.temporary(path.parent)
        disk.write(part, data, sync=False, fresh=True)
        disk.replace(part, path)

    patch.setattr(coordinator.objects.frames, "write_atomic", write_atomic)


def a_disk_that_lies(patch: pytest.MonkeyPatch) -> None:
    """No sync has any effect, anywhere."""

    class Lying(SimDisk):
        def __init__(self, *args: Any, **how: Any) -> None:
            super().__init__(*args, **how, honours_sync=False)

    patch.setattr(lichen_lab.simulation.deterministic.machine.node, "SimDisk", Lying)


def receipt_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """The device hears that its update counts while the transaction is still to come."""
    accept = GroupCommit.accept

    async def at_once(self: GroupCommit, *what: Any) -> None:
        task = asyncio.ensure_future(accept(self, *what))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    patch.setattr(GroupCommit, "accept", at_once)


def no_duplicate_key(patch: pytest.MonkeyPatch) -> None:
    """What was accepted before is not looked up."""
    patch.setattr(Journal, "find", lambda *_: None)
    patch.setattr(Journal, "digest_of", lambda *_: None)
    patch.setattr(Journal, "digests", lambda *_: {})
    patch.setattr(AcceptedIndex, "follow", lambda *_: None)


def quorum_as_a_count(patch: pytest.MonkeyPatch) -> None:
    """So many updates are enough, however many devices were asked."""
    patch.setattr(transitions, "needed", lambda rules, _selected: max(1, rules.min_devices))


def a_deadline_that_comes_early(patch: pytest.MonkeyPatch) -> None:
    """The round machine notes half the deadline that its task has."""
    enter = transitions._enter

    def hasty(state: Any, phase: Any, now: float, **changes: Any) -> Any:
        if changes.get("until") is not None:
            changes["until"] = (now + changes["until"]) / 2
        return enter(state, phase, now, **changes)

    patch.setattr(transitions, "_enter", hasty)


def a_puback_is_a_receipt(patch: pytest.MonkeyPatch) -> None:
    """The agent forgets an update as soon as the broker has it."""
    announce = Outbox._announce

    async def and_forget(self: Outbox, entry: Any) -> None:
        await announce(self, entry)
        await asyncio.to_thread(self.spool.clear, entry.digest)

    patch.setattr(Outbox, "_announce", and_forget)


def state_used_before_it_is_on_disk(patch: pytest.MonkeyPatch) -> None:
    """The round machine's events live in memory alone."""
    persist = RoundDriver._persist

    def only_now_and_then(self: RoundDriver, given: Any, state: Any, now: float, commands: Any) -> None:
        if state.phase != "collecting":
            persist(self, given, state, now, commands)

    patch.setattr(RoundDriver, "_persist", only_now_and_then)


def bundles_go_with_old_versions(patch: pytest.MonkeyPatch) -> None:
    """What devices are pointed at is collected like any other blob."""
    patch.setattr(BundleDelivery, "retained_digests", lambda _: ())


def more_in_flight_than_the_broker_takes(patch: pytest.MonkeyPatch) -> None:
    """The Receive Maximum of CONNACK is not looked at."""
    patch.setattr(Session, "_new_gate", lambda self, _slots: FlowControl(1000, self._settings.window))


def packets_larger_than_the_broker_takes(patch: pytest.MonkeyPatch) -> None:
    """The Maximum Packet Size of CONNACK is not looked at."""
    connected = Session.connected

    def unlimited(self: Session, present: Any, reason: Any, limits: Any) -> None:
        vars(limits).pop("MaximumPacketSize", None)
        connected(self, present, reason, limits)

    patch.setattr(Session, "connected", unlimited)


def subscribed_once(patch: pytest.MonkeyPatch) -> None:
    """A link subscribes at its first connection alone: the broker keeps its session, as a rule."""
    subscribe, links = Session.subscribe, set()

    async def at_first(self: Session, filters: Any) -> list[str]:
        known = self._inbox in links
        links.add(self._inbox)
        return [] if known else await subscribe(self, filters)

    patch.setattr(Session, "subscribe", at_first)


def silence_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    """A link trusts MQTT's own pings, which a front end answers for a broker that is gone."""
    patch.setattr(KeepaliveMonitor, "look", lambda *_: Ask.NOTHING)
    patch.setattr(Session, "_end_if_stalled", lambda *_: None)


MUTATIONS: dict[Patch, str] = {
    no_sync_before_the_receipt: "a power cut would take its frame",
    a_disk_that_lies: "a power cut would take its frame",
    receipt_before_the_commit: "gets its receipt before it is in the journal",
    no_duplicate_key: "is refused .* and counted",
    quorum_as_a_count: "closed on a quorum of",
    a_deadline_that_comes_early: "ended after .* without a quorum",
    a_puback_is_a_receipt: "that no receipt was heard for",
    state_used_before_it_is_on_disk: "gets its receipt before it is in the journal",
    bundles_go_with_old_versions: "the bundle of version .* is gone",
}
"""Mutation -> what the simulation says of it."""


CALM = {"weather": Weather(0.01), "faults": (), "work_fails": 0.0, "sensor_fails": 0.0, "goes_on": False}
LINK_MUTATIONS: dict[Patch, tuple[dict[str, Any], str]] = {
    more_in_flight_than_the_broker_takes: ({"receive_maximum": 1}, "ReceiveMaximum is 1, this is"),
    packets_larger_than_the_broker_takes: (
        {"max_packet_bytes": 4096, "chunk_bytes": 65536, "head": 18000},
        "MaximumPacketSize is 4096, this is",
    ),
    subscribed_once: (
        {"faults": (ScheduledFault(5.0, FaultKind.BROKER_LOSS, BROKER, 0.5),)},
        "nothing is in the way .* and still",
    ),
    silence_is_not_noticed: (
        {"faults": (ScheduledFault(5.0, FaultKind.HALF_OPEN, COORDINATOR),)},
        "nothing is in the way .* and still",
    ),
}
"""Mutation of the link -> what makes one calm world need the safeguard, and what is said without it."""


def first_failure(seeds: int) -> tuple[int, str]:
    """The first seed that fails, and its violation; (-1, "") if none does."""
    for seed in range(seeds):
        outcome = run_seed(seed, scenario=replace(draw(seed), weather=STORM))
        if outcome.violation:
            return seed, outcome.violation
    return -1, ""


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda patch: patch.__name__)
def test_world_a_missing_safeguard_is_seen(mutate: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    seed, words = first_failure(2 * SEEDS)
    assert seed >= 0, f"{2 * SEEDS} seeds pass without it: the simulation is blind to this"
    assert re.search(MUTATIONS[mutate], words)


@pytest.mark.parametrize("mutate", LINK_MUTATIONS, ids=lambda patch: patch.__name__)
def test_world_a_link_without_a_safeguard_is_seen(mutate: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lichen_lab.simulation.deterministic.world.PATIENCE_S", 200.0)
    changes, words = LINK_MUTATIONS[mutate]
    scenario = replace(draw(3), **(CALM | changes))
    assert run_seed(3, scenario=scenario).violation == ""
    mutate(monkeypatch)
    assert re.search(words, run_seed(3, scenario=scenario).violation)


def test_world_the_same_seeds_pass_with_every_safeguard() -> None:
    assert first_failure(SEEDS) == (-1, "")


def test_world_the_real_disk_is_left_alone() -> None:
    run_seed(0)
    assert type(DISK.get()) is Disk
