"""The jobs of the cluster's child process: each becomes tasks on the nodes, and one result. Torch-free."""

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from coordinator.aggregation.fold import UnusableUpdates
from coordinator.aggregation.partition import FoldTask, Grain, PartialFold, RoundInput, fold_by_tasks
from coordinator.compute import fold_job
from coordinator.compute.cluster import Cluster
from coordinator.compute.fold_job import FoldJob, HelloJob, MeasureJob
from coordinator.compute.node_tasks import Files, Frames, outside_of
from models.aggregation.server_optimizer import model_of
from models.registry import method
from models.worker import job_folder, update_views
from models.worker.job_folder import ViewJob
from models.worker.update_views import FrameAt
from protocol.errors import Refused

FAN_IN: Final = 16
"""Partial results that one task merges."""
VIEWS_A_TASK: Final = 32
_EXPORTS: Final = ("export", "features")
_WORKER: Final = "models.worker.__main__"
_EXPORT: Final = "export.job"
_Lost = dict[str, Refused]


class ClusterJobs:
    """Does jobs of any kind on a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._outside: tuple[object, Any] = (None, None)
        """The last file outside of a job's folder: its identity, and its handle."""

    def do(self, job_dir: Path) -> None:
        """Do the job of a folder and write its result.

        Raises:
            Misconfigured, Refused, Transient: as the tasks.
            Unreachable: the cluster is gone.
        """
        if (kind := fold_job.kind_of(job_dir)) not in fold_job.KINDS:
            self._work(kind, job_dir)
            return
        match fold_job.read_job(job_dir):
            case HelloJob():
                job_folder.save_result(job_dir, {})
            case MeasureJob() as job:
                self._measure(job, job_dir)
            case FoldJob() as job:
                self._fold(job, job_dir)

    def _measure(self, job: MeasureJob, job_dir: Path) -> None:
        norms, lost = dict[str, dict[str, float]](), _Lost()
        waiting = deque(_cut(job.frames, job.updates_a_task))
        running: list[Any] = []
        while waiting or running:
            while waiting and len(running) < self._at_once:
                frames, gone = _read(waiting.popleft())
                lost |= gone
                running.append(self._cluster.submit("measure", job.limits, frames))
            done = self._cluster.first_of(running)
            running.remove(done)
            found, refused = self._cluster.result(done)
            norms |= found
            lost |= refused
        fold_job.save_norms(job_dir, norms, lost)

    @property
    def _at_once(self) -> int:
        """Tasks in the cluster at the same time: enough for its CPUs, and a bound for its memory."""
        return 2 * self._cluster.cpus + 2

    def _fold(self, job: FoldJob, job_dir: Path) -> None:
        state = job_folder.load_state(job_dir / job_folder.STATE)
        its = RoundInput(job.task, job.round, model_of(state), job.limits, job.weighing, job.privacy)
        server, run = (
            method(job.task.method).server(),
            _FoldRun(self._cluster, its, job.frames, self._at_once),
        )
        entries = [_Local(frame) for frame in job.frames]
        try:
            grain = Grain(updates=job.updates_a_task)
            made = fold_by_tasks(server, its, state, entries, run, grain, job.noise)
        except UnusableUpdates as unusable:
            fold_job.save_fold(job_dir, {}, unusable.lost)
        else:
            fold_job.save_fold(job_dir, made, {})

    def _work(self, kind: str, job_dir: Path) -> None:
        """A job of ``models.worker`` or ``export``: as one task; views in several."""
        files = {path.name: path.read_bytes() for path in job_dir.iterdir() if path.is_file()}
        module, outside = _EXPORT if kind in _EXPORTS else _WORKER, self._put_outside(files)
        if kind == "view":
            self._view(job_dir, files, outside)
            return
        handle = self._cluster.submit("work", module, files, outside, None)
        for name, data in self._cluster.result(self._cluster.first_of([handle])).items():
            (job_dir / name).write_bytes(data)

    def _view(self, job_dir: Path, files: Files, outside: Any) -> None:
        job = job_folder.read_job(job_dir)
        assert isinstance(job, ViewJob)  # noqa: S101 - by its kind
        shared, handles, lost = self._cluster.put(files), [], _Lost()
        for part in _cut(job.frames, VIEWS_A_TASK):
            frames, gone = _read(part)
            lost |= gone
            handles.append(self._cluster.submit("work", _WORKER, shared, outside, frames, cpus=job.threads))
        views: dict[str, Any] = {}
        for number, found in enumerate(self._cluster.results(handles)):
            folder = job_dir / f"part-{number}"
            folder.mkdir(exist_ok=True)
            for name, data in found.items():
                (folder / name).write_bytes(data)
            seen, refused = job_folder.read_views(folder)
            views |= seen
            lost |= refused
        summary, tensors = update_views.packed(views, lost)
        job_folder.save_result(job_dir, dict(summary), tensors)

    def _put_outside(self, files: Files) -> Any:
        """A handle of the file that the job names outside of its folder; stored once."""
        path = outside_of(files)
        if path is None:
            return None
        status = Path(path).stat()
        mark = (path, status.st_ino, status.st_mtime_ns, status.st_size)
        if self._outside[0] != mark:
            self._outside = mark, self._cluster.put(Path(path).read_bytes())
        return self._outside[1]


