"""Small backbones in ONNX, made of known weights; and tasks with them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from protocol.tasks.kinds import Backbone
from protocol.tasks.network import Network
from protocol.tasks.task import Modality, Task, Window
from tests.support.tasks import small_task

HEIGHT, WIDTH, D = 6, 5, 16
CAMERA = Modality(
    name="camera", kind="image", channels=1, height=HEIGHT, width=WIDTH, rate_hz=5, offset=128.0, scale=64.0
)


def weights(values: int = HEIGHT * WIDTH, features: int = D, seed: int = 7) -> np.ndarray:
    rng = np.random.default_rng(seed)
    made: np.ndarray = (rng.normal(size=(values, features)) / np.sqrt(values)).astype(np.float32)
    return made


def features_of(x_BCT: np.ndarray, w_VD: np.ndarray | None = None) -> np.ndarray:
    """What :func:`backbone` makes of windows in the scale of the task."""
    w_VD = weights() if w_VD is None else w_VD
    z_BD: np.ndarray = np.maximum(x_BCT.reshape(len(x_BCT), -1) @ w_VD, 0)
    return z_BD


def backbone(
    shape: tuple[int | str, ...] = ("batch", 1, HEIGHT, WIDTH),
    w_VD: np.ndarray | None = None,
    *,
    outputs: tuple[str, ...] = ("features",),
    domain: str = "",
) -> onnx.ModelProto:
    """Flatten, one dense layer, ReLU; further outputs are copies."""
    w_VD = weights() if w_VD is None else w_VD
    nodes = [
        helper.make_node("Flatten", ["pixels"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["dense"]),
        helper.make_node("Relu", ["dense"], [outputs[0]]),
        *(helper.make_node("Identity", [outputs[0]], [name]) for name in outputs[1:]),
    ]
    if domain:
        nodes[2] = helper.make_node("Gelu", ["dense"], [outputs[0]], domain=domain)
    graph = helper.make_graph(
        nodes,
        "backbone",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, list(shape))],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [shape[0], w_VD.shape[1]])
            for name in outputs
        ],
        [numpy_helper.from_array(w_VD, "w")],
    )
    sets = [helper.make_opsetid("", 17)]
    if domain:
        sets.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=sets, ir_version=8)


def quantized() -> onnx.ModelProto:
    """As :func:`backbone`, but pixels are quantized by the range of the batch: windows affect one another."""
    w_VD = weights()
    scale = np.float32(np.abs(w_VD).max() / 127)
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["pixels"], ["flat"]),
            helper.make_node("DynamicQuantizeLinear", ["flat"], ["q", "step", "zero"]),
            helper.make_node("MatMulInteger", ["q", "w", "zero"], ["whole"]),
            helper.make_node("Cast", ["whole"], ["cast"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["step", "scale"], ["both"]),
            helper.make_node("Mul", ["cast", "both"], ["dense"]),
            helper.make_node("Relu", ["dense"], ["features"]),
        ],
        "backbone",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 1, HEIGHT, WIDTH])],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", D])],
        [
            numpy_helper.from_array(np.round(w_VD / scale).astype(np.int8), "w"),
            numpy_helper.from_array(np.asarray(scale), "scale"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def write(path: Path, model: onnx.ModelProto | None = None) -> Path:
    path.write_bytes((model or backbone()).SerializeToString())
    return path


def backbone_task(file: str = "eye.onnx", *, linear: bool = True, **changes: Any) -> Task:
    """As a task file names it: images of two or more classes through a backbone."""
    camera = CAMERA.model_copy(update={"backbone": Backbone(file=file)})
    network = Network(kind="linear") if linear else Network(feature_dim=8, hidden_dim=8)
    said: dict[str, Any] = {"window": Window(length_s=0.4, stride_s=0.2), "network": network, **changes}
    return small_task((camera,), **said)


def sensed_by(task: Task) -> tuple[Modality, Backbone]:
    """What the camera of a prepared task delivers, and its backbone."""
    camera = task.modalities[0].sensed
    assert camera is not None
    assert camera.backbone is not None
    return camera, camera.backbone


def with_backbone(task: Task, **changes: Any) -> Task:
    """A prepared task that says other things of its backbone."""
    camera, eye = sensed_by(task)
    other = camera.model_copy(update={"backbone": eye.model_copy(update=changes)})
    return task.model_copy(update={"modalities": (task.modalities[0].model_copy(update={"sensed": other}),)})
