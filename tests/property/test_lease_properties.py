"""The leader's lease: whatever the clocks do, no write of an epoch follows one of a later epoch."""

import itertools
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.lease.decisions import (
    Lease,
    Tenure,
    is_free,
    renewed,
    taken,
    tenure,
    wait_s,
)

LIFE_S = 7.0
_HOLDERS = ("a", "b", "c")


@dataclass
class _World:
    """The row, the database's clock, and what each process believes."""

    row: Lease = field(default_factory=Lease)
    now: float = 1000.0
    real: float = 0.0
    mine: dict[str, Lease] = field(default_factory=dict)
    tenures: dict[str, Tenure] = field(default_factory=dict)
    written: list[tuple[int, str]] = field(default_factory=list)

    def take(self, who: str) -> None:
        found = taken(self.row, who, self.now, LIFE_S)
        if found is not None:
            self.row = self.mine[who] = found
            self.tenures[who] = tenure(found, self.real, LIFE_S)

    def renew(self, who: str) -> None:
        found = renewed(self.row, self.mine.get(who, Lease("nobody")), self.now, LIFE_S)
        if found is not None:
            self.row = self.mine[who] = found
            self.tenures[who] = tenure(found, self.real, LIFE_S)

    def write(self, who: str) -> None:
        """As the fence: the epoch is compared in the transaction of the write."""
        if who in self.mine and self.row.epoch == self.mine[who].epoch:
            self.written.append((self.row.epoch, who))

    def believers(self) -> list[str]:
        return [who for who, one in self.tenures.items() if one.holds(self.real)]


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["take", "renew", "write"]), st.sampled_from(_HOLDERS)),
        st.tuples(st.just("time"), st.floats(0, 20)),
        st.tuples(st.just("jump"), st.floats(-5000, 5000)),
    ),
    max_size=60,
)


@given(_STEPS)
def test_epochs_that_write_only_grow_and_each_has_one_holder(steps):
    world = _World()
    for what, value in steps:
        match what:
            case "time":
                world.now, world.real = world.now + value, world.real + value
            case "jump":
                world.now += value
            case _:
                getattr(world, what)(value)
    epochs = [epoch for epoch, _ in world.written]
    assert epochs == sorted(epochs)
    for _, group in itertools.groupby(world.written, key=lambda one: one[0]):
        assert len({who for _, who in group}) == 1


@given(_STEPS)
def test_with_a_clock_that_runs_evenly_at_most_one_process_believes_that_it_leads(steps):
    world = _World()
    for what, value in steps:
        match what:
            case "time" | "jump":
                world.now, world.real = world.now + abs(value), world.real + abs(value)
            case _:
                getattr(world, what)(value)
        assert len(world.believers()) <= 1


@settings(max_examples=50)
@given(st.floats(-1e6, 1e6), st.floats(0, LIFE_S))
def test_a_lease_is_free_within_a_life_wherever_the_database_s_clock_is_set_to(jump, later):
    row = taken(Lease(), "a", 1000.0, LIFE_S)
    assert row is not None
    now = 1000.0 + jump
    assert is_free(row, now, LIFE_S) or is_free(row, now + LIFE_S + later, LIFE_S)
    assert 0 < wait_s(row, now, LIFE_S) <= LIFE_S


def test_a_process_that_wakes_after_another_took_the_lease_cannot_renew():
    first = taken(Lease(), "a", 0.0, LIFE_S)
    assert first is not None
    assert taken(first, "b", LIFE_S - 0.1, LIFE_S) is None
    second = taken(first, "b", LIFE_S, LIFE_S)
    assert second == Lease("b", 2, 2 * LIFE_S)
    assert renewed(second, first, 30.0, LIFE_S) is None
    assert renewed(second, second, 30.0, LIFE_S) == Lease("b", 2, 30.0 + LIFE_S)
    assert not tenure(first, 0.0, LIFE_S).holds(30.0)
