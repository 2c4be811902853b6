"""What a method promises to devices without torch, over every method that the registry finds."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.contract import Blobs, Profile, Update, WindowSet
from models.data import window_set
from models.registry import methods
from models.spec import MethodSpec
from protocol.errors import Misconfigured, Refused, Transient
from protocol.frames.frame import digest
from protocol.tasks.task import Task
from tests.support.methods.contract_cases import (
    as_bytes,
    context,
    deaf,
    folded,
    frame_of,
    learnt,
    received,
    task_of,
    windows_of,
)
from tests.support.python import python

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.parametrize("spec", methods().values(), ids=list(methods()))


def features_of(task: Task, windows: WindowSet) -> dict[str, np.ndarray]:
    """Stand in for an encoder: ``z_BD`` of every row, not a number where the modality is missing."""
    rng = np.random.default_rng(len(windows))
    return {
        m.name: np.where(
            windows.present_BM[:, [i]],
            windows.x[m.name].mean(axis=(1, 2))[:, None]
            + rng.normal(size=(len(windows), task.network.feature_dim)),
            np.nan,
        ).astype(np.float32)
        for i, m in enumerate(task.modalities)
    }


def summary(spec: MethodSpec, task: Task, device: str, windows: WindowSet) -> bytes:
    """The frame of a device that only makes prototypes."""
    result = spec.prototyper().summarise(context(task, device), windows, features_of(task, windows), {})
    return frame_of(task, device, windows, result)


def requires_role(spec: MethodSpec) -> None:
    if not spec.prototype_role:
        pytest.skip(f"{spec.name} says that it has no prototype role")


@pytest.fixture(scope="module")
def fleets() -> dict[str, tuple[Task, Blobs, list[Update]]]:
    """Per method: a task, its initial state, two devices that train and three that make prototypes."""
    made = {}
    for spec in methods().values():
        if spec.prototype_role:
            task = task_of(spec)
            state = spec.client().initial(task, seed=3)
            updates = [learnt(spec, task, state, f"d{i}", windows_of(task, seed=i)) for i in range(2)]
            sets = [windows_of(task, seed=i, missing=0.4) for i in (2, 3)] + [deaf(windows_of(task, seed=4))]
            updates += [received(summary(spec, task, f"p{i}", windows)) for i, windows in enumerate(sets)]
            made[spec.name] = (task, state, updates)
    return made


def test_a_prototype_route_is_part_of_the_route_and_of_the_state(spec):
    task = task_of(spec)
    server, state = spec.server(), spec.client().initial(task, seed=3)
    for count in range(len(task.modalities) + 1):
        for names in itertools.combinations(task.modality_names, count):
            route = server.prototype_route(task, names)
            assert set(route) <= set(server.route(task, Profile(names))) & set(state)
            assert bool(route) == (spec.prototype_role and bool(names))


def test_a_method_without_the_role_says_so(spec):
    with pytest.raises(Misconfigured, match=f"{spec.name}.*role prototype"):
        replace(spec, prototype_role=False).prototyper()


def test_prototypes_are_made_without_torch_and_are_the_same_bytes(spec, tmp_path):
    requires_role(spec)
    task, windows = task_of(spec), windows_of(task_of(spec), seed=2, missing=0.4)
    window_set.save(tmp_path / "windows.npz", windows)
    code = (
        "import sys\n"
        "for name in ('torch', 'onnx', 'onnxruntime'): sys.modules[name] = None\n"
        "from pathlib import Path\n"
        "from models import registry\nfrom models.data import window_set as windowset\n"
        "from tests.contract.test_contract_prototypes import summary, task_of\n"
        f"spec, folder = registry.method({spec.name!r}), Path({str(tmp_path)!r})\n"
        "task = task_of(spec)\n"
        "windows = windowset.load(folder / 'windows.npz', task)\n"
        "assert spec.prototyper().modalities(task, windows) == task.modality_names\n"
        "(folder / 'frame').write_bytes(summary(spec, task, 'p0', windows))\n"
    )
    python("-c", code)
    assert digest((tmp_path / "frame").read_bytes()) == digest(summary(spec, task, "p0", windows))


def test_only_modalities_of_labelled_windows_are_wanted(spec):
    requires_role(spec)
    task, wanted = task_of(spec), spec.prototyper().modalities
    windows = windows_of(task, seed=1)
    assert wanted(task, windows) == task.modality_names
    assert wanted(task, deaf(windows)) == ("accelerometer",)
    assert wanted(task, replace(windows, y_B=np.full(len(windows), -1))) == ()
    unlabelled = replace(deaf(windows), y_B=np.full(len(windows), -1))
    assert wanted(task, window_set.concat([unlabelled, deaf(windows)])) == ("accelerometer",)


def test_prototypes_alone_pass_the_checks_and_leave_the_model_alone(spec, fleets):
    requires_role(spec)
    task, state, updates = fleets[spec.name]
    before = as_bytes(state)
    for update in updates[2:]:
        spec.server().check(task, state, update)
        after = folded(spec, task, state, [update])
        assert after.keys() == before.keys()
        assert after != before
        untouched = [name for name in before if name.split("/")[0] in {"encoder", "head"}]
        assert untouched
        assert all(after[name] == before[name] for name in untouched)


def test_devices_that_train_and_that_do_not_fold_together_in_any_order_and_grouping(spec, fleets):
    requires_role(spec)
    task, state, updates = fleets[spec.name]
    expected = folded(spec, task, state, updates)
    for order in itertools.islice(itertools.permutations(updates), 0, 120, 7):
        assert folded(spec, task, state, list(order)) == expected
    for cut in range(1, len(updates)):
        left, right = (spec.server().open(task, 1, state) for _ in range(2))
        for i, update in enumerate(updates):
            (left if i < cut else right).fold(update)
        right.merge(left)
        assert as_bytes(right.close()) == expected


def test_what_a_missing_modality_s_features_hold_does_not_matter(spec):
    requires_role(spec)
    task, windows = task_of(spec), windows_of(task_of(spec), seed=2, missing=0.4)
    features = features_of(task, windows)
    zeros = {name: np.nan_to_num(z_BD) for name, z_BD in features.items()}
    made = [spec.prototyper().summarise(context(task), windows, z, {}) for z in (features, zeros)]
    assert as_bytes({"": made[0].tensors}) == as_bytes({"": made[1].tensors})
    assert made[0].extra == made[1].extra


def test_a_modality_without_features_counts_as_missing(spec, fleets):
    requires_role(spec)
    task, state, _ = fleets[spec.name]
    windows = windows_of(task, seed=2)
    heard = {"accelerometer": features_of(task, windows)["accelerometer"]}
    result = spec.prototyper().summarise(context(task), windows, heard, {})
    assert result.tensors
    assert not any("microphone" in name for name in result.tensors)
    spec.server().check(task, state, received(frame_of(task, "p0", windows, result)))


def test_with_nothing_to_summarise_it_says_so(spec):
    requires_role(spec)
    task = task_of(spec)
    windows = windows_of(task, seed=1)
    unlabelled = replace(windows, y_B=np.full(len(windows), -1))
    for nothing in (window_set.empty(task), unlabelled):
        with pytest.raises(Transient, match=r"d0.*no labelled windows"):
            spec.prototyper().summarise(context(task), nothing, features_of(task, nothing), {})
    with pytest.raises(Transient, match=r"d0.*no labelled windows"):
        spec.prototyper().summarise(context(task), windows, {}, {})


def test_a_prototype_of_windows_that_the_header_does_not_count_is_refused(spec, fleets):
    requires_role(spec)
    task, state, updates = fleets[spec.name]
    for update in updates[2:]:
        counts = {name: (0,) * len(task.labels) for name in task.modality_names}
        header = update.header.model_copy(update={"counts": counts})
        with pytest.raises(Refused, match=r"header\.counts"):
            spec.server().check(task, state, Update(header, update.tensors))
