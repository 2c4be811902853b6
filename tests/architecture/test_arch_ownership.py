"""Who owns the import names, and rules about files that no import contract can state."""

import ast
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("protocol", "runtime", "models", "export", "edge_agent", "coordinator", "lichen")
MAX_LINES = 300
# Opens seglearn's object array, after its SHA-256 has been compared.
MAY_UNPICKLE = {ROOT / "lichen_lab" / "simulation" / "data" / "sets" / "spar.py"}
# The default of a task that names no method.
MAY_NAME_A_METHOD = {ROOT / "protocol" / "tasks" / "task.py"}


def sources(*packages: str) -> Iterator[Path]:
    for package in packages:
        yield from sorted((ROOT / package).rglob("*.py"))


def method_names() -> set[str]:
    folder = ROOT / "models" / "methods"
    return {entry.name for entry in folder.iterdir() if (entry / "__init__.py").is_file()}


@pytest.mark.parametrize("package", PACKAGES)
def test_arch_the_import_name_belongs_to_this_distribution_alone(package: str) -> None:
    owners = set(importlib.metadata.packages_distributions().get(package, ()))
    assert owners == {"lichen"}, f"{package} is owned by {owners or 'nobody: pip install -e .[dev]'}"


def test_arch_every_source_folder_is_a_package() -> None:
    bare = {
        str(file.parent.relative_to(ROOT))
        for file in sources(*PACKAGES)
        if not (file.parent / "__init__.py").is_file()
    }
    assert not bare, "a folder without __init__.py loses to a foreign package of the same name"


def test_arch_there_is_exactly_one_package_file_among_the_tests() -> None:
    found = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("__init__.py")]
    assert found == ["tests/__init__.py"], "tests/models/__init__.py would *become* the package `models`"


def test_arch_test_file_names_are_unique() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def unpickling(tree: ast.AST) -> list[int]:
    """Lines that import a pickle-like module, or that allow pickle in an array file."""
    lines = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                modules = {alias.name.partition(".")[0] for alias in names}
            case ast.ImportFrom(module=str() as name):
                modules = {name.partition(".")[0]}
            case ast.Call(keywords=keywords):
                allowed = [k for k in keywords if k.arg == "allow_pickle"]
                if any(not (isinstance(k.value, ast.Constant) and k.value.value is False) for k in allowed):
                    lines.append(node.lineno)
                continue
            case _:
                continue
        if modules & {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}:
            lines.append(node.lineno)
    return lines


@pytest.mark.parametrize(
    ("code", "caught"),
    [
        ("import pickle", True),
        ("from pickle import loads", True),
        ("import numpy as np\nnp.load(f, allow_pickle=True)", True),
        ("import numpy as np\nnp.load(f, allow_pickle=choice)", True),
        ("import numpy as np\nnp.load(f, allow_pickle=False)", False),
    ],
)
def test_arch_the_unpickling_check_itself(code: str, caught: bool) -> None:  # noqa: FBT001 - a table's column
    assert bool(unpickling(ast.parse(code))) is caught


def test_arch_nothing_unpickles() -> None:
    found = {
        f"{file.relative_to(ROOT)}:{line}"
        for file in sources(*PACKAGES)
        if file not in MAY_UNPICKLE
        for line in unpickling(ast.parse(file.read_text()))
    }
    assert not found


def test_arch_torch_load_is_never_called() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in sources(*PACKAGES)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in {"load", "save"}
        and isinstance(node.value, ast.Name)
        and node.value.id == "torch"
    ]
    assert not found, "torch.load unpickles; states travel as npz and frames"


def test_arch_no_part_but_the_method_itself_knows_a_methods_name() -> None:
    names = method_names()
    assert names, "models/methods has no method"
    found = {
        f"{file.relative_to(ROOT)}:{node.lineno} {node.value!r}"
        for file in sources("protocol", "runtime", "export", "edge_agent", "coordinator")
        if file not in MAY_NAME_A_METHOD
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and node.value in names
    }
    assert not found, "a method is a folder: nothing else decides by its name"


def test_arch_files_stay_small() -> None:
    long = {
        str(file.relative_to(ROOT)): lines
        for file in sources(*PACKAGES)
        if (lines := file.read_text().count("\n")) > MAX_LINES
    }
    assert not long


def test_arch_a_device_opens_models_by_one_door() -> None:
    """Past it, nothing would be looked through (docs/hostile-peers.md)."""
    found = {
        str(file.relative_to(ROOT))
        for file in sources("edge_agent", "coordinator", "lichen", "runtime", "models")
        for node in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(node, ast.Attribute | ast.Name | ast.alias)
        and "InferenceSession"
        in (getattr(node, "attr", ""), getattr(node, "id", ""), getattr(node, "name", ""))
    }
    assert found == {"edge_agent/inference/onnx_models/session.py"}
