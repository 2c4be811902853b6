"""Ownership of import names, and rules about files that no import contract can express."""

import ast
import importlib.metadata
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.test_arch_wiring import nodes_of, tree_of
from tests.conftest import LONGEST

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "protocol",
    "runtime",
    "models",
    "export",
    "edge_agent",
    "coordinator",
    "console",
    "lichen",
    "lichen_lab",
)
MAX_LINES = 300
MAX_FILES = 12
# Not module names: files, configuration keys, an entry-point group, or names made up by a test.
FILE = re.compile(r"\.(?:toml|html|css|js|svg|pem|sqlite3|lock|log|d|conf|sysusers|v)$")
NOT_MODULES = {
    "coordinator.name",
    "export.max_routes",
    "lichen.commands",
    "lichen.encoders",
    "lichen.gone",
    "lichen.methods",
    "lichen.networks",
    "lichen.providers",
    "lichen.simulators",
    "lichen.sources",
    "models.landlock",
    "models.methods.fifth",
    "models.methods.unrelated",
}
# Each file is one part of the study, found by its name.
MAY_BE_LARGE = {"lichen_lab/benchmarks/studies/qqr/parts"}
# Opens seglearn's object array, after its SHA-256 has been compared.
MAY_UNPICKLE = {ROOT / "lichen_lab" / "simulation" / "data" / "sets" / "spar.py"}
# The default of a task that names no method.
MAY_NAME_A_METHOD = {
    ROOT / "protocol" / "tasks" / "task.py",
    ROOT / "protocol" / "tasks" / "folding.py",  # a server optimizer of the same name, for every method
}


def sources(*packages: str) -> Iterator[Path]:
    for package in packages:
        yield from sorted((ROOT / package).rglob("*.py"))


def method_names() -> set[str]:
    folder = ROOT / "models" / "methods"
    return {entry.name for entry in folder.iterdir() if (entry / "__init__.py").is_file()}


@pytest.mark.parametrize("package", PACKAGES)
def test_arch_the_import_name_belongs_to_this_distribution_alone(package: str) -> None:
    owners = set(importlib.metadata.packages_distributions().get(package, ()))
    assert owners == {"lichen-lab" if package == "lichen_lab" else "lichen"}, (
        f"{package} is owned by {owners or 'nobody: pip install -e .[dev]'}"
    )


def test_arch_every_source_folder_is_a_package() -> None:
    bare = {
        str(file.parent.relative_to(ROOT))
        for file in sources(*PACKAGES)
        if not (file.parent / "__init__.py").is_file()
    }
    assert not bare, "a folder without __init__.py loses to a foreign package of the same name"


def test_arch_folders_stay_small() -> None:
    files = Counter(
        str(file.parent.relative_to(ROOT))
        for file in sources(*PACKAGES, "tests/support")
        if file.name not in {"__init__.py", "setup.py"}
    )
    assert not {
        folder: count for folder, count in files.items() if count > MAX_FILES and folder not in MAY_BE_LARGE
    }


MODULE = re.compile(rf"(?<![\w./-])(?:{'|'.join(PACKAGES)}|tests)(?:\.[a-z_][a-z0-9_]*)+(?![\w/-])")


def dotted_names(text: str) -> Iterator[str]:
    """Names of our modules, or of their content, in strings, comments and docstrings."""
    lines = [line for line in text.splitlines() if not line.startswith(("from ", "import "))]
    if not any(MODULE.search(line) for line in lines):
        return  # to read tokens takes long
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in {tokenize.STRING, tokenize.COMMENT}:
            yield from MODULE.findall(token.string)


def leads_to_a_module(name: str) -> bool:
    """Whether a module has this name, or its parent does and defines the last part."""
    parts = name.split(".")
    if parts[0] == "tests" and ROOT.joinpath(*parts).is_dir():
        return True  # folders of tests have no package file
    for length in (len(parts), len(parts) - 1, len(parts) - 2):
        path = ROOT.joinpath(*parts[:length])
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file() and length > 0:
                return length == len(parts) or bool(
                    re.search(rf"\b{re.escape(parts[length])}\b", file.read_text())
                )
    return False


@pytest.mark.parametrize("folder", [*PACKAGES, "tests"])
def test_arch_module_names_in_strings_exist(folder: str) -> None:
    """``python -m``, entry points, patches of tests and docstrings: no type checker checks them."""
    lost = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in sources(folder)
        for name in dotted_names(file.read_text())
        if not leads_to_a_module(name) and name not in NOT_MODULES and not FILE.search(name)
    }
    assert not lost


def test_arch_imports_of_test_support_lead_to_a_file() -> None:
    """A test that uses the old place of a helper fails only when it runs."""
    imported = {
        (node.module or "", alias.name)
        for file in sources("tests")
        if "tests.support" in (text := file.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests.support")
        for alias in node.names
    }
    assert not {module for module, name in imported if not leads_to_a_module(f"{module}.{name}")}


def test_arch_there_is_exactly_one_package_file_among_the_tests() -> None:
    found = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("__init__.py")]
    assert found == ["tests/__init__.py"], "tests/models/__init__.py would *become* the package `models`"


def test_arch_test_file_names_are_unique() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
    assert not set(LONGEST) - set(names), "tests/conftest.py starts these first, and they do not exist"


def unpickling(tree: ast.Module) -> list[int]:
    """Lines that import a pickle-like module, or that allow pickle in an array file."""
    lines = []
    for node in nodes_of(tree):
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
        for line in unpickling(tree_of(file))
    }
    assert not found


def test_arch_torch_load_is_never_called() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in sources(*PACKAGES)
        for node in nodes_of(tree_of(file))
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
        for node in nodes_of(tree_of(file))
        if isinstance(node, ast.Constant) and node.value in names
    }
    assert not found, "a method is a folder: nothing else decides by its name"


def lines_without_imports(file: Path) -> int:
    imports = [node for node in tree_of(file).body if isinstance(node, ast.Import | ast.ImportFrom)]
    return file.read_bytes().count(b"\n") - sum((node.end_lineno or 0) - node.lineno + 1 for node in imports)


def test_arch_files_stay_small() -> None:
    long = {
        str(file.relative_to(ROOT)): lines
        for file in sources(*PACKAGES)
        if (lines := lines_without_imports(file)) > MAX_LINES
    }
    assert not long


def test_arch_a_device_opens_models_by_one_door() -> None:
    """Past this size a file is not searched (docs/hostile-peers.md)."""
    found = {
        str(file.relative_to(ROOT))
        for file in sources("edge_agent", "coordinator", "lichen", "runtime", "models")
        for node in nodes_of(tree_of(file))
        if isinstance(node, ast.Attribute | ast.Name | ast.alias)
        and "InferenceSession"
        in (getattr(node, "attr", ""), getattr(node, "id", ""), getattr(node, "name", ""))
    }
    assert found == {
        "edge_agent/inference/onnx_models/session.py",
        "models/backbones/files.py",  # of operators' own files, in child processes and tools
    }
