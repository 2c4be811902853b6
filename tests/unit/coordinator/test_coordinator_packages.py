"""A task with a package at a coordinator: checked at the start, and every job says what is allowed."""

import asyncio
import json

import pytest

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.task import load_task
from coordinator.workers.jobs import ExportLineage, WorkerJobs
from lichen_lab.simulation.processes.fleet_files import write_toml
from models.worker import job_folder
from protocol.errors import Misconfigured
from protocol.frames.frame import Limits
from protocol.tasks.task import Task
from tests.support.agent.data import toy_task
from tests.support.own_package import NAME, importable, install_example, with_own


class Recorder:
    """Takes jobs, and does none."""

    def __init__(self) -> None:
        self.allowed: list[list[str]] = []

    async def run(self, job_dir, timeout_s: float) -> None:  # noqa: ARG002 - as a worker's
        self.allowed.append(json.loads((job_dir / job_folder.JOB).read_bytes())["packages"])
        raise Misconfigured("no job is done here")

    async def close(self) -> None:
        """Nothing runs."""


def settings(folder, task: Task, *allow: str) -> CoordinatorSettings:
    write_toml(folder / "task.toml", task.model_dump(mode="json", exclude_none=True))
    return CoordinatorSettings.model_validate(
        {
            "fleet": "f",
            "state_dir": folder / "state",
            "task": folder / "task.toml",
            "packages": {"allow": allow},
        }
    )


def test_a_coordinator_starts_only_on_what_its_own_configuration_allows(tmp_path):
    with importable(tmp_path / "site") as site:
        task = with_own(toy_task(), install_example(site))
        assert load_task(settings(tmp_path, task, NAME))[0].packages == task.packages
        with pytest.raises(Misconfigured, match=r"does not allow; .*\[packages\] allow = "):
            load_task(settings(tmp_path, task))
        with (site / "lichen_example_net.py").open("a") as file:
            file.write("# mine\n")
        with pytest.raises(Misconfigured, match="another build"):
            load_task(settings(tmp_path, task, NAME))


@pytest.mark.parametrize("allow", [(), (NAME,)])
def test_every_job_says_what_is_allowed(tmp_path, allow):
    recorder, made = Recorder(), settings(tmp_path, toy_task(), *allow)
    (tmp_path / "own.npz").write_bytes(b"")
    jobs = WorkerJobs(
        toy_task(),
        tmp_path / "jobs",
        tmp_path / "own.npz",
        made.worker,
        tmp_path / "own.npz",
        packages=made.packages.allow,
        elsewhere=recorder,
    )
    lineage = ExportLineage(1, None, "0" * 64, {})
    for job in (
        jobs.initial(),
        jobs.evaluate({}),
        jobs.export({}, lineage),
        jobs.features(),
        jobs.view({}, [], Limits()),
        jobs.finish(1, 0, {}),
    ):
        with pytest.raises(Misconfigured, match="no job is done here"):
            asyncio.run(job)
    assert recorder.allowed == [list(allow)] * 6
