"""The worker's look at a round's updates: from journal frames to views, and why one update has none."""

import errno
from pathlib import Path

import numpy as np
import pytest

from models.contract import WindowSet
from models.data import window_set
from models.worker import __main__, job_folder, update_views
from models.worker.update_views import FrameAt
from protocol.errors import Reason, Refused, Transient
from protocol.frames.frame import Limits, digest
from protocol.tasks.network import Encoder, Network
from protocol.tasks.task import Modality, Task, Window
from tests.support.coordinator.fake import frame, header, tiny_task

TASK = tiny_task()
STATE = {"head": {"head/w": np.ones(4, np.float32)}}
NONE = WindowSet({}, np.zeros((0, 2), np.bool_), np.zeros((0, 2), np.float32), np.zeros(0, np.int64))


class Trainer:
    """A view is the model's mean under two names; ``fault`` by device."""

    def __init__(self, **fault: Exception) -> None:
        self.fault = fault
        self.held = 0

    def view(self, task, labelled, state, update):
        assert (task, labelled, state) == (TASK, NONE, STATE)
        if update.header.device in self.fault:
            raise self.fault[update.header.device]
        whole = state["head"]["head/w"] + update.tensors["head/w"]
        return {"head": whole.mean(keepdims=True), "encoder/acc": whole.reshape(2, 2)}


def frames_in(folder: Path, **values: float) -> list[FrameAt]:
    """All in one file, as updates that came together lie."""
    found, content = [], b"begin"
    for device, value in values.items():
        data = frame(header(device, 1, "0" * 64), value, 4)
        found.append(FrameAt(device, digest(data), str(folder / "group"), len(content), len(data)))
        content += data
    (folder / "group").write_bytes(content)
    return found


def look(trainer, frames):
    return update_views.view_updates(trainer, TASK, NONE, STATE, frames, Limits())


def test_each_frame_is_read_from_its_place_and_the_views_survive_the_result(tmp_path) -> None:
    frames = frames_in(tmp_path, a=1.0, b=3.0)
    alone = frame(header("c", 1, "0" * 64), 5.0, 4)
    (tmp_path / "alone").write_bytes(alone)
    found, refused = look(Trainer(), [*frames, FrameAt("c", digest(alone), str(tmp_path / "alone"))])
    assert refused == {}
    assert {device: float(view["head"][0]) for device, view in found.items()} == {
        "a": 2.0,
        "b": 4.0,
        "c": 6.0,
    }
    found["d"] = {}  # nothing of its model shows in the labelled windows
    seen, tensors = update_views.packed(found, {"x": Refused(Reason.NON_FINITE, "words")})
    job_folder.save_result(tmp_path, dict(seen), tensors)
    again, refused = job_folder.read_views(tmp_path)
    assert list(again) == ["a", "b", "c", "d"]
    for device, view in found.items():
        assert set(again[device]) == set(view)
        for name, tensor in view.items():
            np.testing.assert_array_equal(again[device][name], tensor)
    assert (refused["x"].reason, refused["x"].detail) == (Reason.NON_FINITE, "words")


def test_one_bad_update_costs_the_others_nothing_and_is_named(tmp_path, capfd) -> None:
    good, rotten, gone, faulty, blind, wild = frames_in(tmp_path, a=1, b=2, c=3, d=4, e=5, f=6)
    content = bytearray((tmp_path / "group").read_bytes())
    content[rotten.at + 40] ^= 1
    (tmp_path / "group").write_bytes(content)
    gone = FrameAt("c", gone.digest, str(tmp_path / "nowhere"))

    class Wild(Trainer):
        def view(self, task, labelled, state, update):
            found = super().view(task, labelled, state, update)
            return {**found, "head": found["head"] * np.inf} if update.header.device == "f" else found

    trainer = Wild(d=KeyError("fc1"), e=Refused(Reason.NON_FINITE, "nothing is finite"))
    found, refused = look(trainer, [good, rotten, gone, faulty, blind, wild])
    assert set(found) == {"a"}
    assert {device: why.reason.value for device, why in refused.items()} == {
        "b": "wrong_digest",
        "c": "wrong_digest",
        "d": "malformed",
        "e": "non_finite",
        "f": "non_finite",
    }
    assert "view of d failed: KeyError" in refused["d"].detail
    assert "head makes no finite numbers" in refused["f"].detail
    assert "KeyError: 'fc1'" in capfd.readouterr().err, "the trace is in the log"


def test_what_is_not_finite_once_it_is_kept_is_refused(tmp_path) -> None:
    class Wide(Trainer):
        def view(self, task, labelled, state, update):
            found = super().view(task, labelled, state, update)
            return {name: np.float64(1e300) * tensor for name, tensor in found.items()}

    found, refused = look(Wide(), frames_in(tmp_path, a=1.0))
    assert found == {}
    assert refused["a"].reason is Reason.NON_FINITE, "the views are kept in float32"


def test_what_torch_says_of_one_update_does_not_stop_the_round(tmp_path) -> None:
    words = "size mismatch for fc1.weight"
    found, refused = look(Trainer(b=RuntimeError(words)), frames_in(tmp_path, a=1.0, b=2.0, c=3.0))
    assert set(found) == {"a", "c"}
    assert refused["b"].reason is Reason.MALFORMED
    assert words in refused["b"].detail


def test_trouble_that_may_pass_is_nobodys_fault(tmp_path, monkeypatch) -> None:
    frames = frames_in(tmp_path, a=1.0)
    full = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8589934592 bytes."
    with pytest.raises(Transient, match="out of memory"):
        look(Trainer(a=RuntimeError(full)), frames)
    with pytest.raises(Transient, match="out of memory"):
        look(Trainer(a=MemoryError()), frames)

    def busy(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(Path, "open", busy)
    with pytest.raises(OSError, match="too many"):
        look(Trainer(), frames)


def test_a_result_that_is_none_is_transient(tmp_path) -> None:
    job_folder.save_result(tmp_path, {"devices": ["a"], "views": [["a", "head", [2]]], "refused": {}}, {})
    with pytest.raises(Transient, match="no readable views"):
        job_folder.read_views(tmp_path)
    job_folder.save_result(
        tmp_path,
        {"devices": ["a"], "views": [["a", "head", [2]]], "refused": {}},
        {update_views.VALUES: np.zeros(1)},
    )
    with pytest.raises(Transient, match="no readable views"):
        job_folder.read_views(tmp_path)


def test_a_method_that_is_not_guided_says_so(tmp_path) -> None:
    task = Task(
        name="t",
        labels=("a", "b"),
        modalities=(Modality(name="acc", channels=2, rate_hz=16),),
        window=Window(length_s=1),
        network=Network(encoders={"acc": Encoder(width=4, depth=1)}, feature_dim=4, hidden_dim=4),
    )
    window_set.save(tmp_path / "own.npz", window_set.empty(task))
    job = job_folder.FinishJob(task, 1, 0, str(tmp_path / "own.npz"))
    job_folder.write_guided(tmp_path, job, {"head": {"head/w": np.zeros(1, np.float32)}})
    assert job_folder.read_job(tmp_path) == job
    said = __main__.answer(tmp_path)
    assert said["kind"] == "Misconfigured"
    assert "'qqr' trains nothing at the coordinator" in said["error"]
    look_at = job_folder.ViewJob(
        task, (FrameAt("d", "0" * 64, "there", 5, 6),), Limits(max_bytes=7), "own.npz"
    )
    job_folder.write_guided(tmp_path, look_at, {})
    assert job_folder.read_job(tmp_path) == look_at
