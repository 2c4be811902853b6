"""The attacks of the benchmark do what they say; the simulated fleet treats them as a coordinator does."""

import numpy as np
import pytest

from coordinator.aggregation.fold import fold_round, limits_for, update_norms
from coordinator.aggregation.outlier_screen import screen
from coordinator.ingest.header_checks import check_header
from coordinator.round_machine.batch import ReceivedUpdate
from coordinator.storage.database import Database
from coordinator.storage.update_journal import Journal
from lichen_lab.benchmarks.suite.coordinator.hostile_device import BELOW_THE_SCREEN
from lichen_lab.benchmarks.support.hostile_updates import (
    ATTACKS,
    absurd_counts,
    flipped,
    garbage,
    not_a_number,
)
from lichen_lab.simulation.data.streams import Fixed
from lichen_lab.simulation.training.runner import VirtualDevice, simulate
from models.contract import ClientContext, Update
from models.data import window_set
from models.methods.qqr.client import make_client
from models.methods.qqr.server import make_server
from models.tensors import flatten
from protocol.errors import Reason, Refused
from protocol.frames.frame import decode_frame, digest, open_frame
from protocol.frames.headers import UpdateHeader
from protocol.tasks.folding import Robust
from tests.support.methods.qqr_cases import task, windows

TASK = task()
STATE = make_client().initial(TASK, 0)


@pytest.fixture(scope="module")
def honest() -> bytes:
    device = VirtualDevice("d4", Fixed(windows()))
    return device.update(ClientContext(TASK, "d4", 1, 0), make_client(), STATE, "0" * 64)[0]


def received(frame: bytes) -> Update:
    update = Update(*decode_frame(frame, UpdateHeader))
    check_header(TASK, "d4", update.header)
    make_server().check(TASK, STATE, update)
    return update


def test_the_honest_frame_is_taken(honest):
    assert received(honest).header.samples == 12


@pytest.mark.parametrize("round_", [1, 2])
def test_not_a_number_is_refused(honest, round_):
    with pytest.raises(Refused) as caught:
        received(not_a_number(honest, round_))
    assert caught.value.reason is Reason.NON_FINITE


@pytest.mark.parametrize("round_", range(1, 9))
def test_garbage_is_refused(honest, round_):
    with pytest.raises(Refused):
        received(garbage(honest, round_))
    assert garbage(honest, round_) == garbage(honest, round_)


@pytest.mark.parametrize("round_", range(1, 6))
def test_absurd_counts_are_refused(honest, round_):
    with pytest.raises(Refused) as caught:
        received(absurd_counts(honest, round_))
    assert caught.value.reason in {Reason.MALFORMED, Reason.OUT_OF_BOUNDS, Reason.WRONG_TENSORS}


def test_counts_that_are_only_huge_are_taken_and_buy_no_influence(honest):
    huge = received(absurd_counts(honest, 6))
    assert huge.header.samples == 10_000_000
    folds = []
    for update in (huge, received(honest)):
        fold = make_server().open(TASK, 1, STATE)
        fold.fold(update)
        folds.append({name: tensor.tobytes() for name, tensor in flatten(fold.close()).items()})
    assert folds[0] == folds[1]


def test_a_sign_flip_passes_every_check_and_only_the_screen_sees_it(honest):
    far, near = received(flipped(100.0)(honest, 1)), received(flipped(BELOW_THE_SCREEN)(honest, 1))
    usual = update_norms(received(honest))
    fleet = {"a": usual, "b": usual, "c": usual, "d": usual}
    factor = Robust().outlier_factor
    assert set(screen({**fleet, "d4": update_norms(far)}, {}, factor).lost) == {"d4"}
    assert not screen({**fleet, "d4": update_norms(near)}, {}, factor).lost


@pytest.mark.parametrize("attack", ["NaN", "sign flip x 100", "garbage bytes", "all in turn"])
def test_a_simulated_fleet_learns_the_same_bits_as_without_the_malicious_device(attack):
    fleet = {f"d{n}": window_set.select(windows(), np.arange(12) != n) for n in range(5)}
    hostile = simulate(TASK, fleet, None, 0, rounds=2, tamper={"d4": ATTACKS[attack]})
    absent = simulate(TASK, {**fleet, "d4": window_set.empty(TASK)}, None, 0, rounds=2)
    assert all("d4" in record.refused and "d4" not in record.accepted for record in hostile.rounds)
    ours, theirs = flatten(hostile.state), flatten(absent.state)
    assert {n: t.tobytes() for n, t in ours.items()} == {n: t.tobytes() for n, t in theirs.items()}


def test_without_a_screen_a_sign_flip_is_folded():
    fleet = {f"d{n}": windows() for n in range(5)}
    open_ = TASK.model_copy(update={"robust": Robust(outlier_factor=0)})
    history = simulate(open_, fleet, None, 0, rounds=1, tamper={"d4": flipped(100.0)})
    assert "d4" in history.rounds[0].accepted


def test_a_robust_fold_of_the_journal_spills_beside_the_frames_and_leaves_nothing_there(tmp_path):
    robust = TASK.model_copy(update={"robust": Robust(fold="median", prototypes="geometric_median")})
    entries = []
    for n in range(5):
        device = VirtualDevice(f"d{n}", Fixed(window_set.select(windows(), np.arange(12) != n)), n)
        frame = device.update(ClientContext(TASK, f"d{n}", 1, n), make_client(), STATE, "0" * 64)[0]
        frame = flipped(BELOW_THE_SCREEN)(frame, 1) if n == 4 else frame
        with Database(tmp_path / "c.sqlite3") as store:
            journal, head = Journal(store, tmp_path / "updates"), open_frame(frame, UpdateHeader)[0]
            journal.write(1, digest(frame), frame)
            journal.record(ReceivedUpdate(head, digest(frame), len(frame)), 1.0)
            entries = journal.entries(1, [f"d{i}" for i in range(5)])
    before = sorted(path.name for path in (tmp_path / "updates/1").iterdir())
    limits = limits_for(STATE, 1 << 20)
    one = fold_round(make_server(), robust, 1, STATE, entries, limits)[0]
    other = fold_round(make_server(), robust, 1, STATE, entries[::-1], limits)[0]
    assert {n: t.tobytes() for n, t in flatten(one).items()} == {
        n: t.tobytes() for n, t in flatten(other).items()
    }
    assert sorted(path.name for path in (tmp_path / "updates/1").iterdir()) == before
    mean = fold_round(make_server(), TASK, 1, STATE, entries[:4], limits)[0]
    hurt = fold_round(make_server(), TASK, 1, STATE, entries, limits)[0]
    name = "head/fc2.weight"
    good = flatten(mean)[name] - flatten(STATE)[name]

    def off(state) -> float:
        return float(np.abs(flatten(state)[name] - flatten(STATE)[name] - good).sum())

    assert off(one) < off(hurt)
