"""``lichen task check``: everything that is wrong with a task at once, and what its labelled windows lack."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lichen import cli
from models.data import labelled_windows
from models.data.window_set import save
from models.registry import methods
from tests.support.methods.labelled_files import cells, task_of, write_csv
from tests.support.own_package import NAME, importable, install_example
from tests.support.tasks import stream, task_toml

GUIDED = next(name for name, spec in methods().items() if spec.guided)
PLAIN = next(name for name, spec in methods().items() if not spec.guided and spec.material == "windows")
TAKES_PARTS = next(name for name, spec in methods().items() if spec.own_parts and not spec.guided)
ON_GRAPHS = next(name for name, spec in methods().items() if spec.material == "graph")
TASK = task_toml(
    ("slow", "middle", "fast"),
    "toy",
    method="{method}",
    streams={"acc": stream(2, 10), "gyr": stream(1, 5)},
    window={"length_s": 2.0, "stride_s": 1.0},
)
OWN = '[labelled]\nfile = "own.csv"\n'


def check(capsys: pytest.CaptureFixture[str], file: Path, *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        cli.main(["task", "check", str(file), *words])
    told = capsys.readouterr()
    return int(left.value.code or 0), told.out, told.err


def as_json(capsys: pytest.CaptureFixture[str], file: Path) -> tuple[int, dict[str, Any]]:
    code, out, _ = check(capsys, file, "--format", "json")
    return code, json.loads(out)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "task.toml"
    path.write_text(TASK.format(method=GUIDED) + OWN)
    write_csv(tmp_path / "own.csv", cells(("slow", "middle", "fast", "")))
    return path


def test_a_sound_task_is_shown_with_its_windows_by_class_and_modality(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    code, told = as_json(capsys, file)
    assert (code, told["sound"], told["wrong"], told["warnings"]) == (0, True, [], [])
    assert told["labelled"]["by_class"] == {"slow": 9, "middle": 9, "fast": 9}
    assert told["labelled"]["by_modality"]["gyr"] == {"slow": 9, "middle": 9, "fast": 9}
    assert (told["labelled"]["windows"], told["labelled"]["unlabelled"]) == (27, 12)
    assert told["window"]["samples"] == {"acc": [2, 20], "gyr": [1, 10]}
    code, out, err = check(capsys, file)
    assert (code, err) == (0, "")
    assert "own.csv (1 recording): 27 windows, 12 more without a label" in out
    assert out.splitlines()[-1] == "a coordinator can start on it"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        cli.main(list(words))
    told = capsys.readouterr()
    return int(left.value.code or 0), told.out, told.err


def test_the_table_of_a_package_is_printed_fits_into_a_task_and_is_checked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    part = '[network.encoders.acc]\nkind = "own:separable"\noptions = { kernel = 3 }\n'
    file = tmp_path / "task.toml"
    with importable(tmp_path / "site") as site:
        install_example(site)
        code, table, _ = run(capsys, "task", "package", "lichen-example-net")
        assert code == 0
        assert 'kind = "own:separable"' in table
        file.write_text(TASK.format(method=TAKES_PARTS) + table + part)
        code, out, err = check(capsys, file)
        assert (code, err) == (0, "")
        assert "packages    lichen-example-net 1.2.0" in out
        with (site / "lichen_example_net.py").open("a") as code_file:
            code_file.write("\n")
        code, _, err = check(capsys, file)
        assert code == 78
        assert "another build, or were changed" in err
        assert json.loads(run(capsys, "task", "package", NAME, "--format", "json")[1])["offers"] == [
            {"group": "lichen.encoders", "name": "separable"}
        ]
    file.write_text(file.read_text().replace(NAME, "lichen-absent-net"))
    code, _, err = check(capsys, file)
    assert code == 78
    assert "is not installed for this Python" in err
    code, _, err = run(capsys, "task", "package", "lichen-absent-net")
    assert code == 78
    assert "is not installed" in err


def test_what_is_missing_is_a_warning_and_no_error(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    write_csv(file.parent / "own.csv", cells(("slow", "fast")))
    code, out, err = check(capsys, file)
    assert (code, err) == (0, "")
    assert "warning: class 'middle': no labelled windows" in out


def test_everything_that_is_wrong_is_said_at_once(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    write_csv(file.parent / "own.csv", cells(("slow", "fats")))
    rounds = '[rounds]\nselection = "chance"\ndevices_per_round = 2\nmin_devices = 3\n'
    file.write_text(TASK.format(method=GUIDED) + OWN + rounds + "[config]\nno_such_option = 1\n")
    code, _, err = check(capsys, file)
    assert code == 78
    lines = err.splitlines()
    assert len(lines) == 4
    assert all(line.startswith(f"wrong: {file}: ") for line in lines)
    for word in ("no_such_option", "rounds.selection", "devices_per_round: 2", "did you mean 'fast'?"):
        assert any(word in line for line in lines), word
    code, told = as_json(capsys, file)
    assert (code, told["sound"], told["labelled"]) == (78, False, None)
    assert [f"wrong: {words}" for words in told["wrong"]] == lines


def test_every_option_that_is_wrong_is_named_with_what_was_found_and_what_was_meant(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    name, field = next(iter(methods()[GUIDED].config.model_fields.items()))
    options = f'{name} = "no such value"\n{name}x = {field.default}\nquite_another = 1\n'
    file.write_text(file.read_text() + "[config]\n" + options)
    code, _, err = check(capsys, file)
    assert code == 78
    assert f"config.{name}: " in err
    assert "(found 'no such value')" in err
    assert f"config.{name}x: no such option; did you mean {name!r}?" in err
    assert "config.quite_another: no such option" in err


def test_a_task_that_cannot_be_read_names_every_wrong_key(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    file.write_text(TASK.format(method=GUIDED).replace("rate_hz = 5", "rate_hz = 0") + "[windows]\nx = 1\n")
    code, told = as_json(capsys, file)
    assert code == 78
    assert not told["sound"]
    assert any("rate_hz" in words for words in told["wrong"])
    assert any("windows" in words for words in told["wrong"])
    code, _, err = check(capsys, file.with_name("gone.toml"))
    assert code == 78
    assert "gone.toml: no such file" in err


def test_an_unknown_method_is_wrong_and_the_labelled_windows_are_looked_at_all_the_same(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    file.write_text(TASK.format(method="tactlf") + OWN)
    code, told = as_json(capsys, file)
    assert code == 78
    assert len(told["wrong"]) == 1
    assert "'tactlf' is no method" in told["wrong"][0]
    assert told["labelled"]["windows"] == 27


def test_a_method_that_learns_from_labelled_windows_needs_them_and_another_does_not(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    file.write_text(TASK.format(method=GUIDED))
    code, told = as_json(capsys, file)
    assert code == 78
    assert '[labelled] file = "..."' in told["wrong"][0]
    file.write_text(TASK.format(method=PLAIN))
    assert as_json(capsys, file)[0] == 0
    file.write_text(TASK.format(method=PLAIN) + OWN)
    code, told = as_json(capsys, file)
    assert code == 0
    assert told["warnings"] == [f"method {PLAIN!r} does not learn from labelled windows at the coordinator"]


def test_a_window_set_is_counted_and_options_that_the_task_sets_are_told_apart(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    windows = labelled_windows.read(task_of(), file.parent).windows
    save(file.parent / "own.npz", windows)
    option = "[config]\nhead_epochs = 3\n"
    file.write_text(TASK.format(method=GUIDED) + OWN.replace("csv", "npz") + option)
    code, told = as_json(capsys, file)
    assert code == 0
    assert told["labelled"]["kind"] == "window set"
    assert told["labelled"]["windows"] == int(np.sum(windows.y_B >= 0))
    assert told["method"]["options"] == {"head_epochs": 3}
    assert "head_epochs" not in told["method"]["defaults"]
    assert "option      head_epochs = 3" in check(capsys, file)[1]


GRAPH = """
name = "plant"
method = "{method}"
[graph]
features = [{{ name = "text", dim = 64 }}, {{ name = "numeric", dim = 3 }}]
top_k = 5
max_entities = 900
"""


def test_a_task_on_graphs_is_shown_with_its_features_and_bounds_and_without_windows(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    file.write_text(GRAPH.format(method=ON_GRAPHS))
    code, told = as_json(capsys, file)
    assert (code, told["sound"], told["wrong"], told["window"]) == (0, True, [], None)
    assert told["graph"]["features"] == [{"name": "text", "dim": 64}, {"name": "numeric", "dim": 3}]
    code, out, err = check(capsys, file)
    assert (code, err) == (0, "")
    assert "features of entities: text 64, numeric 3; 5 tails an answer" in out
    assert "of a device at most: 900 entities, " in out
    assert "window" not in out


def test_a_task_and_a_method_of_two_kinds_of_material_are_wrong_together(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    file.write_text(GRAPH.format(method=PLAIN))
    code, _, err = check(capsys, file)
    assert code == 78
    assert f"method '{PLAIN}' wants labels and modalities, no [graph]" in err
    file.write_text(TASK.format(method=ON_GRAPHS))
    code, _, err = check(capsys, file)
    assert code == 78
    assert f"method '{ON_GRAPHS}' wants a table [graph]" in err


def test_the_momentum_of_the_server_is_shown(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    file.write_text(TASK.format(method=PLAIN) + "[aggregator]\nmomentum = 0.9\n")
    assert as_json(capsys, file)[1]["aggregator"] == "fedavg, momentum 0.9"


def test_what_updates_cannot_be_folded_by_is_wrong(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    file.write_text(GRAPH.format(method=ON_GRAPHS) + '[robust]\nfold = "median"\n')
    code, _, err = check(capsys, file)
    assert code == 78
    assert "robust.fold = 'median': its updates cannot be compared value by value" in err


def test_targets_are_shown_with_what_their_labels_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    several = next(name for name, spec in methods().items() if spec.several_targets)
    more = (
        '[[targets]]\nname = "side"\nlabels = ["left", "right"]\n'
        '[[targets]]\nname = "speed"\nkind = "regression"\nunit = "m/s"\nscale = 2.0\n'
        '[[targets]]\nname = "made"\nkind = "generation"\nmodality = "gyr"\n'
    )
    (tmp_path / "task.toml").write_text(TASK.format(method=several) + more)
    code, out, err = check(capsys, tmp_path / "task.toml")
    assert code == 0, err
    assert "target      side: one of 2 classes: left, right" in out
    assert "target      speed: a number, in m/s, learned as (value - 0) / 2" in out
    assert "target      made: the window of gyr is generated" in out
    _, told = as_json(capsys, tmp_path / "task.toml")
    assert [target["name"] for target in told["targets"]] == ["label", "side", "speed", "made"]


def test_a_number_in_quotation_marks_is_refused_in_the_methods_options_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "task.toml").write_text(TASK.format(method="qqr") + '[config]\nbatch = "64"\n')
    code, _, err = check(capsys, tmp_path / "task.toml")
    assert code == 78
    assert "config.batch: a whole number is wanted, without quotation marks (found '64')" in err


def test_an_unknown_option_is_answered_with_all_options_the_nearest_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "task.toml").write_text(TASK.format(method="qqr") + "[config]\nzzz = true\nbatches = 3\n")
    code, _, err = check(capsys, tmp_path / "task.toml")
    assert code == 78
    assert "config.zzz: no such option (options: " in err
    assert "config.batches: no such option; did you mean 'batch'? (options: batch, " in err


def test_a_task_that_no_message_holds_is_refused_before_a_fleet_waits_for_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "task.toml"
    many = json.dumps([f"class-{number}-{'x' * 50}" for number in range(1024)])
    targets = "".join(f'[[targets]]\nname = "t{n}"\nlabels = {many}\n' for n in range(3))
    path.write_text(TASK.format(method=PLAIN).replace('["slow", "middle", "fast"]', many) + targets)
    code, told = as_json(capsys, path)
    assert code == 78
    assert any(
        "the task's announcement has" in words and "fewer or shorter labels" in words
        for words in told["wrong"]
    )
