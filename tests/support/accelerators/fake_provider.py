"""A provider of a package, and a model that is slow on the CPU and quick on that provider.

The package is installed as pip leaves it, allowed by its hash, and imported by models' processes like any
other. Its "compiler" writes the model without its ballast; that runs on ONNX Runtime's CPU. ``mood.json``
beside it says what it does wrong.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edge_agent.config.agent import InferSettings
from edge_agent.config.providers import ProviderPackage
from edge_agent.inference.providers.accelerators import Accelerators
from edge_agent.inference.service import Inference
from models.package_files import find_package
from runtime.clock import SystemClock
from tests.support.agent.bundle import bundle, tiny_onnx
from tests.support.agent.serving import TASK
from tests.support.own_package import importable, install

NAME = "lichen-fake-accelerator"
MODULE = "lichen_fake_accelerator"
PROVIDER = "fake"
SOURCE = """
import json, os, time
from pathlib import Path
import onnxruntime
from edge_agent.inference.providers.kinds import COMPILED_MODEL, Hardware, NoHardware, ProviderKind

HERE = Path(__file__).parent


def mood():
    return json.loads((HERE / "mood.json").read_text())


def look():
    now = mood()
    if now.get("look") == "hang":
        time.sleep(600)
    if now.get("look") == "crash":
        os.kill(os.getpid(), 11)
    if now.get("unplugged"):
        raise NoHardware("the fake accelerator is not plugged in")
    return Hardware("fake 9000", {"driver": now.get("driver", "1")})


def options(asked):
    now = mood()
    if asked.compiling:
        (asked.engine / "notes").mkdir()
        (asked.engine / "notes" / "log.txt").write_text("compiled")
        time.sleep(now.get("compile_s", 0))
        if now.get("compile") == "crash":
            (asked.engine / COMPILED_MODEL).write_bytes(b"half")
            os.kill(os.getpid(), 9)
        if now.get("compile") == "hang":
            time.sleep(600)
        if now.get("compile") == "link":
            os.symlink("/etc/hostname", asked.engine / "link")
        if now.get("compile") == "huge":
            (asked.engine / "huge").write_bytes(bytes(200_000))
            time.sleep(600)
        if now.get("compile") != "nothing":
            (asked.engine / COMPILED_MODEL).write_bytes((HERE / now.get("as", "quick.onnx")).read_bytes())
    elif asked.engine is not None:
        if now.get("insists"):
            (asked.engine / "stray").write_text("a lock")
        try:
            (asked.engine / "stray").write_text("a model that runs writes nothing")
        except OSError:
            pass
    return {}


def fragile(run):
    def runs(self, *given, **more):
        now = mood()
        if now.get("unplugged"):
            raise RuntimeError("the device was lost")
        if now.get("run") == "hang":
            time.sleep(600)
        return run(self, *given, **more)
    return runs


onnxruntime.InferenceSession.run = fragile(onnxruntime.InferenceSession.run)
PROVIDER = ProviderKind("CPUExecutionProvider", look, options, engine="model")
"""


def slow_onnx(width: int, layers: int = 40) -> bytes:
    """:func:`tiny_onnx` with much work that changes nothing."""
    model = onnx.load_from_string(tiny_onnx(TASK))
    graph = model.graph
    softmax = next(node for node in graph.node if node.op_type == "Softmax")
    shapes = {"wide": (1, width), "square": (width, width), "narrow": (width, 3)}
    graph.initializer.extend(
        helper.make_tensor(name, TensorProto.FLOAT, shape, np.zeros(shape, np.float32).ravel())
        for name, shape in shapes.items()
    )
    nodes, last = [helper.make_node("MatMul", ["moved", "wide"], ["b0"])], "b0"
    for i in range(layers):
        nodes.append(helper.make_node("MatMul", [last, "square"], [f"b{i + 1}"]))
        last = f"b{i + 1}"
    nodes.append(helper.make_node("MatMul", [last, "narrow"], ["ballast"]))
    nodes.append(helper.make_node("Add", ["logits", "ballast"], ["whole"]))
    softmax.input[0] = "whole"
    kept = [node for node in graph.node if node.op_type != "Softmax"]
    del graph.node[:]
    graph.node.extend([*kept, *nodes, softmax])
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def slow_bundle(version: int = 1, width: int = 8) -> bytes:
    """A bundle of :func:`slow_onnx`."""
    return bundle(TASK, version, content=slow_onnx(width))


class FakeProvider:
    """The installed package."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.cache = cache
        points = {f"lichen.providers/{PROVIDER}": f"{MODULE}:PROVIDER"}
        install(folder, {f"{MODULE}.py": SOURCE}, points, name=NAME)
        (folder / "quick.onnx").write_bytes(tiny_onnx(TASK))
        (folder / "wrong.onnx").write_bytes(tiny_onnx(TASK, bias=3.0))
        self.feels()

    def feels(self, **mood: Any) -> None:
        """What it does wrong from now on."""
        (self.folder / "mood.tmp").write_text(json.dumps(mood))
        (self.folder / "mood.tmp").rename(self.folder / "mood.json")

    @property
    def package(self) -> ProviderPackage:
        """As the owner of the device allows it."""
        return ProviderPackage.model_validate(find_package(NAME).package.model_dump())

    def accelerators(self, **changes: Any) -> Accelerators:
        """Of a device whose owner allows it."""
        return Accelerators(self.settings(**changes), self.cache, SystemClock())

    def settings(self, **changes: Any) -> InferSettings:
        return InferSettings(**{"packages": (self.package,), **changes})

    def inference(self, **changes: Any) -> Inference:
        """With its accelerators in ``_accelerators``."""
        settings = self.settings(**changes)
        found = Accelerators(settings, self.cache, SystemClock())
        return Inference(settings, SystemClock(), None, None, found)


@contextmanager
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProvider]:
    """Installed for this process, and for those that it starts."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    with importable(folder):
        yield FakeProvider(folder, tmp_path / "cache" / "engines")
