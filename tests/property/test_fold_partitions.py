"""Any partition of a round's fold, in any order, gives the bytes of one process: every method, every fold."""

from dataclasses import dataclass
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.aggregation.fold import UnusableUpdates, fold_screened, limits_for
from coordinator.aggregation.partition import (
    FoldTask,
    Grain,
    RoundInput,
    fold_by_tasks,
    fold_partially,
    fold_tasks,
    merge_partially,
)
from models.contract import Update
from models.partials import Slice
from models.registry import methods
from models.tensors import flatten
from protocol.errors import Reason, Refused, Transient
from protocol.tasks.folding import Aggregator, Robust
from tests.support.methods.contract_cases import (
    as_bytes,
    begun,
    learnt,
    material_of,
    on_route,
    task_of,
    weighed,
    without_second,
)

FOLDS = [
    Robust(),
    Robust(fold="clip"),
    Robust(fold="trimmed_mean", trim=0.25),
    Robust(fold="median"),
    Robust(prototypes="geometric_median"),
    Robust(fold="median", prototypes="geometric_median"),
]
CASES = [*((name, {}) for name in methods()), ("disentafl", {"aggregate": "kd", "epochs": 1})]


@dataclass
class Stored:
    """An accepted update, as the fold sees it."""

    update: Update
    spoilt: bool = False
    folder: None = None

    @property
    def device(self) -> str:
        return self.update.header.device

    @property
    def digest(self) -> str:
        return f"{crc32(self.device.encode()) % 997:04d}{self.device}"

    def read(self, _limits) -> Update:
        if self.spoilt:
            raise Refused(Reason.WRONG_DIGEST, f"{self.device} was damaged on disk")
        return self.update


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join([case[0], *case[1]]))
def fleet(request):
    """A method, a task, the state to learn from, five updates (one without a modality), their weights."""
    name, config = request.param
    spec = methods()[name]
    task = task_of(spec)
    task = task.model_copy(update={"config": {**task.config, **config}})
    state = begun(spec, task)
    updates = [learnt(spec, task, state, f"d{i}", material_of(task, i, missing=0.3)) for i in range(4)]
    poor = without_second(material_of(task, seed=4))
    updates.append(learnt(spec, task, on_route(spec, task, state), "d4", poor))
    weighing = weighed(spec, task, state, updates) if spec.guided else None
    return spec, task, state, updates, weighing


@pytest.fixture(params=FOLDS, ids=lambda robust: f"{robust.fold}-{robust.prototypes}")
def robust(request, fleet):
    if request.param.fold != "mean" and not fleet[0].robust_folds:
        pytest.skip("the method says that its updates cannot be compared value by value")
    return request.param


def partition_of(fleet, robust, adaptive="fedavg"):
    spec, task, state, updates, weighing = fleet
    task = task.model_copy(update={"robust": robust, "aggregator": Aggregator(kind=adaptive)})
    its = RoundInput(task, 1, state, limits_for(state, 1 << 26, task), weighing)
    return spec.server(), its, state, [Stored(update) for update in updates]


def runner(server, its, entries, order, merged=1):
    """Runs tasks in that order, each in a fold of its own, and merges sums in groups."""
    by_digest = {entry.digest: entry for entry in entries}

    def run(tasks: tuple[FoldTask, ...]):
        shuffled = sorted(tasks, key=lambda task: order(str(task)))
        sums, slices = [], []
        for task in shuffled:
            mine = [by_digest[digest] for digest in sorted(task.digests, key=order)]
            (slices if task.cut else sums).append(fold_partially(server, its, mine, task.cut))
        if any(isinstance(one, dict) for one in sums):
            merged_sums = sums
        else:
            groups = [sums[first::merged] for first in range(merged)]
            merged_sums = [merge_partially(server, its, group) for group in groups if group]
        return [*slices, *merged_sums]

    return run


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    grain=st.sampled_from([(1, 7), (2, 2), (5, 1), (256, 7), (3, 64)]),
    merged=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_any_partition_gives_the_version_of_one_process(fleet, robust, grain, merged, seed):
    server, its, state, entries = partition_of(fleet, robust)
    expected = as_bytes(fold_screened(server, its.task, 1, state, entries, its.limits, its.weighing))
    values = sum(tensor.size for tensor in flatten(state).values())
    cut = Grain(grain[0], -(-values * len(entries) // grain[1]))

    def order(key: str) -> int:
        return crc32(f"{seed}{key}".encode())

    run = runner(server, its, entries, order, merged)
    assert as_bytes(fold_by_tasks(server, its, state, entries[::-1], run, cut)) == expected
    assert expected != as_bytes(state)


def test_a_server_optimizer_steps_once_after_all_tasks(fleet):
    server, its, state, entries = partition_of(fleet, Robust(), "fedadam")
    if "head" not in state and not fleet[0].optimised:
        pytest.skip("the method has no part that an optimizer steps")
    expected = as_bytes(fold_screened(server, its.task, 1, state, entries, its.limits, its.weighing))
    run = runner(server, its, entries, len)
    assert as_bytes(fold_by_tasks(server, its, state, entries, run, Grain(2))) == expected


def test_all_updates_that_cannot_be_folded_are_named_whatever_the_tasks(fleet):
    server, its, state, entries = partition_of(fleet, Robust(prototypes="geometric_median"))
    entries[1].spoilt = entries[4].spoilt = True
    with pytest.raises(UnusableUpdates) as lost:
        fold_by_tasks(server, its, state, entries, runner(server, its, entries, len), Grain(2))
    assert sorted(lost.value.lost) == ["d1", "d4"]


def test_a_partial_result_of_another_fold_is_refused(fleet):
    server, its, state, entries = partition_of(fleet, Robust())
    with pytest.raises(Transient, match="not readable"):
        fold_by_tasks(server, its, state, entries, lambda _tasks: [b"nothing"], Grain(2))


def test_sums_are_cut_by_update_and_robust_parts_by_slice():
    task = task_of(methods()["qqr"]).model_copy(update={"robust": Robust(fold="median")})
    spec = methods()["qqr"]
    fold = spec.server().open(task, 1, begun(spec, task))
    tasks = fold_tasks(fold, ["c", "a", "b"], 100, Grain(2, 150))
    assert [(t.digests, t.cut) for t in tasks] == [
        (("a", "b"), None),
        (("c",), None),
        (("a", "b", "c"), Slice(0, 2)),
        (("a", "b", "c"), Slice(1, 2)),
    ]
    assert fold_tasks(fold, [], 100) == ()
