"""What a routed method promises to devices that hold parts of its model, over every one that there is."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from models.contract import Blobs, LocalResult, Profile, blob_of
from models.registry import methods
from models.spec import MethodSpec
from protocol.errors import Refused
from protocol.output_names import outputs
from protocol.tasks.task import Task
from tests.support.methods.contract_cases import OPTIONS, folded, frame_of, received
from tests.support.methods.routed_cases import (
    PROFILES,
    context,
    digests,
    fetched,
    learnt,
    predicted,
    task_of,
    windows_of,
)
from tests.support.python import python

ROOT = Path(__file__).resolve().parents[2]
ROUTED = [name for name, spec in methods().items() if spec.routed]
CASES = [
    pytest.param((name, options), marks=[] if options == "defaults" else [pytest.mark.long])
    for name in ROUTED
    for options in ("defaults", *OPTIONS.get(name, {}))
]
EACH_PROFILE = pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request) -> tuple[str, str]:
    """A method, and with which options."""
    return request.param


@pytest.fixture
def spec(case) -> MethodSpec:
    return methods()[case[0]]


@pytest.fixture(scope="module")
def fleet(case) -> tuple[Task, Blobs, dict[Profile, LocalResult]]:
    """A task, its initial state, and what a device of each profile makes of a round."""
    spec = methods()[case[0]]
    task = task_of(spec, case[1])
    state = spec.client().initial(task, seed=3)
    made = {
        p: learnt(spec, context(task, p), windows_of(task, p, i), state, {})
        for i, p in enumerate(PROFILES.values())
    }
    return task, state, made


def sent(task, profile, result):
    return received(frame_of(task, "d0", windows_of(task, profile, 0), result))


def test_a_device_that_reads_or_predicts_less_has_a_part_of_the_route(spec, fleet):
    task, state, _ = fleet
    route = spec.server().route
    whole = route(task, PROFILES["all"])
    assert set(whole) <= set(state)
    for profile in PROFILES.values():
        assert set(route(task, profile)) <= set(whole)
        assert set(spec.router().first(task, profile)) <= set(route(task, profile))
    for one, two in itertools.permutations(("accelerometer", "microphone", "another target"), 2):
        assert not set(route(task, PROFILES[one])) <= set(route(task, PROFILES[two]))
    odd = Profile(("nose", "accelerometer"), ("taste", "label"))
    assert route(task, odd) == route(task, PROFILES["accelerometer"])
    assert spec.router().first(task, odd) == spec.router().first(task, PROFILES["accelerometer"])


@EACH_PROFILE
def test_the_router_chooses_a_part_of_the_route_from_its_first_blobs_alone(spec, fleet, profile):
    task, state, _ = fleet
    windows = windows_of(task, profile, 1)
    for round_ in range(1, 6):
        at = context(task, profile, round_=round_)
        chosen = fetched(spec, at, windows, state, {})
        assert set(spec.router().first(task, profile)) <= set(chosen)
        assert set(chosen) <= set(spec.server().route(task, profile))
        assert list(chosen) == list(fetched(spec, at, windows, state, {}))


@EACH_PROFILE
def test_an_update_holds_tensors_of_the_chosen_blobs_alone_and_moves_no_other(spec, fleet, profile):
    task, state, made = fleet
    index = list(PROFILES.values()).index(profile)
    route = set(fetched(spec, context(task, profile), windows_of(task, profile, index), state, {}))
    update = sent(task, profile, made[profile])
    assert update.tensors
    assert {blob_of(name) for name in update.tensors} <= route
    spec.server().check(task, state, update)
    fold = spec.server().open(task, 1, state)
    fold.fold(update)
    before, after = digests(state), digests(fold.close())
    assert after.keys() == before.keys()
    moved = {name for name in before if after[name] != before[name]}
    assert moved
    assert moved <= {blob_of(name) for name in update.tensors}


def test_devices_of_all_kinds_fold_together_in_any_order(spec, fleet):
    task, state, made = fleet
    updates = [sent(task, profile, result) for profile, result in made.items()]
    expected = folded(spec, task, state, updates)
    for order in itertools.islice(itertools.permutations(updates), 0, 120, 17):
        assert folded(spec, task, state, list(order)) == expected


def test_a_device_cannot_pass_for_one_of_another_profile(spec, fleet):
    task, state, made = fleet
    for mine, theirs in itertools.permutations(made, 2):
        update = sent(task, mine, made[mine])
        header = update.header.model_copy(update={"extra": made[theirs].extra})
        with pytest.raises(Refused) as caught:
            spec.server().check(task, state, type(update)(header, update.tensors))
        assert caught.value.detail


def test_a_device_that_gains_a_sensor_or_a_target_goes_on_with_a_longer_route(spec, fleet):
    task, state, made = fleet
    few = PROFILES["accelerometer"]
    private = made[few].private
    for many in (PROFILES["both"], PROFILES["all"], PROFILES["another target"], few):
        windows, at = windows_of(task, many, 7), context(task, many, round_=2)
        result = learnt(spec, at, windows, state, private)
        update = sent(task, many, result)
        spec.server().check(task, state, update)
        assert set(spec.server().serving_route(task, many, result.extra)) <= set(
            spec.server().route(task, many)
        )
        private = result.private


@EACH_PROFILE
def test_the_serving_route_alone_makes_a_model_of_the_profile(spec, fleet, profile):
    task, state, made = fleet
    windows = windows_of(task, profile, 5, count=6)
    for extra in (None, made[profile].extra):
        route = spec.server().serving_route(task, profile, extra)
        assert list(route) == sorted(route)
        blobs = {name: state[name] for name in route}
        model = spec.client().inference_model(task, blobs)
        assert tuple(model.modalities) == profile.modalities
        assert tuple(t.name for t in model.targets) == profile.targets
        found = predicted(spec, task, blobs, windows)
        assert len(found) == len(outputs(model.targets))
        assert all(len(y) == 6 and np.isfinite(y).all() for y in found)
        own = predicted(spec, task, spec.blended(task, blobs, made[profile].private), windows)
        personal = spec.personal(spec.configure(task))
        assert any(not np.array_equal(a, b) for a, b in zip(found, own, strict=True)) == bool(personal)


@EACH_PROFILE
def test_what_a_secure_round_tells_of_a_message_gives_the_same_serving_route(spec, fleet, profile):
    task, _, made = fleet
    server, extra = spec.server(), made[profile].extra
    told = server.serving_message(extra)
    assert told.items() <= extra.items()
    assert server.serving_message(told) == told
    assert server.serving_route(task, profile, told) == server.serving_route(task, profile, extra)


def test_the_serving_route_of_a_message_that_is_none_is_refused(spec, fleet):
    task, _, made = fleet
    good = made[PROFILES["all"]].extra
    wrong = [{}, {"x": 1}, *({**good, key: None} for key in good), *({**good, key: -1} for key in good)]
    for extra in [*wrong, *({**good, key: [10**9]} for key in good)]:
        try:
            route = spec.server().serving_route(task, PROFILES["all"], extra)
        except Refused as error:
            assert error.detail  # noqa: PT017 - either outcome is right, any other exception is not
        else:
            assert set(route) <= set(spec.server().route(task, PROFILES["all"]))


def test_each_device_learns_its_own_part(spec, fleet):
    """By the rounds of Algorithm 1, whatever the fleet shares: a device's own model beats chance by far."""
    task, state, _ = fleet
    devices = {"d0": PROFILES["accelerometer"], "d1": PROFILES["both"]}
    private: dict = {name: {} for name in devices}
    last: dict = dict.fromkeys(devices)
    for round_ in range(1, 7):
        fold = spec.server().open(task, round_, state)
        for i, (name, profile) in enumerate(devices.items()):
            windows = windows_of(task, profile, 10 * round_ + i, count=384)
            result = learnt(spec, context(task, profile, name, round_), windows, state, private[name])
            fold.fold(sent(task, profile, result))
            private[name], last[name] = result.private, result.extra
        state = fold.close()
    for name, profile in devices.items():
        test = windows_of(task, profile, 99, count=60)
        route = spec.server().serving_route(task, profile, last[name])
        own = spec.blended(task, {blob: state[blob] for blob in route}, private[name])
        hits_B = predicted(spec, task, own, test)[0].argmax(axis=1) == test.y_B
        assert hits_B.mean() > 0.6  # chance is 0.33


@pytest.mark.parametrize("name", ROUTED)
def test_the_router_and_what_is_personal_import_without_torch(name):
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['onnx'] = None\n"
        "from models.registry import method\n"
        f"import models.methods.{name}.personal\n"
        f"assert method({name!r}).router() is not None"
    )
    python("-c", code)
