"""``lichen bench kills`` in small, and its judge: a judge that cannot find a fault proves nothing."""

from pathlib import Path

import pytest

from lichen_lab.benchmarks.fault_injection import kill_trial, refold, verdict
from lichen_lab.benchmarks.fault_injection.harness import small_fleet
from lichen_lab.benchmarks.fault_injection.verdict import FinalJournal
from models.contract import Blobs
from protocol.errors import Misconfigured, Transient
from protocol.frames.frame import digest, encode_frame
from protocol.frames.tensors import Codec, encode
from tests.support.lab.matrix_model import model
from tests.support.network.brokers import require_mosquitto
from tests.support.tasks import update_header

pytestmark = pytest.mark.long

__all__ = ["model"]

NAMES = ("broker", "coordinator", "a", "b")


def test_a_few_rounds_with_kills_end_with_the_model_of_the_accepted_updates(
    tmp_path: Path, model: Path
) -> None:
    require_mosquitto()
    outcome = kill_trial.run(11, 4, lambda *_: None, tmp_path, light=model)  # the bench trains with torch
    assert outcome.verdict.violations == []
    assert outcome.ended
    assert outcome.verdict.compared == 5
    assert outcome.verdict.accepted >= 8
    assert outcome.verdict.acknowledged + outcome.verdict.waiting == outcome.verdict.accepted
    # one strike a round; a round that is over before its strike, on a fast machine, is not struck
    assert sum(outcome.kills.values()) >= 2


def test_a_seed_names_one_plan_and_everybody_gets_a_turn() -> None:
    plan = kill_trial.plan(3, 20, NAMES)
    assert plan == kill_trial.plan(3, 20, NAMES)
    assert plan != kill_trial.plan(4, 20, NAMES)
    assert {strike.round for strike in plan} == set(range(1, 21))
    struck = [victim for strike in plan for victim in strike.victims]
    assert min(struck.count(name) for name in NAMES) >= 4


def row(number: int, *devices: str) -> dict[str, object]:
    parent = f"m{number - 1}" if number else None
    return {"manifest": f"m{number}", "parent": parent, "devices": list(devices)}


def journal() -> FinalJournal:
    """Two rounds of two devices, all in order."""
    updates = {(r, d): {"digest": f"{r}{d}", "lost": ""} for r in (1, 2) for d in ("a", "b")}
    return FinalJournal({0: row(0), 1: row(1, "a", "b"), 2: row(2, "a", "b")}, updates)


TASK = small_fleet.task(2, 2, 0)
RECEIPTS = {(1, "a", "1a"), (2, "b", "2b")}


def complaints(kept: FinalJournal, receipts: set[tuple[int, str, str]] = RECEIPTS) -> str:
    """All violations of the journal."""
    return "; ".join([*verdict._acknowledged(kept, receipts, set()), *verdict._chain(kept, TASK)])


def test_a_journal_in_order_is_not_complained_about() -> None:
    assert complaints(journal()) == ""


def test_an_update_that_was_reported_as_lost_is_not_complained_about() -> None:
    kept = journal()
    kept.updates[1, "a"]["lost"] = "damaged on disk"
    kept.versions[1]["devices"] = ["b"]
    assert complaints(kept) == ""


def test_the_check_sees_a_lost_receipt() -> None:
    kept = journal()
    del kept.updates[1, "a"]  # type: ignore[attr-defined]  # the journal is a dict here
    kept.versions[1]["devices"] = ["b"]
    assert "round 1: a's update was acknowledged and is not in the journal" in complaints(kept)


def test_the_check_sees_an_acknowledged_update_that_no_version_counts() -> None:
    kept = journal()
    kept.versions[2]["devices"] = ["a"]
    assert "round 2: b's update was acknowledged and is not counted" in complaints(kept)


def test_the_check_sees_other_bytes_than_those_acknowledged() -> None:
    assert "has a receipt for other" in complaints(journal(), {(1, "a", "other")})


def test_the_check_sees_a_device_that_is_counted_twice() -> None:
    kept = journal()
    kept.versions[1]["devices"] = ["a", "b", "b"]
    assert "counts a device twice" in complaints(kept)


