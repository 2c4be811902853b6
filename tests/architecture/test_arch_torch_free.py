"""Neither daemon loads torch or onnx, in any role: import all their modules and list the loaded packages."""

import json
from pathlib import Path

import pytest

from tests.support.python import python

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "onnx", "onnxscript"}
# The observing device installs neither a database layer, nor a web or plotting library. Pages are served by
# processes of their own, from folders that nothing else imports.
CLOUD = {
    "sqlalchemy",
    "prometheus_client",
    "jinja2",
    "starlette",
    "uvicorn",
    "matplotlib",
    "iotcore",
    "pyarrow",
}
PAGES = ("runtime.web", "edge_agent.page")

IMPORT_ALL = """
import importlib, json, pkgutil, sys
package = importlib.import_module(sys.argv[1])
names = [sys.argv[1]]
names += [m.name for m in pkgutil.walk_packages(package.__path__, sys.argv[1] + ".")]
for name in names:
    if not name.endswith(".__main__") and not name.startswith(tuple(sys.argv[2:])):
        importlib.import_module(name)
print(json.dumps({"imported": names, "loaded": sorted({m.partition(".")[0] for m in sys.modules})}))
"""


def import_all(package: str) -> tuple[list[str], set[str]]:
    done = python("-c", IMPORT_ALL, package, *PAGES)
    report = json.loads(done.stdout.splitlines()[-1])
    return report["imported"], set(report["loaded"])


@pytest.mark.parametrize(
    ("package", "never"),
    [
        ("protocol", HEAVY | CLOUD | {"onnxruntime", "structlog"}),
        ("runtime", HEAVY | CLOUD | {"onnxruntime"}),
        ("edge_agent", HEAVY | CLOUD | {"onnxruntime"}),
        ("coordinator", HEAVY | {"onnxruntime", "jinja2", "matplotlib", "iotcore", "pyarrow"}),
        ("console", HEAVY | {"onnxruntime", "matplotlib", "iotcore", "pyarrow"}),
    ],
)
def test_arch_importing_all_of_it_loads_nothing_heavy(package: str, never: set[str]) -> None:
    imported, loaded = import_all(package)
    assert len(imported) > 1, f"{package} has no submodule: is it still there?"
    assert not loaded & never


METHOD_HALVES = """
import json, sys
from models.registry import methods
for name, spec in methods().items():
    __import__(f"models.methods.{name}.messages")
    spec.server()
print(json.dumps(sorted({m.partition(".")[0] for m in sys.modules})))
"""


def test_arch_a_methods_description_and_server_half_are_torch_free() -> None:
    done = python("-c", METHOD_HALVES)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert "models" in loaded
    assert not loaded & (HEAVY | {"onnxruntime"})
