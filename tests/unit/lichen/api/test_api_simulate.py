import ast
import asyncio
import json
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lichen
from edge_agent.inference.onnx_models.session import session_of
from models.data import window_set
from protocol.bundle import unpack
from tests.support.lab.simulated import task, windows
from tests.support.own_package import NAME, importable, install_example, with_own
from tests.support.python import ROOT, python

TASK = task()
DEVICES = {f"d{n}": windows(60, n) for n in range(3)}


@pytest.fixture(scope="module")
def trained() -> lichen.Simulation:
    return lichen.simulate(TASK, DEVICES, test=windows(60, 50), rounds=2, seed=3)


def test_api_simulate_gives_a_row_for_each_round_and_version(trained: lichen.Simulation) -> None:
    assert [row["round"] for row in trained.history] == [1, 2]
    assert all(row["devices"] == 3 and row["refused"] == 0 and row["bytes_up"] > 0 for row in trained.history)
    assert trained.accuracy == trained.history[-1]["accuracy"]
    assert trained.accuracy is not None
    assert trained.accuracy > 0.5
    assert trained.macro_f1 == trained.history[-1]["macro_f1"]
    assert [(row["version"], row["parent"]) for row in trained.versions] == [(1, 0), (2, 1)]
    assert trained.versions[0]["devices"] == ("d0", "d1", "d2")
    assert sum(row[label] for row in trained.confusion for label in TASK.labels) == 60
    assert "3 devices, 2 rounds, accuracy" in repr(trained)


def test_api_what_it_predicts_gives_the_accuracy_of_its_history(trained: lichen.Simulation) -> None:
    judges = windows(60, 50)
    said = trained.predict(judges)
    truth = [TASK.labels[number] for number in judges.y_B]
    assert np.mean([one == other for one, other in zip(said, truth, strict=True)]) == trained.accuracy
    arrays = {name: x[:5] for name, x in judges.x.items()}
    assert trained.predict(arrays) == said[:5]


@pytest.mark.long
def test_api_the_exported_bundle_is_that_model(trained: lichen.Simulation, tmp_path: Path) -> None:
    file = trained.export(tmp_path / "model.bundle")
    manifest, files = unpack(file.read_bytes())
    assert (manifest.version, manifest.task, manifest.metrics["accuracy"]) == (2, "toy", trained.accuracy)
    assert len(manifest.base) == 64
    judges = windows(60, 50)
    session = session_of(files["model.onnx"], "the bundle", 1)
    inputs = {"present": judges.present_BM.astype(np.float32), **judges.x}
    probabilities = session.run(["probabilities"], inputs)[0]
    assert np.allclose(probabilities, trained.probabilities(judges), atol=1e-4)


def test_api_the_same_seed_gives_the_same_history_from_arrays_files_and_sets(
    trained: lichen.Simulation, tmp_path: Path
) -> None:
    for name, held in DEVICES.items():
        window_set.save(tmp_path / f"{name}.npz", held)
    arrays = {
        name: {**held.x, "label": [TASK.labels[number] for number in held.y_B]}
        for name, held in DEVICES.items()
    }
    heard: list[Any] = []
    data: Any
    for data in (tmp_path, arrays):
        again = lichen.simulate(TASK, data, test=windows(60, 50), rounds=2, seed=3, progress=heard.append)
        assert again.history == trained.history
    assert [row["round"] for row in heard] == [1, 2, 1, 2]


async def test_api_simulate_works_where_an_event_loop_runs_as_in_a_notebook() -> None:
    assert asyncio.get_running_loop().is_running()
    found = lichen.simulate(TASK, DEVICES, test=0.25, rounds=1)
    assert found.accuracy is not None
    assert lichen.simulate(TASK, DEVICES, rounds=1).accuracy is None


