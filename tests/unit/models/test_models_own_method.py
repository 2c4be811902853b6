"""A method in a package: checked as a network is, imported without torch, and then as one of this release."""

import asyncio
import sys
from pathlib import Path

import pytest

from lichen_lab.simulation.training.runner import simulate
from models import package_files, packages, registry
from models.worker import job_folder
from protocol.errors import Misconfigured
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.task import Task
from runtime.process.worker import Worker
from tests.support.agent.data import toy_task
from tests.support.methods.contract_cases import as_bytes, task_of, windows_of
from tests.support.own_package import importable, install
from tests.unit.edge_agent.messaging.test_agent_session import BASIC, make

NAME = "lichen-mean"
FILES = {
    "lichen_mean/__init__.py": (
        "from dataclasses import replace\nfrom models.methods.qqr import METHOD as QQR\n"
        "METHOD = replace(QQR, name='own-mean', title='mean')\n"
    ),
    "lichen_mean/client.py": "from models.methods.qqr.client import make_client as make_client\n",
    "lichen_mean/server.py": "from models.methods.qqr.server import make_server as make_server\n",
}
POINTS = {"lichen.methods/mean": "lichen_mean:METHOD"}


@pytest.fixture
def site(tmp_path):
    with importable(tmp_path / "site") as folder:
        folder.mkdir()
        yield folder
    registry._outside.clear()
    registry.methods.cache_clear()


def own(task: Task) -> Task:
    package = package_files.find_package(NAME).package
    return task.model_copy(update={"method": "own-mean", "packages": (package,)})


def test_a_method_of_a_package_trains_a_fleet_as_one_of_this_release_does(site):
    install(site, FILES, POINTS, name=NAME)
    qqr = task_of(registry.method("qqr"))
    packages.permit([NAME])
    devices = {f"d{i}": windows_of(qqr, seed=i) for i in range(2)}
    test = windows_of(qqr, seed=9)
    plain, packaged = (simulate(task, devices, test, 3, rounds=2) for task in (qqr, own(qqr)))
    assert as_bytes(plain.state) == as_bytes(packaged.state)
    assert [one.metrics for one in plain.rounds] == [one.metrics for one in packaged.rounds]
    assert registry.method("own-mean").home == "lichen_mean"


async def test_a_worker_imports_it_for_a_job_that_allows_it_alone(site, tmp_path):
    install(site, FILES, POINTS, name=NAME)
    task = own(task_of(registry.method("qqr")))
    worker = Worker("models.worker", env={"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"})
    try:
        job_folder.write_init(tmp_path, job_folder.InitJob(task, 0))
        with pytest.raises(Misconfigured, match="does not allow"):
            await worker.run(tmp_path, 60)
        job_folder.write_init(tmp_path, job_folder.InitJob(task, 0, packages=(NAME,)))
        await worker.run(tmp_path, 60)
        assert "head" in await asyncio.to_thread(job_folder.read_state, tmp_path)
    finally:
        await worker.close()


async def test_an_agent_takes_it_if_its_owner_allows_it_and_says_why_not_otherwise(site, tmp_path):
    install(site, FILES, POINTS, name=NAME)
    task = own(toy_task())
    agent = make(tmp_path)
    with pytest.raises(Exception, match="configuration of this machine does not allow"):
        await agent.tasks.accept(TaskAnnouncement.of(task))
    assert "lichen_mean" not in sys.modules
    agent.close()
    agent = make(tmp_path, text=BASIC + f'[packages]\nallow = ["{NAME}"]\n')
    await agent.work.act_on(TaskAnnouncement.of(task))
    assert agent.tasks.workspace.task == task
    agent.close()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            {"lichen_mean/__init__.py": "import torch\nMETHOD = None\n"},
            "import of torch halted",
        ),
        ({"lichen_mean/__init__.py": "METHOD = 7\n"}, r"'own-mean' \(lichen_mean\) is no .*MethodSpec"),
        (
            {"lichen_mean/__init__.py": "from models.methods.qqr import METHOD as METHOD\n"},
            "is no .*MethodSpec of that name",
        ),
        ({"lichen_mean/server.py": None}, r"has no module lichen_mean\.server"),
    ],
)
def test_what_is_no_method_is_refused_in_words(site, files, words):
    every = {path: text for path, text in {**FILES, **files}.items() if text is not None}
    install(site, every, POINTS, name=NAME)
    torch = sys.modules.get("torch")
    with pytest.raises(Misconfigured, match=words):
        registry.admit(own(toy_task()), [NAME])
    assert sys.modules.get("torch") is torch
    with pytest.raises(Misconfigured, match="'own-mean' is no method of this lichen"):
        registry.method("own-mean")


def test_another_build_in_a_process_that_has_imported_one_asks_for_a_restart(site):
    install(site, FILES, POINTS, name=NAME)
    registry.admit(own(toy_task()), [NAME])
    registry.admit(own(toy_task()), [NAME])
    with Path(site, "lichen_mean/server.py").open("a") as file:
        file.write("\n")
    with pytest.raises(Misconfigured, match="has imported other files of it; restart this process"):
        registry.admit(own(toy_task()), [NAME])
