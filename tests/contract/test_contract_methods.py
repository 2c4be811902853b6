"""One suite over every method that the registry finds; a new one needs no new test."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coordinator.aggregation.fold import limits_for
from models.aggregation.masked_sums import layout_of, unsummed_part
from models.contract import Blobs, Profile, Update, blob_of
from models.registry import methods
from models.spec import MethodSpec
from models.tensors import flatten
from protocol import messages
from protocol.errors import Misconfigured, Reason, Refused, Transient
from protocol.frames.frame import decode_frame, digest, encode_frame
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Codec, decode, encode
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.kinds import KINDS
from protocol.tasks.task import Modality, Robust, Task
from tests.support.masked_folds import masked_fold, on_grid
from tests.support.methods.contract_cases import (
    KIND_FLEETS,
    LONG_KIND_FLEETS,
    LONG_OPTIONS,
    OPTIONAL,
    OPTIONS,
    PACKAGED,
    UNJUDGED,
    as_bytes,
    begun,
    context,
    deaf,
    folded,
    frame_of,
    is_owned,
    learnt,
    material_of,
    next_state,
    nothing,
    on_route,
    only_with,
    received,
    served,
    task_of,
    windows_of,
    without_second,
)
from tests.support.own_package import permitted_example
from tests.support.python import python

ROOT = Path(__file__).resolve().parents[2]
EACH = pytest.mark.parametrize("spec", methods().values(), ids=list(methods()))
"""For tests that need no fleet: whatever the options."""
CASES = [
    *((name, options) for name in methods() for options in ("defaults", *OPTIONS.get(name, {}))),
    *PACKAGED.items(),
    *((name, options) for name, fleets in KIND_FLEETS.items() for options in fleets),
]
LONG_CASES = [
    (name, options)
    for of in (LONG_OPTIONS, LONG_KIND_FLEETS)
    for name, cases in of.items()
    for options in cases
]


@pytest.fixture(
    scope="module",
    params=[*CASES, *(pytest.param(case, marks=pytest.mark.long) for case in LONG_CASES)],
    ids="-".join,
)
def case(request) -> tuple[str, str]:
    """A method, and with which options."""
    return request.param


@pytest.fixture(autouse=True)
def permitted(request) -> None:
    """Other tests take the permission back."""
    if "case" in request.fixturenames:
        permitted_example()


@pytest.fixture
def spec(case) -> MethodSpec:
    return methods()[case[0]]


@pytest.fixture(scope="module")
def fleet(case) -> tuple[Task, Blobs, list[Update]]:
    """A task, a state to learn from and five devices' updates, one of them without the second modality."""
    spec, options = methods()[case[0]], case[1]
    task = task_of(spec, options)
    state = begun(spec, task)
    updates = [
        learnt(spec, task, state, f"d{i}", material_of(task, seed=i, missing=0.3 * (i % 2))) for i in range(4)
    ]
    poor = without_second(material_of(task, seed=4))
    updates.append(learnt(spec, task, on_route(spec, task, state), "d4", poor))
    return task, state, updates


@pytest.fixture
def on_windows(spec) -> None:
    """For tests of labels."""
    if spec.material != "windows":
        pytest.skip(f"{spec.name} learns from no windows: there are no labels")


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


def test_a_version_that_is_stored_as_the_method_says_comes_back_to_the_bit(spec, fleet):
    task, state, updates = fleet
    made = next_state(spec, task, 1, state, updates)
    for name, tensor in flatten(made).items():
        kept = encode(tensor, spec.codecs.get(name.rsplit("/", 1)[-1], Codec.FLOAT32))
        assert decode(kept).tobytes() == tensor.tobytes(), name


def test_an_update_holds_no_more_than_the_model_and_what_the_method_adds(fleet):
    task, state, updates = fleet
    limits = limits_for(state, 1 << 26, task)
    for update in updates:
        raw = {name: encode(tensor, Codec.FLOAT32) for name, tensor in update.tensors.items()}
        header, _ = decode_frame(encode_frame(update.header, raw), UpdateHeader, limits)
        assert header == update.header


