"""What a header may claim of itself."""

import pytest

from coordinator.ingest.header_checks import MAX_SAMPLES, check_header
from protocol.errors import Reason, Refused
from tests.support.coordinator.fake import header, tiny_task

TASK = tiny_task()


def test_an_honest_header_passes() -> None:
    check_header(TASK, "a", header("a", 1, "0" * 64))
    whole = header(
        "a", 1, "0" * 64, samples=100, counts={"acc": (25, 25), "gyro": (0, 0)}, missing={"acc": 0.5}
    )
    check_header(TASK, "a", whole)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"samples": 0, "counts": {}}, "samples"),
        ({"samples": MAX_SAMPLES + 1}, "samples"),
        ({"samples": 2**31 - 1}, "samples"),
        ({"weight": 4}, "weight"),
        ({"counts": {"acc": (2, 2)}}, "counts.acc"),
        ({"counts": {"acc": (2**31 - 1, 2**31 - 1)}}, "counts.acc"),
        ({"counts": {"acc": (1, 1, 1)}}, "counts.acc"),
        ({"counts": {"gyro": (2, 1)}}, "missing.gyro"),
        ({"samples": 1000, "counts": {"acc": (1000, 0)}, "missing": {"acc": 0.9}}, "missing.acc"),
    ],
)
def test_a_claim_that_cannot_be_is_refused_with_its_field(change, word) -> None:
    with pytest.raises(Refused, match=word) as caught:
        check_header(TASK, "a", header("a", 1, "0" * 64, **change))
    assert caught.value.reason is Reason.OUT_OF_BOUNDS


@pytest.mark.parametrize(
    "change", [{"samples": -1}, {"counts": {"acc": (-1, 1)}}, {"weight": 0}, {"weight": 1 << 21}]
)
def test_what_the_header_cannot_even_say(change) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        header("a", 1, "0" * 64, **change)


def test_what_is_just_possible_passes() -> None:
    check_header(TASK, "a", header("a", 1, "0" * 64, samples=1, weight=1, counts={"acc": (1, 0)}))
    check_header(TASK, "a", header("a", 1, "0" * 64, samples=MAX_SAMPLES, counts={}))


@pytest.mark.parametrize(("counted", "passes"), [(51, True), (52, False)])
def test_a_share_that_is_missing_may_be_off_by_one_window(counted, passes) -> None:
    given = header("a", 1, "0" * 64, samples=100, counts={"acc": (counted, 0)}, missing={"acc": 0.5})
    if passes:
        check_header(TASK, "a", given)
    else:
        with pytest.raises(Refused, match=r"missing\.acc leaves 50\.0 of them"):
            check_header(TASK, "a", given)


@pytest.mark.parametrize(
    ("device", "change", "reason"),
    [
        ("b", {}, Reason.WRONG_DEVICE),
        ("a", {"task": "another"}, Reason.UNKNOWN_TASK),
        ("a", {"method": "another"}, Reason.UNKNOWN_TASK),
        ("a", {"counts": {"nose": (1, 1)}}, Reason.WRONG_MODALITY),
        ("a", {"missing": {"nose": 0.0}}, Reason.WRONG_MODALITY),
        ("a", {"quality": {"nose": 1.0}}, Reason.WRONG_MODALITY),
    ],
)
def test_a_header_of_another_device_task_method_or_modality_is_refused(device, change, reason) -> None:
    given = header("a", 1, "0" * 64).model_copy(update=change)
    with pytest.raises(Refused) as caught:
        check_header(TASK, device, given)
    assert caught.value.reason is reason
