"""The agent ends while a model is under way in one of its threads: in order, and with its own exit status."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux only")

_ENDING = """
import asyncio, sys, threading
from pathlib import Path
from edge_agent import app
from edge_agent.inference.serving import in_process as within
from edge_agent.inference.serving import model_server as servant
from runtime.process import daemon as supervise

under_way = threading.Event()


def slow(asked, header, given):  # as ONNX Runtime: C++ that comes back to an interpreter that is ending
    import onnxruntime as ort
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    under_way.set()
    for _ in range(int(sys.argv[2])):
        ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
    return {}, {}


async def main(config, zygote):
    import onnxruntime
    servant._DO["open"] = slow
    asked = asyncio.create_task(within.InProcessChannel().ask({"op": "open"}, {}, 60.0))
    while not under_way.is_set():
        await asyncio.sleep(0.001)
    asked.cancel()
    return 0


app.main, app._PATIENCE_S = main, float(sys.argv[3])
sys.exit(app.run(Path("none.toml")))
"""


@pytest.mark.parametrize(("times", "patience_s"), [(3, 60.0), (100_000, 0.1)])
def test_the_agent_ends_in_order_while_a_model_is_being_opened(tmp_path, times, patience_s):
    weights = [helper.make_node("MatMul", [f"x{k}", "w"], [f"x{k + 1}"]) for k in range(300)]
    w = numpy_helper.from_array(np.zeros((500, 500), np.float32), "w")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 500]) for name in ("x0", "x300")]
    graph = helper.make_graph(weights, "g", ends[:1], ends[1:], [w])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    ended = subprocess.run(
        [sys.executable, "-P", "-c", _ENDING, path, str(times), str(patience_s)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ("model_thread_left_behind" in ended.stderr) is (times > 3)