def test_api_the_first_example_of_the_page_learns_in_ten_statements(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    assert sum(isinstance(one, ast.stmt) for one in ast.walk(ast.parse(code))) <= 10
    exec(compile(code, "docs/python.md", "exec"), {})  # noqa: S102 - a page of this repository
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split()[3:5] == ["accuracy", "macro_f1"]
    assert [row.split()[0] for row in rows] == ["1", "2", "3"]
    assert float(rows[-1].split()[3]) > 0.9


def test_api_a_wrong_task_is_refused_by_its_key(tmp_path: Path) -> None:
    good = {"name": "t", "labels": ("a", "b"), "modalities": [{"name": "a", "channels": 1, "rate_hz": 4.0}]}
    wrong: tuple[tuple[Any, str], ...] = (
        ({**good, "labls": ["a"]}, "task.labls: unknown key; did you mean 'labels'"),
        ({**good, "labels": ["a"]}, "labels: two or more are needed"),
        (tmp_path / "task.toml", "there is no such file"),
        (7, "give a path, a dict or a Task, not int"),
    )
    for given, words in wrong:
        with pytest.raises(lichen.Misconfigured, match=words):
            lichen.simulate(given, DEVICES)
    with pytest.raises(lichen.Misconfigured, match="'none' is no method"):
        lichen.simulate(TASK, DEVICES, method="none")
    with pytest.raises(lichen.Misconfigured, match="rounds: 0"):
        lichen.simulate(TASK, DEVICES, rounds=0)
    with pytest.raises(lichen.Misconfigured, match="test: none of its 4 windows is labelled"):
        lichen.simulate(TASK, DEVICES, test={name: x[:4] for name, x in DEVICES["d0"].x.items()})


def test_api_a_package_trains_only_where_the_caller_allows_it(tmp_path: Path) -> None:
    with importable(tmp_path):
        package = install_example(tmp_path)
        assert lichen.package(NAME) == package.model_dump()
        own = with_own(TASK, package)
        with pytest.raises(lichen.Misconfigured, match="does not allow"):
            lichen.simulate(own, DEVICES, rounds=1)
        found = lichen.simulate(own, DEVICES, rounds=1, packages=[NAME])
        lichen.simulate(TASK, DEVICES, rounds=1)
        assert len(found.predict(DEVICES["d0"])) == 60, "of a task without packages, nothing is forgotten"
    with pytest.raises(lichen.Misconfigured, match="is not installed"):
        lichen.package("lichen-none-such")


def test_api_importing_lichen_loads_no_library() -> None:
    code = "import sys, lichen; lichen.Fleet; print(sorted(set(sys.modules) & set(sys.argv[1:])))"
    heavy = ("torch", "numpy", "pandas", "pydantic", "httpx", "starlette", "sqlalchemy", "lichen_lab")
    assert python("-c", code, *heavy).stdout.strip() == "[]"
    assert "simulate" in dir(lichen)
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        _ = lichen.simulat  # type: ignore[attr-defined]


def test_api_without_lichen_lab_it_says_what_to_install(tmp_path: Path) -> None:
    """An environment with all packages but ours; the checkout gives lichen alone."""
    site = Path(str(distribution("numpy").locate_file("")))
    for entry in site.iterdir():
        if "lichen" not in entry.name:
            (tmp_path / entry.name).symlink_to(entry)
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]\nimport lichen\n"
        "try: lichen.simulate('examples/task.toml', '.')\n"
        "except lichen.Misconfigured as error: print(error)"
    )
    assert "not installed here: pip install lichen-lab" in python("-S", "-c", code).stdout


@pytest.mark.long
def test_api_a_script_with_worker_processes_needs_no_main_guard(
    trained: lichen.Simulation, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    for name, held in DEVICES.items():
        window_set.save(tmp_path / "data" / f"{name}.npz", held)
    window_set.save(tmp_path / "test.npz", windows(60, 50))
    script = tmp_path / "script.py"
    script.write_text(
        "import json, sys\nimport lichen\nfrom tests.support.lab.simulated import task\n"
        "found = lichen.simulate(task(), 'data', test='test.npz', rounds=2, seed=3, workers=2)\n"
        "print(json.dumps(found.history))\n"
    )
    done = python(str(script), cwd=tmp_path)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [trained.history]
    assert sys.modules["__main__"].__name__ == "__main__"
