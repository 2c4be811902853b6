"""A coordinator's slow work on a real Ray cluster: the same bytes, whatever is cut, killed or away."""

import asyncio
from pathlib import Path

import pytest

from coordinator.aggregation.fold import UnusableUpdates, fold_screened, limits_for, screen_round
from coordinator.aggregation.round_fold import RoundUpdates
from coordinator.compute.runner import ClusterFolds, ClusterRunner
from coordinator.config.compute import ComputeSettings
from coordinator.config.versions import WorkerSettings
from coordinator.storage.update_journal import AcceptedUpdate
from coordinator.workers.jobs import WorkerJobs
from models.data import window_set
from models.registry import methods
from protocol.errors import Transient
from protocol.frames.frame import digest, encode_frame
from protocol.frames.tensors import Codec, encode
from protocol.tasks.folding import Robust
from runtime.process.worker import Unreachable
from tests.support.methods.contract_cases import (
    as_bytes,
    begun,
    labelled_of,
    learnt,
    material_of,
    on_route,
    task_of,
    weighed,
    windows_of,
    without_second,
)
from tests.support.ray_head import RayHead

pytest.importorskip("ray", reason="the extra `ray` is not installed")
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def head():
    one = RayHead()
    one.start()
    yield one
    one.close()


@pytest.fixture
async def cluster(head, tmp_path):
    """Makes the runner of a cluster, and the folds on it."""
    runners = []

    def make(address=head.address, **options):
        settings = ComputeSettings(ray=address, **options)
        runners.append(ClusterRunner(settings, tmp_path / "state" / "jobs", 60.0))
        return runners[-1], ClusterFolds(runners[-1], settings)

    yield make
    for runner in runners:
        await runner.close()


def round_of(name: str, folder: Path, robust: Robust | None = None):
    """A method's task, state, journalled updates, limits and weights."""
    spec = methods()[name]
    task = task_of(spec).model_copy(update={"robust": robust or Robust()})
    state = begun(spec, task)
    updates = [learnt(spec, task, state, f"d{i}", material_of(task, i, missing=0.3)) for i in range(4)]
    updates.append(
        learnt(spec, task, on_route(spec, task, state), "d4", without_second(material_of(task, 4)))
    )
    folder.mkdir(parents=True)
    entries = []
    for update in updates:
        frame = encode_frame(update.header, {n: encode(t, Codec.FLOAT32) for n, t in update.tensors.items()})
        path = folder / f"{update.header.device}.frame"
        path.write_bytes(frame)
        entries.append(AcceptedUpdate(update.header.device, digest(frame), path))
    weighing = weighed(spec, task, state, updates) if spec.guided else None
    return spec.server(), task, state, entries, limits_for(state, 1 << 26, task), weighing


async def test_versions_are_equal_for_one_two_and_seven_tasks_of_every_method(cluster, tmp_path):
    runner, _ = cluster()
    for name, spec in methods().items():
        for robust in (Robust(), Robust(fold="median", prototypes="geometric_median")):
            if robust.fold != "mean" and not spec.robust_folds:
                continue
            folder = tmp_path / "updates" / f"{name}-{robust.fold}"
            server, task, state, entries, limits, weighing = round_of(name, folder, robust)
            expected = as_bytes(fold_screened(server, task, 1, state, entries, limits, weighing))
            for each, order in ((1, entries), (3, entries[::-1]), (7, entries[2:] + entries[:2])):
                folds = ClusterFolds(runner, ComputeSettings(updates_a_task=each))
                made = await folds.fold(server, RoundUpdates(task, 1, order, limits), state, weighing)
                assert as_bytes(made) == expected, (name, robust.fold, each)


async def test_norms_and_damaged_frames_are_as_in_one_process(cluster, tmp_path):
    _, folds = cluster(updates_a_task=2)
    server, task, state, entries, limits, _ = round_of("qqr", tmp_path / "updates")
    updates = RoundUpdates(task, 1, entries, limits)
    assert await folds.screen(updates, {}, {}) == screen_round(task, entries, limits, {})
    entries[1].path.write_bytes(b"rotten")
    entries[3].path.unlink()
    for attempt in (
        folds.screen(updates, {}, {}),
        folds.fold(server, updates, state, None),
    ):
        with pytest.raises(UnusableUpdates) as lost:
            await attempt
        assert {device: why.reason.value for device, why in lost.value.lost.items()} == {
            "d1": "wrong_digest",
            "d3": "wrong_digest",
        }


async def test_views_training_and_evaluation_are_those_of_a_child_process(cluster, tmp_path):
    _, task, state, entries, limits, _ = round_of("tactfl", tmp_path / "updates")
    labelled, test = tmp_path / "labelled.npz", tmp_path / "test.npz"
    window_set.save(labelled, labelled_of(task))
    window_set.save(test, windows_of(task, 9))
    results = []
    for elsewhere in (cluster()[0], None):
        root = tmp_path / ("near" if elsewhere is None else "far") / "jobs"
        jobs = WorkerJobs(task, root, test, WorkerSettings(), labelled, elsewhere=elsewhere)
        views, refused = await jobs.view(state, entries, limits)
        version, metrics = await jobs.finish(1, 5, state)
        results.append(
            (
                {device: {n: t.tobytes() for n, t in view.items()} for device, view in views.items()},
                (refused, as_bytes(version), metrics, as_bytes(await jobs.initial())),
                (await jobs.evaluate(state)).metrics,
            )
        )
        await jobs.close()
    assert results[0] == results[1]
    assert len(results[0][0]) == len(entries)


async def test_a_task_whose_process_is_killed_is_done_again(head, cluster, tmp_path):
    runner, _ = cluster()
    await runner.require()
    task = task_of(methods()["qqr"])
    jobs = WorkerJobs(task, tmp_path / "jobs", None, WorkerSettings(), elsewhere=runner)
    before = {one.pid for one in head.workers()}
    work = asyncio.create_task(jobs.initial())
    while not (running := [one for one in head.workers() if one.pid not in before]):
        assert not work.done(), "the job was over before its process was seen"
        await asyncio.sleep(0.01)
    running[0].kill()
    made = as_bytes(await work)
    assert made == as_bytes(methods()["qqr"].client().initial(task, task.seed))


async def test_a_round_waits_for_a_cluster_that_vanished_or_is_folded_here(cluster, tmp_path):
    own = RayHead()
    try:
        own.start()
        _, folds = cluster(own.address)
        _, replaced = cluster(own.address, fallback=True)
        its = round_of("qqr", tmp_path / "updates")
        server, task, state, entries, limits, weighing = its
        updates = RoundUpdates(task, 1, entries, limits)
        expected = as_bytes(fold_screened(server, task, 1, state, entries, limits, weighing))
        assert as_bytes(await folds.fold(server, updates, state, weighing)) == expected
        own.kill()
        for _attempt in range(2):
            with pytest.raises(Unreachable, match="no Ray head answers") as gone:
                await folds.fold(server, updates, state, weighing)
            assert isinstance(gone.value, Transient)
        made = await replaced.fold(server, updates, state, weighing)
        assert as_bytes(made) == expected
        own.start()
        assert as_bytes(await folds.fold(server, updates, state, weighing)) == expected
    finally:
        own.close()
