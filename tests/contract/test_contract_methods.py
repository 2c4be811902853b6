"""One suite over every method that the registry finds (DESIGN section 3); a new one needs no new test."""

import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models import windowset
from models.contract import Blobs, Profile, Update, blob_of
from models.params import flatten
from models.registry import methods
from models.spec import MethodSpec
from protocol.errors import Misconfigured, Reason, Refused, Transient
from protocol.frame import digest, encode_frame
from protocol.task import Robust, Task
from protocol.tensors import Codec, encode
from tests.support.contract_cases import (
    OPTIONS,
    UNJUDGED,
    as_bytes,
    context,
    deaf,
    folded,
    frame_of,
    learnt,
    next_state,
    on_route,
    only_with,
    received,
    task_of,
    windows_of,
)

ROOT = Path(__file__).resolve().parents[2]
EACH = pytest.mark.parametrize("spec", methods().values(), ids=list(methods()))
"""For tests that need no fleet: whatever the options."""
CASES = [(name, options) for name in methods() for options in ("defaults", *OPTIONS.get(name, {}))]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request) -> tuple[str, str]:
    """A method, and with which options."""
    return request.param


@pytest.fixture
def spec(case) -> MethodSpec:
    return methods()[case[0]]


@pytest.fixture(scope="module")
def fleet(case) -> tuple[Task, Blobs, list[Update]]:
    """A task, its initial state and five devices' updates, one of them without a microphone."""
    spec, options = methods()[case[0]], case[1]
    task = task_of(spec, options)
    state = spec.client().initial(task, seed=3)
    updates = [
        learnt(spec, task, state, f"d{i}", windows_of(task, seed=i, missing=0.3 * (i % 2))) for i in range(4)
    ]
    updates.append(learnt(spec, task, on_route(spec, task, state), "d4", deaf(windows_of(task, seed=4))))
    return task, state, updates


@pytest.fixture
def judged(case) -> None:
    """For tests that evaluate the global state."""
    if case in UNJUDGED:
        pytest.skip(UNJUDGED[case])


def test_the_initial_state_travels_by_blobs_and_the_route_names_those_that_a_device_needs(spec, fleet):
    task, state, _ = fleet
    route = spec.server().route(task, Profile(task.modality_names, task.target_names))
    assert set(route) <= set(state)
    assert all(name.startswith(f"{blob}/") for blob, tensors in state.items() for name in tensors)
    assert all(t.dtype == np.float32 and np.isfinite(t).all() for t in flatten(state).values())


def test_an_update_survives_the_codec_and_is_taken(spec, fleet):
    task, state, updates = fleet
    for update in updates:
        again = received(
            encode_frame(update.header, {n: encode(t, Codec.FLOAT32) for n, t in update.tensors.items()})
        )
        assert again.header == update.header
        assert {n: t.tobytes() for n, t in again.tensors.items()} == {
            n: t.tobytes() for n, t in update.tensors.items()
        }
        spec.server().check(task, state, again)


def test_folding_in_any_order_agrees_to_the_bit(spec, fleet):
    task, state, updates = fleet
    results = {
        tuple(sorted(folded(spec, task, state, list(order)).items()))
        for order in itertools.islice(itertools.permutations(updates), 0, 120, 7)
    }
    assert len(results) == 1


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_folding_in_any_grouping_agrees_to_the_bit(spec, fleet, cut):
    task, state, updates = fleet
    left, right = (spec.server().open(task, 1, state) for _ in range(2))
    for i, update in enumerate(updates):
        (left if i < cut else right).fold(update)
    right.merge(left)
    assert as_bytes(right.close()) == folded(spec, task, state, updates)


ROBUST = [
    Robust(fold="clip"),
    Robust(fold="trimmed_mean", trim=0.25),
    Robust(fold="median"),
    Robust(prototypes="geometric_median"),
    Robust(fold="median", prototypes="geometric_median"),
]


@pytest.mark.parametrize("robust", ROBUST, ids=lambda r: f"{r.fold}-{r.prototypes}")
def test_robust_folds_agree_to_the_bit_in_any_order_and_grouping(spec, fleet, robust):
    plain, state, updates = fleet
    task = plain.model_copy(update={"robust": robust})
    expected = folded(spec, task, state, updates)
    assert expected != as_bytes(state)
    for order in itertools.islice(itertools.permutations(updates), 0, 120, 23):
        assert folded(spec, task, state, list(order)) == expected
    left, right = (spec.server().open(task, 1, state) for _ in range(2))
    for i, update in enumerate(updates):
        (left if i % 2 else right).fold(update)
    left.merge(right)
    assert as_bytes(left.close()) == expected
    assert folded(spec, task, state, []) == as_bytes(state)


