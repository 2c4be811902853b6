"""A fleet of small graphs for MMFeD3-HidE: parts of one graph, under keys."""

import numpy as np

from models.contract import Blobs, ClientContext, LocalResult, Update
from models.knowledge_graph.data.graph import KnowledgeGraph
from models.knowledge_graph.data.keyed import KeyedGraph
from models.knowledge_graph.data.partition import part
from models.registry import method
from protocol.frames.frame import decode_frame, encode_frame
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Codec, encode
from protocol.tasks.options import Features, KnowledgeGraphTask
from protocol.tasks.task import Task
from tests.support.methods.contract_cases import header_of
from tests.support.methods.graph_cases import SECRET, random_graph

SPEC = method("mmfed3_hide")
DIM = 8


def task_of(**options) -> Task:
    codec = options.pop("codec", "int8")
    small = {"dim": DIM, "negatives": 16, "batch": 128, "epochs": 1, "validation": 0.1}
    return Task(
        name="things",
        method=SPEC.name,
        graph=KnowledgeGraphTask(
            features=(Features(name="text", dim=5), Features(name="numeric", dim=3)), max_entities=200
        ),
        uplink={"codec": codec},
        config=small | options,
        seed=7,
    )


def parts_of(graph: KnowledgeGraph, count: int) -> list[KnowledgeGraph]:
    """One per device, by relation."""
    relations_R = np.arange(len(graph.relations))
    return [part(graph, relations_R[i::count])[0] for i in range(count)]


def keyed(graph: KnowledgeGraph, task: Task) -> KeyedGraph:
    return KeyedGraph.of(graph, SECRET, task)


def fleet_graphs(task: Task, count: int = 3, seed: int = 0) -> list[KeyedGraph]:
    return [keyed(graph, task) for graph in parts_of(random_graph(seed=seed), count)]


def context(task: Task, device: str = "d0", round_: int = 1) -> ClientContext:
    return ClientContext(task=task, device=device, round=round_, seed=5)


def frame_of(task: Task, device: str, graph: KeyedGraph, result: LocalResult) -> bytes:
    codec = Codec(task.uplink.codec)
    encoded = {name: encode(x, result.codecs.get(name, codec)) for name, x in result.tensors.items()}
    return encode_frame(header_of(task, device, graph, result), encoded)


def received(frame: bytes) -> Update:
    return Update(*decode_frame(frame, UpdateHeader))


def routed(state: Blobs, device: str) -> Blobs:
    """The blobs of a version that the device gets."""
    return {n: t for n, t in state.items() if n.startswith("projection/") or n == f"rows/{device}"}


class Fleet:
    """A federation in one process: the data of each device, and the coordinator's state."""

    def __init__(self, task: Task, graphs: dict[str, KeyedGraph]) -> None:
        self.task, self.graphs = task, graphs
        self.server, self.client = SPEC.server(), SPEC.client()
        self.state: Blobs = self.client.initial(task, task.seed)
        self.private: dict[str, dict] = {device: {} for device in graphs}
        self.results: dict[str, LocalResult] = {}
        self.round = 0

    def learnt(self, device: str) -> Update:
        at = context(self.task, device, self.round)
        state = routed(self.state, device)
        result = self.client.train(at, self.graphs[device], state, self.private.get(device, {}))
        self.private[device], self.results[device] = result.private, result
        return received(frame_of(self.task, device, self.graphs[device], result))

    def step(self, devices=None) -> list[Update]:
        """One round of these devices (all)."""
        self.round += 1
        updates = [self.learnt(device) for device in devices or self.graphs]
        fold = self.server.open(self.task, self.round, self.state)
        for update in updates:
            self.server.check(self.task, self.state, update)
            fold.fold(update)
        self.state = fold.close()
        return updates

    def mrr(self) -> float:
        return float(np.mean([result.metrics["mrr"] for result in self.results.values()]))
