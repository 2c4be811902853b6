"""What one message costs, counted in calls and looks: it does not grow with the fleet."""

import gc
import sys
from collections.abc import Callable
from types import FrameType

import pytest

from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.fleet.requirements import Requirements
from coordinator.round_machine import table as machine
from coordinator.round_machine.events import RoundPhase, RoundState, Rules, UpdatesAccepted
from coordinator.rounds.fleet_watch import Lookout
from coordinator.rounds.outlook import RoundView
from coordinator.storage.database import Database
from coordinator.storage.location import DATABASE
from protocol.messages import ModalityState, State
from tests.support.coordinator.bench import FakeLink
from tests.support.coordinator.fake import tiny_task

MANY = 3000


def calls_of(work: Callable[[], object]) -> int:
    """How many functions are called, those of C, too, without those of a garbage collection."""
    calls = 0

    def count(_frame: FrameType, event: str, _what: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    gc.disable()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def calls_of_an_update(phase: RoundPhase, devices: int) -> int:
    names = [f"dev-{n:05d}" for n in range(devices)]
    state = RoundState(phase=phase, round=1, until=9.0, invited=names, selected=names, delivered=names[::2])
    rules = Rules(rounds=1, deadline_s=9.0, min_devices=devices)
    states = []

    def accept() -> None:
        event = UpdatesAccepted(round=1, devices=(names[31],))
        states.append(machine.apply(rules, state, event, 1.0)[0])

    calls = calls_of(accept)
    assert set(states[0].delivered) == {*names[::2], names[31]}
    return calls


@pytest.mark.parametrize("phase", [RoundPhase.COLLECTING, RoundPhase.WAITING])
def test_an_update_costs_the_machine_the_same_in_a_round_of_100_and_of_10000_devices(phase) -> None:
    few = calls_of_an_update(phase, 100)
    assert calls_of_an_update(phase, 10_000) == few < 150


def says(device: str, status: str = "online") -> State:
    modalities = {"acc": ModalityState(windows=(9, 0))}
    return State(device=device, status=status, roles=("train",), windows=9, modalities=modalities)


def fleet_with(store: Database, devices: int) -> tuple[DeviceRegistry, Lookout]:
    roster = DeviceRegistry(store, lambda: 1e9)
    for n in range(devices):
        roster.update(says(f"dev-{n:05d}"))
    view = RoundView(tiny_task(), roster, lambda: Requirements(1), lambda _device: None, FakeLink())
    lookout = Lookout(view, 5.0, 0.0)
    assert lookout.tick(0.0, RoundState()).able == devices
    return roster, lookout


def test_a_state_costs_the_same_in_a_fleet_of_100_and_of_10000(tmp_path) -> None:
    calls = []
    for devices in (100, 10_000):
        with Database(tmp_path / f"{devices}.sqlite3") as store:
            roster, lookout = fleet_with(store, devices)
            state = says("dev-00050", "offline")

            def hear(roster=roster, lookout=lookout, state=state) -> None:
                roster.update(state)
                assert lookout.tick(0.5, RoundState()).able == len(roster) - 1

            calls.append(calls_of(hear))
    assert calls[0] == calls[1] < 300


def test_a_device_that_comes_and_goes_a_thousand_times_is_looked_at_once_a_tick(tmp_path) -> None:
    with Database(tmp_path / DATABASE) as store:
        roster, lookout = fleet_with(store, MANY)
        before = lookout.looks
        for n in range(1000):
            roster.update(says("dev-00007", "online" if n % 2 else "offline"))
        tick = lookout.tick(1.0, RoundState())
        assert (tick.able, lookout.looks - before) == (MANY, 1)
        for second in range(2, 60):
            roster.update(says("dev-00007", "online" if second % 2 else "offline"))
            lookout.tick(float(second), RoundState())
        assert lookout.looks - before <= 60 + 30 * MANY, "all of them are looked at every two seconds at most"