def test_an_announced_task_is_the_same_task_with_the_same_options(spec, fleet):
    task, _, _ = fleet
    again = messages.decode(messages.encode(TaskAnnouncement.of(task)), TaskAnnouncement).read()
    assert again == task
    assert spec.configure(again) == spec.configure(task)


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


@pytest.fixture(params=ROBUST, ids=lambda r: f"{r.fold}-{r.prototypes}")
def robust(request, spec) -> Robust:
    """One that the method has."""
    if request.param.fold != "mean" and not spec.robust_folds:
        pytest.skip(f"{spec.name} says that its updates cannot be compared value by value")
    return request.param


@EACH
def test_a_kind_of_modality_is_taken_or_refused_by_name(spec):
    task = task_of(spec)
    if task.graph is not None:
        return  # whatever is not a graph is refused already
    for kind in KINDS:
        size = {"height": 8, "width": 8} if kind == "image" else {}
        extra = Modality.model_validate({"name": "extra", "kind": kind, "channels": 2, "rate_hz": 4, **size})
        chosen = task.model_copy(update={"modalities": (*task.modalities, extra)})
        if kind in spec.modality_kinds:
            spec.configure(chosen)
        else:
            with pytest.raises(
                Misconfigured, match=rf"method '{spec.name}': modality 'extra'.*kind '{kind}'"
            ):
                spec.configure(chosen)


def test_a_robust_fold_is_taken_or_refused_as_the_method_says(spec):
    for robust in ROBUST:
        task = task_of(spec).model_copy(update={"robust": robust})
        if spec.robust_folds or robust.fold == "mean":
            spec.configure(task)
        else:
            with pytest.raises(Misconfigured, match=rf"robust\.fold = '{robust.fold}'.*leave it at 'mean'"):
                spec.configure(task)


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


def test_robust_folds_leave_alone_what_nobody_sent(spec, fleet, robust):
    plain, state, updates = fleet
    task = plain.model_copy(update={"robust": robust})
    before, after = as_bytes(state), folded(spec, task, state, [updates[4]])
    second = only_with(spec, task, task.modality_names[1])
    assert all(after[name] == before[name] for name in before if blob_of(name) in second)


@pytest.mark.parametrize("stage", ["keys", "masked", "unmask"])
def test_a_fold_of_masked_updates_has_the_bytes_of_the_plain_fold_of_the_survivors(spec, fleet, stage):
    task, state, updates = fleet
    part = unsummed_part(spec.server().open(task, 1, state))
    assert spec.summed == (not part), "say it in METHOD: secure rounds are refused or taken by it"
    if part:
        pytest.skip(f"{spec.name}: not a sum; see test_a_fold_that_is_no_sum_is_refused_in_words")
    rounded = [on_grid(update) for update in updates]
    masked = masked_fold(spec, task, state, rounded, {stage: ["d3"]})
    left = [u for u in rounded if stage == "unmask" or u.header.device != "d3"]
    assert masked == folded(spec, task, state, left)
    assert masked != as_bytes(state)


def test_a_fold_that_is_no_sum_is_refused_in_words(spec, fleet, robust):
    plain, state, _ = fleet
    task = plain.model_copy(update={"robust": robust})
    fold = spec.server().open(task, 1, state)
    part = unsummed_part(fold)
    if not part:
        assert robust.fold == "mean", f"{spec.name} folds all parts as {robust.prototypes}: a sum"
        assert layout_of(fold).size
        return
    with pytest.raises(Misconfigured, match=f"part '{part}' of the fold: its fold is not a sum"):
        layout_of(fold)


def test_folding_leaves_the_base_alone_and_changes_the_model(spec, fleet):
    task, state, updates = fleet
    before = as_bytes(state)
    after = folded(spec, task, state, updates)
    assert as_bytes(state) == before
    assert {name for name in after if not is_owned(spec, name)} == {
        name for name in before if not is_owned(spec, name)
    }
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
    material, mine = material_of(task, seed=1, missing=0.3), served(spec, state, "d0")
    frames = [
        frame_of(task, "d0", material, spec.client().train(context(task), material, mine, {}))
        for _ in range(2)
    ]
    assert digest(frames[0]) == digest(frames[1])
    first, again, other = (as_bytes(spec.client().initial(task, seed)) for seed in (3, 3, 4))
    assert first == again != other


