"""The coordinator's own labelled windows: checked at the start, kept for the worker, told to nobody."""

import json
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from coordinator.cli.main import app
from coordinator.config.coordinator import load_settings
from coordinator.recovery.state_folder import open_storage
from coordinator.task import load_task
from coordinator.workers.jobs import ExportLineage, WorkerJobs
from coordinator.workers.labelled_data import FILE
from models.data import window_set
from models.worker import job_folder
from protocol.errors import Misconfigured, Transient
from protocol.frames.frame import Limits
from protocol.messages import decode
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.labelling import Labelled
from protocol.tasks.task import Task
from protocol.topics import Kind, broadcast_topic
from runtime.clock import SystemClock
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import FLEET, settings_for, tiny_task
from tests.support.coordinator.guided import Guided, GuidedJobs

TASK = tiny_task().model_copy(update={"labelled": Labelled(file="own/few.npz")})


def few(folder: Path, count: int = 6, task: Task = TASK) -> None:
    """Labelled windows where the task names them."""
    rng = np.random.default_rng(0)
    x = {m.name: rng.normal(size=(count, m.channels, task.samples(m.name))) for m in task.modalities}
    windows = window_set.WindowSet(
        {name: values.astype(np.float32) for name, values in x.items()},
        np.ones((count, 2), np.bool_),
        np.ones((count, 2), np.float32),
        np.arange(count) % 2,
    )
    (folder / "own").mkdir(exist_ok=True)
    window_set.save(folder / "own" / "few.npz", windows)


async def test_devices_and_the_state_folder_do_not_learn_where_the_labelled_windows_lie(tmp_path) -> None:
    few(tmp_path)
    async with bench(tmp_path, TASK, GuidedJobs(), Guided()) as made:
        await made.app.announcer.publish_all()
        said = [p for topic, p, _ in made.link.sent if topic == broadcast_topic(FLEET, Kind.TASK)]
        heard = decode(said[-1], TaskAnnouncement).read()
        assert b"few.npz" not in b"".join(payload for _, payload, _ in made.link.sent)
        assert heard == tiny_task()
        assert "few.npz" not in made.app.storage.store.get_meta("task")
        kept = window_set.load(tmp_path / "coordinator" / FILE, TASK)
        assert kept.y_B.tolist() == [0, 1] * 3
    async with bench(tmp_path, tiny_task(), GuidedJobs(), Guided()):  # it may leave the task, and come to it
        assert not (tmp_path / "coordinator" / FILE).exists()


async def test_what_the_labelled_windows_lack_is_a_warning_at_the_start(tmp_path) -> None:
    few(tmp_path)
    with capture_logs() as logs:
        async with bench(tmp_path, TASK, GuidedJobs(), Guided()):
            pass
    told = [one["why"] for one in logs if one["event"] == "labelled_windows"]
    assert told == [f"class {label!r}: only 3 labelled windows" for label in TASK.labels]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _: None, "few.npz is no file"),
        (lambda folder: few(folder, 0), "no window"),
        (
            lambda folder: few(folder, task=TASK.model_copy(update={"modalities": ()})),
            "modalities none",
        ),
    ],
    ids=["gone", "empty", "another-task"],
)
def test_labelled_windows_that_do_not_fit_are_named_before_anything_is_written(tmp_path, make, words) -> None:
    make(tmp_path)
    settings = settings_for(tmp_path, 1)
    with (
        pytest.raises(Misconfigured, match=words) as found,
        open_storage(settings, TASK, SystemClock(), keeps_messages=False),
    ):
        pass
    assert str(found.value).startswith(f"{tmp_path / 'task.toml'}: labelled: ")
    assert not (tmp_path / "coordinator" / "coordinator.sqlite3").exists()


def write(folder: Path, more: str = "") -> str:
    (folder / "coordinator.toml").write_text(
        f'fleet = "{FLEET}"\nstate_dir = "coordinator"\ntask = "task.toml"\n'
    )
    (folder / "task.toml").write_text(
        'name = "t"\nmethod = "tactfl"\nlabels = ["a", "b"]\n'
        "modalities = [{ name = 'acc', channels = 3, rate_hz = 10 }, "
        "{ name = 'gyro', channels = 3, rate_hz = 10 }]\n" + more
    )
    return str(folder / "coordinator.toml")


def test_a_guided_method_needs_labelled_windows_and_the_check_looks_at_them(tmp_path) -> None:
    file = write(tmp_path)
    with pytest.raises(Misconfigured, match=r"task\.toml: .*name them: \[labelled\] file"):
        load_task(load_settings(Path(file)))
    write(tmp_path, '[labelled]\nfile = "own/few.npz"\n')
    done = CliRunner().invoke(app, ["check", "-c", file, "--format", "json"])
    assert isinstance(done.exception, Misconfigured)
    assert "few.npz is no file" in str(done.exception)
    few(tmp_path)
    done = CliRunner().invoke(app, ["check", "-c", file, "--format", "json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["labelled"] == 6


async def _export_job(made: WorkerJobs, folder) -> str:
    await made._write_export(folder, {}, ExportLineage(1, None, "0" * 64, {}))
    return (folder / "job.json").read_text()


async def test_jobs_tell_the_worker_where_the_kept_windows_lie_and_nothing_of_the_first_file(
    tmp_path, monkeypatch
) -> None:
    settings = settings_for(tmp_path, 1).worker
    asked = []

    async def run(self, folder, _timeout) -> None:
        del self
        asked.append(job_folder.read_job(folder))
        job_folder.save_result(folder, {"metrics": {"loss": 1.0}}, {"head/w": np.ones(1, np.float32)})

    monkeypatch.setattr("runtime.process.worker.Worker.run", run)
    made = WorkerJobs(TASK, tmp_path / "jobs", None, settings, tmp_path / FILE)
    state, metrics = await made.finish(3, 5, {"head": {"head/w": np.zeros(1, np.float32)}})
    assert (state["head"]["head/w"].tolist(), metrics) == ([1.0], {"loss": 1.0})
    [job] = asked
    assert (job.round, job.seed, job.windows_path) == (3, 5, str(tmp_path / FILE))
    assert job.task.labelled is None
    real = json.loads(await _export_job(made, tmp_path))["calibrate"]
    assert real == str(tmp_path / FILE), "an int8 variant is calibrated on them"
    judged = WorkerJobs(TASK, tmp_path / "jobs", tmp_path / "test.npz", settings, tmp_path / FILE)
    assert json.loads(await _export_job(judged, tmp_path))["calibrate"] == str(tmp_path / "test.npz")
    switched = WorkerJobs(TASK, tmp_path / "jobs", None, settings, tmp_path / FILE, int8=False)
    assert "calibrate" not in json.loads(await _export_job(switched, tmp_path))
    without = WorkerJobs(TASK, tmp_path / "jobs", None, settings)
    assert "calibrate" not in json.loads(await _export_job(without, tmp_path))
    with pytest.raises(Transient, match=r"\[labelled\]"):
        await without.finish(3, 5, {})
    with pytest.raises(Transient, match=r"\[labelled\]"):
        await without.view({}, [], Limits())
    assert not list((tmp_path / "jobs").iterdir()), "no folder is left behind"