class _FoldRun:
    """Runs the tasks of one fold; sums are merged on the nodes while there are many."""

    def __init__(self, cluster: Cluster, its: RoundInput, frames: Sequence[FrameAt], at_once: int) -> None:
        self._cluster, self._at_once = cluster, at_once
        self._its = cluster.put(its)
        self._frames = {frame.digest: frame for frame in frames}
        self._shared: dict[tuple[str, ...], list[Any]] = {}
        """Chunks of frames that several slices read, by all their digests."""

    def __call__(self, tasks: Sequence[FoldTask]) -> Iterator[PartialFold]:
        waiting, running, sums = deque(tasks), list[Any](), list[Any]()
        summing: set[Any] = set()
        many = sum(task.cut is None for task in tasks) > FAN_IN
        while waiting or running:
            while waiting and len(running) < self._at_once:
                handle, lost = self._start(task := waiting.popleft())
                if lost:
                    yield lost
                running.append(handle)
                if task.cut is None and many:
                    summing.add(handle)
            done = self._cluster.first_of(running)
            running.remove(done)
            if done not in summing:
                yield self._cluster.result(done)
                continue
            summing.remove(done)
            self._cluster.result(done)  # raises if it failed
            sums.append(done)
            if len(sums) == FAN_IN:
                running.append(self._cluster.submit("merge", self._its, *sums))
                sums = []
        yield from map(self._cluster.result, sums)

    def _start(self, task: FoldTask) -> tuple[Any, _Lost]:
        places = [self._frames[digest] for digest in task.digests]
        if task.cut is None:
            frames, lost = _read(places)
            return self._cluster.submit("fold_sums", self._its, frames), lost
        lost = _Lost()
        if task.digests not in self._shared:
            chunks = []
            for part in _cut(places, Grain().updates):
                frames, gone = _read(part)
                chunks.append(self._cluster.put(frames))
                lost |= gone
            self._shared = {task.digests: chunks}
        chunks = self._shared[task.digests]
        return self._cluster.submit("fold_slice", self._its, task.cut, *chunks), lost


class _Local:
    """An accepted update of a job, on this machine (:class:`coordinator.aggregation.fold.RoundUpdate`)."""

    folder = None

    def __init__(self, frame: FrameAt) -> None:
        self.device, self.digest, self.read = frame.device, frame.digest, frame.read


def _cut(frames: Sequence[FrameAt], count: int) -> list[Sequence[FrameAt]]:
    return [frames[start : start + count] for start in range(0, len(frames), count)]


def _read(places: Sequence[FrameAt]) -> tuple[Frames, _Lost]:
    """Frames from the disk, verified, and refusals of those that are gone or damaged."""
    found, lost = list[tuple[str, str, bytes]](), _Lost()
    for place in places:
        try:
            found.append((place.device, place.digest, place.verified()))
        except Refused as refused:
            lost[place.device] = refused
    return Frames.of(found), lost
