"""What a device moves and holds, counted in rounds that run: the same however large the task is."""

from dataclasses import replace

import pytest

from lichen_lab.benchmarks.studies.disentafl.data import merge_fa, uci_har, vehicle
from lichen_lab.benchmarks.studies.disentafl.data.made import build
from lichen_lab.benchmarks.studies.disentafl.federation import task_of
from lichen_lab.benchmarks.studies.disentafl.parts import cost
from lichen_lab.benchmarks.studies.disentafl.parts.cost import Cost, Size
from lichen_lab.benchmarks.studies.disentafl.settings import DisentAflSetting
from models.contract import Profile
from models.methods.disentafl.routing.blob_names import route

TINY = DisentAflSetting(
    rounds=1, width=16, latent=4, hidden=8, options={"heads": 2, "tokens": 4, "bottleneck": 2}
)
SMALL = Size(inputs=2, targets=2, domains=2, devices=2)


@pytest.fixture(scope="module")
def small() -> Cost:
    return cost.measured(SMALL, TINY)


@pytest.mark.parametrize("grown", [{"inputs": 5}, {"targets": 5}, {"domains": 4}, {"devices": 5}])
def test_a_device_moves_and_holds_the_same_however_the_rest_grows(small: Cost, grown: dict[str, int]) -> None:
    large = cost.measured(replace(SMALL, **grown), TINY)
    assert large.holds == small.holds
    # the gate's last layer has one score a domain
    allowed = 2 * 9 * 4 + 16 if "domains" in grown else 0
    assert abs(large.down - small.down) <= allowed
    assert abs(large.up - small.up) <= allowed
    if "devices" not in grown:
        assert large.supernet > small.supernet + 500
    if {"inputs", "targets"} & grown.keys():
        assert large.whole > small.whole + 500


def test_what_was_fetched_is_the_frames_of_the_route(small: Cost) -> None:
    learned = task_of(
        build(0, inputs=2, targets=2, devices=1),
        replace(TINY, options={**TINY.options, "domains": 2}),
        0,
    )
    sizes = cost.framed(cost.initial(learned))
    own = Profile(("m0",), ("label",))
    assert small.down in {sum(sizes[name] for name in route(learned, own, (d,))) for d in (0, 1)}
    assert small.supernet == sum(sizes.values())
    assert small.down < small.supernet


def test_the_goal_is_about_the_usual_size_and_can_be_missed() -> None:
    (goal,) = cost.GOALS
    spent = Cost(down=400.0, up=100.0, holds=800, supernet=1000, whole=900, group=300)
    rows = [row for row in cost.rows_of(cost.USUAL, spent) if goal.concerns(row)]
    assert [row.mean for row in rows] == [40.0]
    assert not goal.met(rows[0])
    assert not [row for row in cost.rows_of(SMALL, spent) if goal.concerns(row)]
    assert (cost.USUAL.inputs, cost.USUAL.targets, cost.USUAL.domains) == (4, 4, 3)


def test_sizes_move_one_number_at_a_time() -> None:
    sizes = cost.sizes()
    assert len(set(sizes)) == len(sizes)
    assert cost.USUAL in sizes
    for size in sizes:
        assert sum(getattr(size, name) != getattr(cost.USUAL, name) for name in cost.SWEEPS) <= 1


def test_every_fleet_tells_what_its_kinds_fetch_without_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LICHEN_DATA", "/nowhere")
    kinds = {
        vehicle.NAME: len(vehicle.KINDS),
        uci_har.NAME: len(uci_har.PROFILES),
        merge_fa.NAME: len(merge_fa.PROFILES),
    }
    assert {*kinds} == {*cost.TASKS}
    rows = cost.rows_of_kinds(vehicle.NAME)
    share = {row.setting: row.mean for row in rows if row.metric == cost.SHARE}
    assert len(share) == kinds[vehicle.NAME]
    assert share["acoustic > label"] < share["acoustic, seismic > label"] < 100