@pytest.mark.parametrize("robust", ROBUST, ids=lambda r: f"{r.fold}-{r.prototypes}")
def test_robust_folds_leave_alone_what_nobody_sent(spec, fleet, robust):
    if not spec.may_miss_modality:
        pytest.skip(f"{spec.name} says that it needs every modality")
    plain, state, updates = fleet
    task = plain.model_copy(update={"robust": robust})
    before, after = as_bytes(state), folded(spec, task, state, [updates[4]])
    microphone = only_with(spec, task, "microphone")
    assert all(after[name] == before[name] for name in before if blob_of(name) in microphone)


def test_folding_leaves_the_base_alone_and_changes_the_model(spec, fleet):
    task, state, updates = fleet
    before = as_bytes(state)
    after = folded(spec, task, state, updates)
    assert as_bytes(state) == before
    assert after.keys() == before.keys()
    assert after != before


def test_a_round_without_updates_changes_nothing(spec, fleet):
    task, state, _ = fleet
    assert folded(spec, task, state, []) == as_bytes(state)


def test_a_duplicate_changes_nothing_in_a_journal_keyed_by_round_and_device(spec, fleet):
    task, state, updates = fleet
    journal = {(u.header.round, u.header.device): u for u in [*updates, updates[0], *reversed(updates)]}
    assert folded(spec, task, state, list(journal.values())) == folded(spec, task, state, updates)


def test_the_same_seed_gives_the_same_bytes_so_that_a_retrained_update_is_a_recognisable_duplicate(
    spec, fleet
):
    task, state, _ = fleet
    windows = windows_of(task, seed=1, missing=0.3)
    frames = [
        frame_of(task, "d0", windows, spec.client().train(context(task), windows, state, {}))
        for _ in range(2)
    ]
    assert digest(frames[0]) == digest(frames[1])
    first, other = (spec.client().initial(task, seed) for seed in (3, 4))
    assert as_bytes(first) == as_bytes(state) != as_bytes(other)


def test_windows_that_lack_a_modality_still_train(spec, fleet):
    if not spec.may_miss_modality:
        pytest.skip(f"{spec.name} says that it needs every modality")
    task, state, updates = fleet
    without = updates[-1]
    assert without.tensors
    microphone, accelerometer = (only_with(spec, task, name) for name in task.modality_names[::-1])
    assert not any(blob_of(name) in microphone for name in without.tensors)
    after, before = folded(spec, task, state, [without]), as_bytes(state)
    assert all(after[name] == before[name] for name in before if blob_of(name) in microphone)
    assert any(after[name] != before[name] for name in before if blob_of(name) in accelerometer)


def test_without_a_labelled_window_training_says_so(spec, fleet):
    if not spec.needs_labels:
        pytest.skip(f"{spec.name} says that it learns without labels")
    task, state, _ = fleet
    windows = windows_of(task, seed=1)
    for nothing in (windowset.empty(task), replace(windows, y_B=np.full(len(windows), -1))):
        with pytest.raises(Transient, match=r"d0.*no labelled windows"):
            spec.client().train(context(task), nothing, state, {})


def test_a_method_that_learns_without_labels_learns_the_same_with_them(spec, fleet):
    if spec.needs_labels:
        pytest.skip(f"{spec.name} says that it needs labels")
    task, state, _ = fleet
    windows = windows_of(task, seed=1)
    unlabelled = replace(windows, y_B=np.full(len(windows), -1))
    one, other = (spec.client().train(context(task), given, state, {}) for given in (windows, unlabelled))
    assert {n: t.tobytes() for n, t in one.tensors.items()} == {
        n: t.tobytes() for n, t in other.tensors.items()
    }
    with pytest.raises(Transient, match=r"d0.*no windows"):
        spec.client().train(context(task), windowset.empty(task), state, {})


