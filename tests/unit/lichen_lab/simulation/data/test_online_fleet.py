from dataclasses import replace

import numpy as np
import pytest

from lichen_lab.simulation.data.online_fleet import OnlineSetting
from models.contract import WindowSet
from protocol.errors import Misconfigured

ROUNDS = range(1, 31)


def windows(count: int = 600) -> WindowSet:
    rng = np.random.default_rng(3)
    y_B = np.arange(count, dtype=np.int64) % 5
    y_B[:20] = -1
    return WindowSet(
        x={
            "a": rng.normal(0, 1, (count, 2, 8)).astype(np.float32),
            "b": rng.normal(0, 1, (count, 1, 4)).astype(np.float32),
        },
        present_BM=np.ones((count, 2), np.bool_),
        quality_BM=np.ones((count, 2), np.float32),
        y_B=y_B,
    )


SMALL = OnlineSetting(devices=3, pool=200, size=50, step=10)
FAULTY = replace(SMALL, missing_share=0.8, affected_rounds=0.5, noisy_rounds=0.5, snr_db=0.0)


def test_online_devices_share_the_pool_and_hold_the_size_asked_for() -> None:
    fleet = SMALL.fleet(windows(), 1)
    assert list(fleet) == ["d0", "d1", "d2"]
    assert len({id(stream.pool) for stream in fleet.values()}) == 1
    for stream in fleet.values():
        assert len(stream.at(1)) == 50
        assert (stream.at(1).y_B >= 0).all()
        assert (stream.at(4).y_B[:20] == stream.at(1).y_B[30:]).all()
        assert stream.at(2).present_BM.all()
        # round 21 is round 1 again: 200 windows at 10 a round
        assert (stream.held(21) == stream.held(1)).all()


def test_online_same_seed_same_streams_other_seed_others() -> None:
    one, again, other = (FAULTY.fleet(windows(), seed) for seed in (4, 4, 5))
    for name, stream in one.items():
        for round_ in (1, 7, 30):
            assert (stream.at(round_).x["a"] == again[name].at(round_).x["a"]).all()
        assert (stream.held(1) != other[name].held(1)).any()
        assert stream.seed != other[name].seed


def test_online_faults_do_not_change_what_is_held_nor_each_other() -> None:
    clean, missing, noisy = (
        SMALL.fleet(windows(), 2),
        replace(FAULTY, noisy_rounds=0.0).fleet(windows(), 2),
        replace(FAULTY, affected_rounds=0.0).fleet(windows(), 2),
    )
    both = FAULTY.fleet(windows(), 2)
    for name, stream in both.items():
        for round_ in ROUNDS:
            held = stream.held(round_)
            assert (held == clean[name].held(round_)).all()
            now = stream.at(round_)
            assert (now.present_BM == missing[name].at(round_).present_BM).all()
            loud = noisy[name].at(round_)
            for m, modality in enumerate(("a", "b")):
                here = now.present_BM[:, m]
                assert (now.x[modality][here] == loud.x[modality][here]).all()
                assert (now.quality_BM[here, m] == loud.quality_BM[here, m]).all()


def test_online_more_of_a_fault_contains_less_of_it() -> None:
    some = replace(FAULTY, missing_share=0.3, affected_rounds=0.3, noisy_rounds=0.3).fleet(windows(), 6)
    more = replace(FAULTY, missing_share=0.9, affected_rounds=0.7, noisy_rounds=0.7).fleet(windows(), 6)
    louder = replace(FAULTY, noisy_rounds=0.7, affected_rounds=0.0, snr_db=-20.0).fleet(windows(), 6)
    softer = replace(FAULTY, noisy_rounds=0.7, affected_rounds=0.0, snr_db=0.0).fleet(windows(), 6)
    for name in some:
        for round_ in ROUNDS:
            less, much = some[name].at(round_), more[name].at(round_)
            assert not (much.present_BM & ~less.present_BM).any()
            assert ((less.quality_BM < 1) & much.present_BM <= (much.quality_BM < 1)).all()
            clean = windows().x["a"][some[name].held(round_)]
            ten = louder[name].at(round_).x["a"] - clean
            assert np.allclose(ten, 10 * (softer[name].at(round_).x["a"] - clean), atol=1e-4)


def test_online_devices_differ_in_pools_and_in_weather() -> None:
    fleet = FAULTY.fleet(windows(), 8)
    assert (fleet["d0"].held(1) != fleet["d1"].held(1)).any()
    weather = [[not stream.at(r).present_BM.all() for r in ROUNDS] for stream in fleet.values()]
    assert weather[0] != weather[1]
    assert all(5 <= sum(rounds) <= 25 for rounds in weather)


def test_online_more_devices_leave_the_first_as_they_were() -> None:
    few, many = SMALL.fleet(windows(), 9), replace(SMALL, devices=7).fleet(windows(), 9)
    for name, stream in few.items():
        assert (many[name].held(1) == stream.held(1)).all()
        assert many[name].seed == stream.seed


def test_online_the_papers_setting() -> None:
    paper = OnlineSetting()
    assert (paper.devices, paper.pool, paper.size, paper.step, paper.alpha) == (5, 2000, 500, 20, 1.0)
    assert paper.missing_share == paper.affected_rounds == paper.noisy_rounds == 0


@pytest.mark.parametrize(
    ("wrong", "culprit"),
    [
        ({"devices": 0}, "devices"),
        ({"pool": 0}, "pool"),
        ({"size": 300, "pool": 200}, "at most pool"),
        ({"step": 51}, "step"),
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": float("nan")}, "alpha"),
        ({"snr_db": float("inf")}, "snr_db"),
        ({"missing_share": 1.5}, "missing_share"),
        ({"affected_rounds": -0.1}, "affected_rounds"),
        ({"noisy_rounds": float("nan")}, "noisy_rounds"),
    ],
)
def test_online_refuses_nonsense(wrong: dict[str, float], culprit: str) -> None:
    with pytest.raises(Misconfigured, match=culprit):
        OnlineSetting(**{"pool": 200, "size": 50, "step": 10, **wrong}).fleet(windows(), 1)  # type: ignore[arg-type]


def test_online_windows_without_labels_are_refused() -> None:
    bare = windows()
    bare.y_B[:] = -1
    with pytest.raises(Misconfigured, match="label"):
        OnlineSetting().fleet(bare, 1)
