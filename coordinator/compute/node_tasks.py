"""The bodies of tasks on the nodes of a cluster: functions of their arguments alone. No Ray in here.

Files and frames arrive as bytes: a node needs lichen, and nothing of the coordinator's disk. A task answers
with :class:`Failure` where it fails as foreseen, because a cluster's pickling may not preserve errors.
"""

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.fold import update_norms
from coordinator.aggregation.partition import PartialFold, RoundInput, fold_partially, merge_results
from coordinator.errors import contain_faults
from models.contract import Update
from models.partials import Slice
from models.registry import method
from models.worker.job_folder import JOB
from protocol.errors import Misconfigured, Refused, Transient
from protocol.frames.frame import Limits, decode_frame
from protocol.frames.headers import UpdateHeader

Files = Mapping[str, bytes]
_PACKAGES: Final = ("protocol", "models", "coordinator", "export")
_OUTSIDE: Final = ("windows_path", "calibrate")
"""Fields of jobs that name a file outside of the job's folder."""
_WINDOWS: Final = "outside.npz"
_FRAMES: Final = "frames.bin"


@dataclass(frozen=True)
class Failure:
    """How a task failed: ``kind`` as of :mod:`models.worker.job_loop`; ``reason`` of a refusal."""

    kind: str
    words: str
    reason: str = ""


@dataclass(frozen=True)
class Frames:
    """Frames of accepted updates in one array, which nodes share without copying it.

    Attributes:
        devices: by update; likewise ``digests``.
        ends: where each ends in ``data``.
        data: all bytes.
    """

    devices: tuple[str, ...]
    digests: tuple[str, ...]
    ends: tuple[int, ...]
    data: NDArray[np.uint8]

    @classmethod
    def of(cls, frames: Sequence[tuple[str, str, bytes]]) -> "Frames":
        """Device, digest and bytes of each."""
        ends = np.cumsum([len(data) for _, _, data in frames], dtype=np.int64)
        joined = np.frombuffer(b"".join(data for _, _, data in frames), np.uint8)
        devices, digests = tuple(one[0] for one in frames), tuple(one[1] for one in frames)
        return cls(devices, digests, tuple(ends.tolist()), joined)

    def __iter__(self) -> Iterator["ShippedUpdate"]:
        start = 0
        for device, digest, end in zip(self.devices, self.digests, self.ends, strict=True):
            yield ShippedUpdate(device, digest, self.data[start:end])
            start = end


@dataclass(frozen=True)
class ShippedUpdate:
    """An accepted update on a node (:class:`coordinator.aggregation.fold.RoundUpdate`)."""

    device: str
    digest: str
    data: NDArray[np.uint8]
    folder: None = None

    def read(self, limits: Limits) -> Update:
        """The decoded update; the coordinator has verified its digest."""
        return Update(*decode_frame(self.data.tobytes(), UpdateHeader, limits))


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Digest of the code that results depend on: lichen's own, and the version of NumPy."""
    found = hashlib.sha256(f"{sys.version_info[:2]} {np.__version__}".encode())
    for package in _PACKAGES:
        spec = find_spec(package)
        for root in [] if spec is None else spec.submodule_search_locations or []:
            for file in sorted(Path(root).rglob("*.py")):
                found.update(file.relative_to(root).as_posix().encode() + file.read_bytes())
    return found.hexdigest()


def guarded(code: str, body: str, *arguments: Any) -> Any:
    """Run a function of this module, if this node has the coordinator's code.

    Args:
        code: the coordinator's :func:`code_digest`.
        body: name of the function.
        arguments: its own.
    """
    if code_digest() != code:
        return Failure(
            "Misconfigured",
            "compute.ray: a node of the cluster has another release of lichen or NumPy than the coordinator, "
            "so versions could differ: install the same on all nodes",
        )
    try:
        return _BODIES[body](*arguments)
    except Refused as error:
        return Failure("Refused", error.detail, error.reason.value)
    except (Misconfigured, Transient) as error:
        return Failure(type(error).__name__, str(error))
    except MemoryError as error:
        return Failure("Transient", f"a node of the cluster has no memory left: {error}")
    except OSError as error:
        return Failure("Transient", f"a node of the cluster: {error}")


def measure(limits: Limits, frames: Frames) -> tuple[dict[str, dict[str, float]], dict[str, Refused]]:
    """Norms of updates, and refusals."""
    norms, lost = dict[str, dict[str, float]](), dict[str, Refused]()
    for update in frames:
        try:
            with contain_faults(f"measuring {update.device}'s update"):
                norms[update.device] = update_norms(update.read(limits))
        except Refused as refused:
            lost[update.device] = refused
    return norms, lost


def fold_sums(its: RoundInput, frames: Frames) -> PartialFold:
    """A task that is cut by update."""
    return fold_partially(method(its.task.method).server(), its, list(frames), None)


def fold_slice(its: RoundInput, cut: Slice, *chunks: Frames) -> PartialFold:
    """A task that is cut by slice; it needs all updates, in any chunks."""
    updates = [update for frames in chunks for update in frames]
    return fold_partially(method(its.task.method).server(), its, updates, cut)


def merge(its: RoundInput, *partials: PartialFold) -> PartialFold:
    """Results of :func:`fold_sums` over different updates, as one."""
    return merge_results(method(its.task.method).server(), its, partials)


def work(module: str, files: Files, outside: bytes | None, frames: Frames | None) -> dict[str, bytes]:
    """A job of a worker module, in a folder on this node.

    Args:
        module: ``models.worker.__main__`` or ``export.job``: its ``do`` is called.
        files: of the job's folder.
        outside: the file that the job names outside of its folder; None: none.
        frames: of a view job.

    Returns:
        The files that the job wrote.

    Raises:
        LichenError: as the worker.
    """
    with tempfile.TemporaryDirectory(prefix="lichen-job-") as place:
        folder = Path(place)
        for name, data in files.items():
            (folder / name).write_bytes(data)
        job = json.loads(files[JOB])
        if outside is not None:
            (folder / _WINDOWS).write_bytes(outside)
            job |= {key: str(folder / _WINDOWS) for key in _OUTSIDE if job.get(key)}
        if frames is not None:
            frames.data.tofile(folder / _FRAMES)
            job["frames"] = _places(frames, folder / _FRAMES)
        (folder / JOB).write_text(json.dumps(job))
        import_module(module).do(folder)
        given = {*files, _WINDOWS, _FRAMES}
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in given}


def outside_of(files: Files) -> str | None:
    """The path outside of its folder that a job names; None: none."""
    job = json.loads(files[JOB])
    named = (job.get(key) for key in _OUTSIDE)
    return next((path for path in named if path and Path(path).is_absolute()), None)


def _places(frames: Frames, path: Path) -> list[dict[str, Any]]:
    starts = (0, *frames.ends[:-1])
    return [
        {"device": device, "digest": digest, "path": str(path), "at": start, "size": end - start}
        for device, digest, start, end in zip(
            frames.devices, frames.digests, starts, frames.ends, strict=True
        )
    ]


_BODIES: Final[Mapping[str, Callable[..., Any]]] = {
    "measure": measure,
    "fold_sums": fold_sums,
    "fold_slice": fold_slice,
    "merge": merge,
    "work": work,
}
