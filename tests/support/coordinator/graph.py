"""A knowledge-graph fleet for coordinator tests: a small task, jobs without torch, updates with rows."""

from collections.abc import Mapping
from hashlib import sha256

import numpy as np

from coordinator.workers.jobs import ExportedBundle
from models.contract import Evaluation, Tensors
from models.knowledge_graph.data import keys as hashes
from models.knowledge_graph.data.keys import KEY_BYTES
from models.methods.mmfed3_hide.messages import Sent, base_keys, projection_name
from models.methods.mmfed3_hide.server import make_server
from protocol import messages
from protocol.frames.frame import encode_frame
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Codec, encode
from protocol.messages import ModalityState
from protocol.tasks.options import Features, KnowledgeGraphTask
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task
from protocol.topics import Kind
from tests.support.coordinator.bench import Bench, bench
from tests.support.coordinator.fake import TinyJobs

DIM = 8
WIDTH = 3


def graph_task(dim: int = DIM, graph: Mapping[str, object] | None = None, **rounds: object) -> Task:
    """A task with one modality of entities, ``text``."""
    bounds = {"features": (Features(name="text", dim=WIDTH),), "max_entities": 64, **(graph or {})}
    return Task(
        name="things",
        method="mmfed3_hide",
        graph=KnowledgeGraphTask.model_validate(bounds),
        config={"dim": dim},
        rounds=Rounds(**({"count": 2, "deadline_s": 20.0, "min_windows": 1} | rounds)),
    )


def graph_bench(folder, task: Task, jobs: "GraphJobs | None" = None, **settings: object):
    """A running coordinator of that task with the method's own server half."""
    return bench(folder, task, jobs or GraphJobs(task), make_server(), **settings)


class GraphJobs(TinyJobs):
    """Version 0 is the projection alone. ``judged``, ``exported``: names of the blobs of each job's state."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.dim = task.config["dim"]
        self.judged: list[tuple[str, ...]] = []
        self.exported: list[tuple[str, ...]] = []

    async def initial(self):
        self._say("initial")
        return {"projection/text": {projection_name("text"): np.zeros((self.dim, WIDTH), np.float32)}}

    async def evaluate(self, state):
        self._say("evaluate")
        self.judged.append(tuple(sorted(state)))
        return Evaluation({"mrr": 1.0}, [])

    async def export(self, state, lineage):
        self._say("export")
        self.exported.append(tuple(sorted(state)))
        return ExportedBundle(f"bundle {lineage.version} {lineage.metrics}".encode(), {})


def things(*names: str) -> np.ndarray:
    """Keys of entities as a fleet's secret might make them, ascending; (n, 16) uint8."""
    digests = b"".join(sha256(name.encode()).digest()[:KEY_BYTES] for name in names)
    return hashes.union([np.frombuffer(digests, np.uint8).reshape(-1, KEY_BYTES)])


def rows_of(state, device: str, keys_n16: np.ndarray, value: float, dim: int = DIM) -> Tensors:
    """The update of a device that has these entities and moved each of their rows by ``value``."""
    base_16 = base_keys(state, device)
    new_k16 = keys_n16[hashes.rows(base_16, keys_n16) < 0]
    every_n16 = hashes.union((base_16, new_k16))
    delta = np.full((len(every_n16), dim), value, np.float32)
    gone_b, sent_n = np.zeros(len(base_16), np.bool_), np.ones(len(every_n16), np.bool_)
    return Sent(new_k16, gone_b, every_n16, sent_n, delta).tensors()


def graph_frame(header: UpdateHeader, tensors: Tensors, codec: Codec = Codec.FLOAT32) -> bytes:
    """An update as the agent packs it: keys and bitmap exact."""
    exact = {name: Codec.UINT8 for name in tensors if name.startswith("keys/")}
    return encode_frame(header, {name: encode(t, exact.get(name, codec)) for name, t in tensors.items()})


def graph_header(device: str, round_: int, base: str, triples: int = 10, **changes: object) -> UpdateHeader:
    given = {
        "task": "things",
        "method": "mmfed3_hide",
        "device": device,
        "round": round_,
        "base": base,
        "weight": triples,
        "samples": triples,
        "counts": {"text": (triples // 2,)},
        "missing": {"text": 0.5},
        "quality": {"text": 1.0},
    }
    return UpdateHeader.model_validate(given | changes)


async def gateways_online(made: Bench, *devices: str, triples: int = 10, **changes: object) -> None:
    """Let gateways report their graphs."""
    known = {"text": ModalityState(windows=(triples // 2,), missing=0.5)}
    told = {"modalities": known, "targets": (), **changes}
    await made.online(*devices, windows=triples, **told)


async def graph_update(
    made: Bench, device: str, keys_n16: np.ndarray, value: float, triples: int = 10, **changes: object
) -> bytes:
    """A device's update for the open round; the projection moves by ``value``, too."""
    state, open_ = await made.app.model.state(), made.app.driver.state
    projection = projection_name("text")
    dim = state["projection/text"][projection].shape[0]
    tensors = rows_of(state, device, keys_n16, value, dim)
    tensors[projection] = np.full((dim, WIDTH), value, np.float32)
    return graph_frame(graph_header(device, open_.round, open_.manifest, triples, **changes), tensors)


async def deliver_rows(made: Bench, device: str, keys_n16: np.ndarray, value: float, **changes) -> bytes:
    """Send it, and check its receipt."""
    update = await graph_update(made, device, keys_n16, value, **changes)
    await made.give(device, Kind.UPDATE, update)
    last = made.link.receipts(device)[-1]
    assert last.status == "accepted", last.detail
    return update


def served(made: Bench, device: str, digest: str) -> bytes:
    """The bytes of that blob that were sent to a device."""
    return b"".join(p for t, p, _ in made.link.sent if f"/{device}/" in t and digest in t)


def denied(made: Bench, device: str, digest: str) -> bool:
    """Whether the device got the reply that there is no such blob."""
    told = made.link.to(device, Kind.CMD)
    return messages.Command(command="no_such_blob", digest=digest) in told