def test_a_device_that_lacks_a_modality_still_trains(spec, fleet):
    task, state, updates = fleet
    without = updates[-1]
    assert without.tensors
    second, first = (only_with(spec, task, name) for name in task.modality_names[::-1])
    assert not any(blob_of(name) in second for name in without.tensors)
    after, before = folded(spec, task, state, [without]), as_bytes(state)
    assert all(after[name] == before[name] for name in before if blob_of(name) in second)
    assert any(after[name] != before[name] for name in before if blob_of(name) in first)


def test_without_a_labelled_window_training_says_so(spec, fleet):
    if not spec.needs_labels:
        pytest.skip(f"{spec.name} says that it learns without labels")
    task, state, _ = fleet
    windows = windows_of(task, seed=1)
    for useless in (nothing(task), replace(windows, y_B=np.full(len(windows), -1))):
        with pytest.raises(Transient, match=r"d0.*no labelled windows"):
            spec.client().train(context(task), useless, state, {})


def test_without_anything_to_learn_from_training_says_so(spec, fleet):
    if spec.needs_labels:
        pytest.skip(f"{spec.name} says that it needs labels")
    task, state, _ = fleet
    with pytest.raises(Transient, match=rf"d0.*(no|0) {spec.kind.noun}"):
        spec.client().train(context(task), nothing(task), served(spec, state, "d0"), {})


@pytest.mark.usefixtures("on_windows")
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


FORM = {Reason.MALFORMED, Reason.WRONG_TENSORS}


def is_bounded(spec: MethodSpec, tensor: str) -> bool:
    """Whether the method says that it bounds a tensor by itself."""
    return tensor.split("/", 1)[0] in spec.bounded


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
        assert caught.value.reason is reason or (is_bounded(spec, name) and caught.value.reason in FORM)
        assert name in caught.value.detail


def test_wrong_tensors_are_refused_with_the_tensor_named(spec, fleet):
    task, state, updates = fleet
    good = updates[0].tensors
    for name in good:
        shapeless = good | {name: good[name][..., None]}
        missing = {n: t for n, t in good.items() if n != name}
        may_miss = name.startswith(OPTIONAL.get(spec.name, ("\n",)))
        for tensors in (shapeless,) if may_miss else (shapeless, missing):
            with pytest.raises(Refused) as caught:
                spec.server().check(task, state, Update(updates[0].header, tensors))
            assert caught.value.reason is Reason.WRONG_TENSORS or (
                is_bounded(spec, name) and caught.value.reason in FORM
            )
            assert name in caught.value.detail
    strays = [f"{blob}/extra" for blob in state]
    for stray in (*strays, "encoder/nose/fc.weight", "prototypes/nose/values", "projection/nose/weight", "x"):
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
        lambda _: {"samples": 1},
        lambda task: {"counts": {task.modality_names[0]: (1,) * (task.classes + 1)}},
        lambda task: {"counts": {"nose": (1,) * task.classes}},
    ],
    ids=["fewer samples than counted", "classes that the task has not", "unknown modality"],
)
def test_a_header_that_contradicts_the_task_is_refused(spec, fleet, change):
    task, state, updates = fleet
    header = updates[0].header.model_copy(update=change(task))
    with pytest.raises(Refused, match=r"header\.(counts|weight)"):
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
def test_federated_rounds_learn(case, spec, fleet):
    if case[1] in KIND_FLEETS.get(case[0], {}):
        pytest.skip("takes long on images and sound: a long test does it")
    learns(spec, *fleet[:2])


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "options"), [(name, options) for name, fleets in KIND_FLEETS.items() for options in fleets]
)
def test_federated_rounds_learn_from_images_and_sound(name, options):
    spec = methods()[name]
    task = task_of(spec, options)
    learns(spec, task, begun(spec, task))


def learns(spec: MethodSpec, task: Task, state: Blobs) -> None:
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


@pytest.mark.usefixtures("judged", "on_windows")
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
    python("-c", code)
