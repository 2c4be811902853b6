"""Real daemons: two tasks on the same two devices make, bit for bit, the versions that each makes alone."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from coordinator.status import history
from lichen_lab.benchmarks.support.fleet import ProcessFleet
from lichen_lab.simulation.processes.fleet_files import write_toml
from protocol.errors import LichenError
from protocol.frames.headers import Manifest
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task
from tests.e2e.test_prototype_fleet import ONE_THREAD, REST, WALK, WAVE, record, task_of

pytestmark = pytest.mark.long
DEVICES = {"left": 1, "right": 2}
SECONDS, WINDOWS = 80.0, 79
"""A recording, and its windows with a label: training waits for all, so each round has the same."""
MAIN_ROUNDS, FURTHER_ROUNDS = 5, 3
EPOCHS = 150
"""Of the main task: seconds of training a round, so that the further one begins in the middle of one."""
QUIET: Mapping[str, Any] = {"spread_s": 0.1, "keep_versions": 20, "export": {"enabled": False}}


def gestures(rounds: int) -> Task:
    wanted = Rounds(count=rounds, deadline_s=200, min_devices=2, min_windows=WINDOWS)
    task = task_of(rounds, 2)
    return task.model_copy(update={"rounds": wanted, "config": {**task.config, "epochs": EPOCHS}})


def waves() -> Task:
    """Another task on the same sensors: one modality, another seed and another window of training."""
    task = gestures(FURTHER_ROUNDS)
    network = task.network.model_copy(update={"encoders": {"acc": task.network.encoders["acc"]}})
    changes = {"name": "waves", "seed": 7, "modalities": task.modalities[:1], "network": network}
    return task.model_copy(update={**changes, "config": {"epochs": 2}})


class Fleet(ProcessFleet):
    """Whose coordinator and devices may have a further task."""

    def begin(self, *, further: bool) -> None:
        self.broker()
        self.coordinator(ONE_THREAD, **QUIET)
        for name, seed in DEVICES.items():
            file = record(self.root / f"{name}.npz", (REST, WALK, WAVE), seed, SECONDS)
            tables = {"tasks": [{"name": "waves"}]} if further else {}
            self.agent(name, file, speed=40, env=ONE_THREAD, infer={"enabled": False}, **tables)

    def add(self, task: Task) -> None:
        """A further task for the coordinator that runs."""
        file = self.files.config("waves-task")
        write_toml(file, task.model_dump(mode="json", exclude_none=True))
        tables = {"tasks": [{"name": "waves", "task": str(file)}]}
        write_toml(self.files.config("coordinator"), self.files.coordinator(QUIET, tables))
        os.kill(self.pid("coordinator"), signal.SIGHUP)

    def versions(self, task: str | None = None) -> dict[int, dict[str, str]]:
        """Version -> digests of its parts: bit for bit what devices train from, and the coordinator folds on.

        The manifest names the training run, too, which is another one each time.
        """
        state = self.files.state("coordinator")
        state = state if task is None else state / "tasks" / task
        try:
            rows = history.read(state)["versions"]
        except LichenError:  # it is only just being made
            return {}
        blobs = {row["version"]: state / "blobs" / row["manifest"][:2] / row["manifest"] for row in rows}
        return {version: parts(path.read_bytes()) for version, path in blobs.items()}


def parts(data: bytes) -> dict[str, str]:
    manifest = Manifest.model_validate_json(data)
    exact = {} if manifest.exact is None else {"exact": manifest.exact}
    return {name: ref.digest for name, ref in {**manifest.blobs, **exact}.items()}


def alone(task: Task) -> dict[int, dict[str, str]]:
    """The versions of a fleet with this task only."""
    with Fleet(task) as fleet:
        fleet.begin(further=False)
        fleet.until(lambda: len(fleet.versions()) > task.rounds.count, 300, f"all rounds of {task.name}")
        return fleet.versions()


def test_two_tasks_make_the_versions_that_each_makes_alone() -> None:
    main, further = gestures(MAIN_ROUNDS), waves()
    wanted, wanted_further = alone(main), alone(further)
    heads = [version["head"] for version in (*wanted.values(), *wanted_further.values())]
    assert len({*heads}) == len(heads), "every version of both is another one"
    with Fleet(main) as fleet:
        fleet.begin(further=True)
        fleet.until(lambda: len(fleet.versions()) > 1, 200, "the main task is at work")
        fleet.add(further)
        fleet.until(lambda: bool(fleet.versions("waves")), 100, "the further task has begun")
        assert len(fleet.versions()) <= MAIN_ROUNDS, "in mid-round of the main one"
        fleet.until(lambda: len(fleet.versions("waves")) > FURTHER_ROUNDS, 300, "all rounds of the further")
        fleet.until(lambda: len(fleet.versions()) > MAIN_ROUNDS, 300, "all rounds of the main one")
        assert fleet.versions("waves") == wanted_further
        assert fleet.versions() == wanted
        for device in DEVICES:
            workers = [one for one in children(fleet.pid(device)) if "models.worker" in one]
            assert len(workers) <= 1, "one worker for all tasks"


def children(pid: int) -> list[str]:
    """Command lines of the children of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    pids = [child for task in tasks for child in (task / "children").read_text().split()]
    return [Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ") for child in pids]
