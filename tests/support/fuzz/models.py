"""ONNX models for the corpus: real ones as export writes them, and some that hide content by their encoding.

torch takes seconds to export one, so they are made once (``python -m tests.support.fuzz.corpus make``).
"""

from collections.abc import Iterator

import numpy as np
import onnx

from tests.support.fuzz.protobuf_forms import BENDS, FIFTH, graph_bent, parse, write

DEVICE_KEY = "identity/device.pem"
_KIND = "closed_graph"


def hiding(data: bytes, location: str = DEVICE_KEY, fifth: int = FIFTH[0]) -> bytes:
    """A model that multiplies its output by a constant from a file; its graph has a tag of five bytes."""
    return graph_bent(naming(data, location), f"five-{fifth:02x}")


def naming(data: bytes, location: str = DEVICE_KEY) -> bytes:
    """As :func:`hiding`, in the usual encoding."""
    model = onnx.load_from_string(data)
    graph = model.graph
    dim = graph.output[0].type.tensor_type.shape.dim[-1].dim_value
    secret = onnx.TensorProto(name="secret", data_type=onnx.TensorProto.FLOAT, dims=[dim, dim])
    secret.data_location = onnx.TensorProto.EXTERNAL
    secret.external_data.add(key="location", value=location)
    graph.initializer.append(secret)
    last = next(node for node in graph.node if graph.output[0].name in node.output)
    last.output[:] = ["without" if name == graph.output[0].name else name for name in last.output]
    graph.node.append(onnx.helper.make_node("MatMul", ["without", "secret"], [graph.output[0].name]))
    return bytes(model.SerializeToString(deterministic=True))


def as_ort(data: bytes) -> bytes:
    """A model with ``ORTM`` where ONNX Runtime looks for its own format; otherwise valid."""
    items = [item for item in parse(data) if item.number not in {1, 2}]
    return b"\x12\x06xxORTM" + b"\x08\x09" + write(items)


def models() -> Iterator[tuple[str, str, bytes]]:
    """Decoder, file name and bytes."""
    real = dict(_exported())
    for name, data in real.items():
        yield _KIND, name, data
    feature = real["feature.onnx"]
    for name in BENDS:
        yield _KIND, f"graph {name}.onnx".replace(" ", "-"), graph_bent(feature, name)
    for fifth in FIFTH:
        yield _KIND, f"hiding-{fifth:02x}.onnx", hiding(feature, fifth=fifth)
    yield _KIND, "naming.onnx", naming(feature)
    yield _KIND, "as-ort.onnx", as_ort(feature)


def _exported() -> Iterator[tuple[str, bytes]]:
    import torch  # noqa: PLC0415 - needed only here
    from torch import nn  # noqa: PLC0415 - as above

    from export import completion  # noqa: PLC0415 - as above
    from export.encoder_models import make_encoder_models  # noqa: PLC0415 - as above
    from export.int8 import quantize  # noqa: PLC0415 - as above
    from export.onnx_graph import serialized, to_onnx  # noqa: PLC0415 - as above
    from export.overridable_inputs import paths_of  # noqa: PLC0415 - as above
    from models.knowledge_graph.networks.completion import Completer  # noqa: PLC0415 - as above
    from models.knowledge_graph.networks.triple_scores import SCORES  # noqa: PLC0415 - as above
    from protocol.tasks.network import Encoder  # noqa: PLC0415 - as above
    from tests.support.methods.qqr_cases import task  # noqa: PLC0415 - as above
    from tests.support.methods.several_targets import TASK, Several  # noqa: PLC0415 - as above

    torch.manual_seed(0)
    module = Several().eval()
    whole = to_onnx(module, TASK, paths_of(module, ("last",)))
    yield "windows.onnx", whole
    encoders = {"acc": Encoder(kind="cnn1d", width=4, depth=1)}
    made = task().model_copy(update={"network": task().network.model_copy(update={"encoders": encoders})})
    yield "feature.onnx", next(iter(make_encoder_models(made).values()))
    yield "completion.onnx", completion.to_onnx(Completer(SCORES["transe"](8, 12.0), 1, 4).eval())
    net = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Conv1d(4, 3, 3)).eval()
    plain = serialized(
        net,
        (torch.zeros(3, 2, 12),),
        names=["x"],
        outputs=["y"],
        dynamic=({0: torch.export.Dim("batch")},),
    )
    rng = np.random.default_rng(0)
    small = quantize.quantized(
        plain, [{"x": rng.standard_normal((1, 2, 12)).astype(np.float32)} for _ in range(4)]
    )
    assert small is not None
    yield "int8.onnx", small