def test_the_check_sees_an_update_that_was_never_accepted() -> None:
    kept = journal()
    kept.versions[1]["devices"] = ["a", "b", "c"]
    assert "version 1 counts c, which has no accepted update" in complaints(kept)


def test_the_check_sees_a_broken_chain_and_a_missing_version() -> None:
    kept = journal()
    kept.versions[2]["parent"] = "m0"
    assert "version 2 is not a child of version 1" in complaints(kept)
    del kept.versions[2]  # type: ignore[attr-defined]  # as above
    assert "versions [0, 1], expected 0 to 2" in complaints(kept)


def first() -> Blobs:
    """A model of the task's shape, without torch."""
    import numpy as np  # noqa: PLC0415 - only here

    prototypes = {
        f"prototypes/{name}": {
            f"prototypes/{name}/values": np.zeros((3, 16), np.float32),
            f"prototypes/{name}/rounds": np.zeros(3, np.float32),
        }
        for name in ("acc", "gyr")
    }
    return {"head": {"head/w": np.zeros(8, np.float32)}} | prototypes


def frame(device: str, value: float, round_: int = 1) -> bytes:
    import numpy as np  # noqa: PLC0415 - only here

    head = update_header(TASK, device, round=round_, samples=3, extra={"prototypes": {}})
    return encode_frame(head, {"head/w": encode(np.full(8, value, np.float32), Codec.FLOAT32)})


def again(folder: Path, *frames: bytes, second: tuple[bytes, ...] = ()) -> list[str]:
    """Refold one round, and another one where there are frames of it."""
    kept = folder / "frames"
    kept.mkdir(parents=True)
    counted: dict[int, list[tuple[str, str]]] = {}
    for round_, payloads in ((1, frames), (2, second)):
        for name, payload in zip("abc", payloads, strict=False):
            (kept / digest(payload)).write_bytes(payload)
            counted.setdefault(round_, []).append((name, digest(payload)))
    return refold.manifests(TASK, first(), counted, kept.joinpath, folder / "again")


def test_one_other_bit_in_one_update_is_another_model(tmp_path: Path) -> None:
    one = again(tmp_path / "1", frame("a", 0.5), frame("b", 0.25))
    assert again(tmp_path / "2", frame("a", 0.5), frame("b", 0.25)) == one
    other = again(tmp_path / "3", frame("a", 0.5), frame("b", 0.2500002))
    assert other[0] == one[0]
    assert other[1] != one[1]
    assert again(tmp_path / "4", frame("a", 0.5))[1] != one[1], "an update left out"


def test_rounds_are_screened_against_the_round_before_as_the_coordinator_does(tmp_path: Path) -> None:
    three = tuple(frame(name, 0.5) for name in "abc")
    # far from this round's median, but not from the last one's
    calm = tuple(frame(name, value, 2) for name, value in (("a", 0.01), ("b", 0.01), ("c", 0.5)))
    assert len(again(tmp_path / "1", *three, second=calm)) == 3
    with pytest.raises(Transient, match=r"round 2 cannot be folded again.*outlier"):
        again(tmp_path / "2", *three, second=(frame("a", 50.0, 2),))  # nobody beside it to compare with


def test_a_frame_that_was_not_kept_whole_is_a_finding(tmp_path: Path) -> None:
    payload = frame("a", 0.5)
    (tmp_path / digest(payload)).write_bytes(payload[:-1])
    with pytest.raises(Transient, match="round 1 cannot be folded again"):
        refold.manifests(TASK, first(), {1: [("a", digest(payload))]}, tmp_path.joinpath, tmp_path / "again")


def test_a_round_that_frames_alone_do_not_decide_is_not_folded_as_if_they_did(tmp_path: Path) -> None:
    guided = TASK.model_copy(update={"method": "tactfl"})
    with pytest.raises(Misconfigured, match="'tactfl' is guided"):
        refold.manifests(guided, first(), {1: []}, tmp_path.joinpath, tmp_path / "again")
