"""The import contracts of pyproject.toml, as a test."""

import tomllib
from pathlib import Path

from tests.support.python import python

ROOT = Path(__file__).resolve().parents[2]
FOLDER_ORDER = {"protocol", "runtime", "models", "export", "edge_agent", "coordinator", "console"}
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


def test_arch_every_contract_is_kept() -> None:
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = python("-c", code)
    assert " 0 broken" in done.stdout


def test_arch_the_contracts_still_say_what_the_design_says() -> None:
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert set(linter["root_packages"]) == set(PACKAGES)
    layers = [c["layers"] for c in linter["contracts"] if c["type"] == "layers"]
    lab = ["lichen_lab.demo", "lichen_lab.benchmarks", "lichen_lab.simulation"]
    below = ["edge_agent | coordinator | export", "models | runtime", "protocol"]
    assert layers[0] == [*lab, "lichen", "console", *below]
    forbidden = {
        source: set(c["forbidden_modules"])
        for c in linter["contracts"]
        if c["type"] == "forbidden" and not c.get("allow_indirect_imports", False)
        for source in c["source_modules"]
    }
    for daemon in ("edge_agent", "coordinator", "console"):
        assert {"torch", "onnx", "onnxscript"} <= forbidden[daemon]


def test_arch_a_contract_places_every_folder_of_these_packages() -> None:
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    complete = [c for c in linter["contracts"] if c.get("exhaustive")]
    assert {package for contract in complete for package in contract["containers"]} >= FOLDER_ORDER
    assert not [c["name"] for c in complete if c.get("ignore_imports") or c.get("exhaustive_ignores")]