@pytest.mark.parametrize(
    ("value", "reason"),
    [(np.nan, Reason.NON_FINITE), (np.inf, Reason.NON_FINITE), (-1e30, Reason.OUT_OF_BOUNDS)],
)
def test_a_value_that_cannot_be_is_refused_with_the_tensor_named(spec, fleet, value, reason):
    task, state, updates = fleet
    for name in updates[0].tensors:
        tensor = updates[0].tensors[name].copy()
        tensor.flat[-1] = value
        poisoned = Update(updates[0].header, updates[0].tensors | {name: tensor})
        with pytest.raises(Refused) as caught:
            spec.server().check(task, state, poisoned)
        assert caught.value.reason is reason
        assert name in caught.value.detail


def test_wrong_tensors_are_refused_with_the_tensor_named(spec, fleet):
    task, state, updates = fleet
    good = updates[0].tensors
    for name in good:
        cases = [
            good | {name: good[name][..., None]},  # wrong shape
            {n: t for n, t in good.items() if n != name},  # one is missing
        ]
        for tensors in cases:
            with pytest.raises(Refused) as caught:
                spec.server().check(task, state, Update(updates[0].header, tensors))
            assert caught.value.reason is Reason.WRONG_TENSORS
            assert name in caught.value.detail
    for stray in ("encoder/accelerometer/extra", "encoder/nose/fc.weight", "prototypes/nose/values", "x"):
        with pytest.raises(Refused) as caught:
            spec.server().check(
                task, state, Update(updates[0].header, good | {stray: np.ones(3, np.float32)})
            )
        assert caught.value.reason in {Reason.WRONG_TENSORS, Reason.WRONG_MODALITY}
        assert stray in caught.value.detail
    with pytest.raises(Refused):
        spec.server().check(task, state, Update(updates[0].header, {}))


@pytest.mark.parametrize(
    "change",
    [
        {"samples": 1},
        {"counts": {"accelerometer": (1, 2)}},
        {"counts": {"nose": (1, 2, 3)}},
    ],
    ids=["fewer samples than counted", "classes that the task has not", "unknown modality"],
)
def test_a_header_that_contradicts_the_task_is_refused(spec, fleet, change):
    task, state, updates = fleet
    header = updates[0].header.model_copy(update=change)
    with pytest.raises(Refused, match="counts"):
        spec.server().check(task, state, Update(header, updates[0].tensors))


def test_an_extra_message_of_the_wrong_form_is_refused_or_ignored_but_never_crashes(spec, fleet):
    task, state, updates = fleet
    for extra in (
        {"prototypes": 3},
        {"prototypes": {"accelerometer": {"classes": [9], "counts": [1]}}},
        {"x": [None]},
    ):
        header = updates[0].header.model_copy(update={"extra": extra})
        try:
            spec.server().check(task, state, Update(header, updates[0].tensors))
        except Refused as error:
            assert error.detail  # noqa: PT017 - either outcome is right, any other exception is not


@pytest.mark.usefixtures("judged")
def test_federated_rounds_learn(spec, fleet):
    task, state, _ = fleet
    client = spec.client()
    test = windows_of(task, seed=99, count=60)
    for round_ in range(1, 9):
        updates = []
        for i in range(3):
            windows = windows_of(task, seed=10 * round_ + i, count=384, missing=0.3)
            result = client.train(context(task, f"d{i}", round_), windows, state, {})
            updates.append(received(frame_of(task, f"d{i}", windows, result)))
        state = next_state(spec, task, round_, state, updates)
    judged = client.evaluate(task, test, state)
    assert np.sum(judged.confusion_KK) == len(test)
    assert judged.metrics["accuracy"] > 0.6  # chance is 0.33
    half = client.evaluate(task, deaf(test), state)
    assert half.metrics["accuracy"] > 0.5


@pytest.mark.usefixtures("judged")
def test_evaluation_without_labels_says_so(spec, fleet):
    task, state, _ = fleet
    windows = windows_of(task, seed=1)
    with pytest.raises(Misconfigured, match="no labelled window"):
        spec.client().evaluate(task, replace(windows, y_B=np.full(len(windows), -1)), state)


@EACH
def test_an_unknown_option_is_named(spec):
    task = task_of(spec).model_copy(update={"config": {"no_such_option": 1}})
    with pytest.raises(Misconfigured, match=r"config\.no_such_option"):
        spec.configure(task)


@EACH
def test_method_messages_and_server_import_without_torch(spec):
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['onnx'] = None\n"
        f"import models.registry, models.methods.{spec.name} as m\n"
        f"import models.methods.{spec.name}.messages, models.methods.{spec.name}.server as s\n"
        "assert m.METHOD.server() is not None and s.make_server() is not None"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
