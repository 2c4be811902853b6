"""The task files of ``examples/``: one for each method, which a coordinator starts on and a device trains."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from lichen import cli
from models.registry import method, methods
from models.tensors import flatten
from protocol.tasks.task import Task
from runtime.settings.load import load_toml
from tests.support.methods.contract_cases import learnt, material_of, next_state

EXAMPLES = Path(__file__).resolve().parents[4] / "examples"
TASKS = sorted(file.stem for file in EXAMPLES.glob("*.toml") if "\nmethod = " in file.read_text())
TRY = ("lichen", "task", "try")
DEVICES = ("d0", "d1")


def task_of(name: str) -> Task:
    return load_toml(Task, EXAMPLES / f"{name}.toml")


def commands(name: str) -> list[list[str]]:
    """The commands in the comments at a file's begin."""
    head = (EXAMPLES / f"{name}.toml").read_text().partition("\nname = ")[0].splitlines()
    return [shlex.split(line.removeprefix("# ")) for line in head if line.startswith("# lichen ")]


def called(words: list[str]) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(words[1:])
    return int(left.value.code or 0)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout's root, with the examples as they stand."""
    (tmp_path / "examples/state").mkdir(parents=True)
    for name in TASKS:
        (tmp_path / f"examples/{name}.toml").write_bytes((EXAMPLES / f"{name}.toml").read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_paper_has_a_task_in_the_examples_which_its_page_names() -> None:
    assert {task_of(name).method for name in TASKS} <= set(methods())
    others = ("disentafl", "fedavg", "mmfed3_hide", "tactfl")
    for name, of in {"task": "qqr", **{own: own for own in others}}.items():
        assert task_of(name).method == of
        page = EXAMPLES.parent / f"docs/methods/{of}.md"
        assert f"](../../examples/{name}.toml)" in page.read_text(), page


@pytest.mark.parametrize("name", TASKS)
def test_a_coordinator_can_start_on_an_example_after_the_commands_of_its_head(
    name: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in [one for one in commands(name) if tuple(one[:3]) != TRY]:
        assert called(words) == 0, (words, capsys.readouterr())
    capsys.readouterr()
    assert called(["lichen", "task", "check", f"examples/{name}.toml", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["sound"]
    assert root.is_dir()


@pytest.mark.parametrize("name", TASKS)
def test_two_devices_train_an_example_for_a_round(name: str) -> None:
    task = task_of(name)
    spec = method(task.method)
    state = spec.client().initial(task, task.seed)
    updates = [learnt(spec, task, state, device, material_of(task, i)) for i, device in enumerate(DEVICES)]
    for update in updates:
        spec.server().check(task, state, update)
    made, before = flatten(next_state(spec, task, 1, state, updates)), flatten(state)
    assert all(np.isfinite(x).all() for x in made.values())
    assert any(name not in before or (x != before[name]).any() for name, x in made.items())


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in TASKS if task_of(name).graph is None])
def test_an_example_goes_through_the_processes_of_a_fleet(
    name: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``lichen task try``, which the file's head names; a graph's tasks have no made-up material."""
    for words in commands(name) or [[*TRY, f"examples/{name}.toml"]]:
        assert called(words) == 0, (words, capsys.readouterr())
    assert "training" in capsys.readouterr().out
    assert root.is_dir()
