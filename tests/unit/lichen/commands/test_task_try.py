"""``lichen task try``: a package's network goes once through the processes of a fleet."""

from pathlib import Path

import pytest

from lichen import cli
from lichen_lab.simulation.processes.fleet_files import write_toml
from models import package_files
from models.registry import method
from tests.support.methods.contract_cases import PACKAGED, task_of
from tests.support.own_package import EXAMPLE, NAME, importable, install, install_example, with_own

METHOD = next(iter(PACKAGED))
POINT = {"lichen.encoders/separable": "lichen_example_net:make"}


def try_(capsys: pytest.CaptureFixture[str], file: Path, *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        cli.main(["task", "try", str(file), *words])
    told = capsys.readouterr()
    return int(left.value.code or 0), told.out, told.err


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    with importable(tmp_path / "site") as folder:
        folder.mkdir()
        yield folder


def written(folder: Path) -> Path:
    task = with_own(task_of(method(METHOD)), package_files.find_package(NAME).package, kernel=5)
    write_toml(folder / "task.toml", task.model_dump(mode="json", exclude_none=True))
    return folder / "task.toml"


def test_without_permission_no_process_starts(site, tmp_path, capsys):
    install_example(site)
    code, out, err = try_(capsys, written(tmp_path))
    assert (code, out) == (78, "")
    assert "does not allow" in err


@pytest.mark.long
def test_the_example_passes_every_step(site, tmp_path, capsys):
    install_example(site)
    code, out, err = try_(capsys, written(tmp_path), "--allow-package", NAME)
    assert (code, err) == (0, "")
    steps = [line.split()[0] for line in out.splitlines()]
    assert steps == ["version", "training", "evaluation", "bundle", "prototypes"]
    assert "48 made-up windows" in out
    assert "the ONNX model and torch agree" in out


SEEDLESS = "        self.out.bias.data += torch.tensor(__import__('random').random())\n"
OUT = "        self.out = nn.Linear(width, feature_dim)\n"


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after", "step", "words"),
    [
        (OUT, OUT + SEEDLESS, "", "version 0 of one seed gave other values of encoder/accelerometer/own.out"),
        (
            "dim=2))\n",
            "dim=2)) + (0.5 if float(x_BCT.mean()) > 0 else -0.5)\n",
            "evaluation",
            "export|differ",
        ),
    ],
    ids=["another seed", "a branch by values"],
)
def test_a_network_that_would_fail_in_a_fleet_fails_here_in_words(  # noqa: PLR0917 - a table's columns
    site, tmp_path, capsys, before, after, step, words
):
    code_of = EXAMPLE.read_text()
    assert before in code_of
    install(site, {EXAMPLE.name: code_of.replace(before, after)}, POINT)
    code, out, err = try_(capsys, written(tmp_path), "--allow-package", NAME)
    assert code != 0
    assert (out.splitlines() or [""])[-1].startswith(step)
    assert any(word in err for word in words.split("|")), err
