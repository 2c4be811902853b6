"""The role ``prototype``: learning without torch.

The round's own encoders are pulled as blobs and fed, with the task's graphs, to ONNX Runtime (ADR 13); the
method makes a summary of the features by class, and only that is sent. One session at a time, in a thread,
gone when the round is: nothing of ONNX Runtime stays in memory for it.

Shapes: B windows, C channels, T samples, D features.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_agent.config import AgentSettings
from edge_agent.features import BATCH, MAX_GRAPH_BYTES, FeatureGraph
from edge_agent.probe import why_not
from edge_agent.versions import Versions
from edge_agent.window_space import windows_of
from edge_agent.workspace import Workspace
from models import registry
from models.contract import Blobs, ClientContext, FloatArray, LocalResult, Tensors, WindowSet
from models.materials import Material
from models.serve import shed_memory
from protocol.errors import Reason, Refused, Transient
from protocol.messages import BlobRef, Offer
from protocol.task import Task

_SLICE: Final = 4 * BATCH
"""Windows between two looks at whether the work is still wanted."""
_TRIED: Final = 64
_T = TypeVar("_T")


class PrototypeMaker:
    """Makes what a device without torch sends.

    Args:
        settings: of the agent.
        versions: pulls blobs.
        say: told what is being done, and the seconds it may take.
    """

    def __init__(
        self, settings: AgentSettings, versions: Versions, say: Callable[[str, float], None]
    ) -> None:
        self._settings = settings
        self._versions = versions
        self._say = say
        self._tried: set[str] = set()
        """Digests of graphs that run on this device."""

    @staticmethod
    def lack(task: Task, offer: Offer) -> str:
        """Why an offer cannot be taken up in this role, in words; empty where it can."""
        if not registry.method(task.method).prototype_role:
            return f"method {task.method!r} has no use for devices of role 'prototype'"
        if not offer.graphs:
            return (
                "the offer names no feature graphs: the coordinator has none now, or is older than this agent"
            )
        return ""

    async def make(self, offer: Offer, work: Workspace, data: Material, private: Tensors) -> LocalResult:
        """The method's summary of this device's windows.

        Args:
            offer: names base and graphs.
            work: the task, and the modalities that this device has.
            data: labelled windows.
            private: what the method kept here.

        Raises:
            Transient: something was not here in time, ONNX Runtime does not work here, or there is nothing
                to send.
            Refused: a graph or an encoder is damaged, or they do not fit each other.
            Misconfigured: the task is on graphs.
        """
        windows = windows_of(data)
        task, spec = work.task, registry.method(work.task.method)
        prototyper = spec.prototyper()
        has = [name for name in prototyper.modalities(task, windows) if name in work.modalities]
        wanted = tuple(name for name in has if name in offer.graphs)
        if not wanted:
            raise Transient(
                f"there are no feature graphs of {', '.join(has) or 'a modality that labelled windows have'}"
            )
        route = spec.server().prototype_route(task, wanted)
        state, graphs = await self._pulled(offer, route, wanted)
        words = f"making prototypes for round {offer.round} of {len(windows)} windows"
        self._say(words, self._settings.learn.timeout_s)
        context = ClientContext(task, self._settings.device, offer.round, offer.seed)
        threads = self._settings.learn.threads

        def compute(stop: "Halt") -> LocalResult:
            try:
                features = features_of(task, windows, graphs, state, threads, stop)
                return prototyper.summarise(context, windows, features, private)
            except MemoryError:
                raise Transient("there is not enough memory to make prototypes") from None

        try:
            return await self._in_thread(compute)
        finally:
            shed_memory()

    async def _pulled(
        self, offer: Offer, route: tuple[str, ...], wanted: tuple[str, ...]
    ) -> tuple[Blobs, dict[str, bytes]]:
        """The encoders' blobs, and graphs that run on this device."""
        refs = {name: _bounded(name, offer.graphs[name]) for name in wanted}
        self._say(f"fetching encoders and graphs for round {offer.round}", self._settings.fetch_timeout_s)
        state = await self._versions.state(offer, route, refs.values())
        graphs = {}
        for name, ref in refs.items():
            graphs[name] = await asyncio.to_thread(self._versions.blob, f"graph of {name}", ref.digest)
            await self._try(name, ref)
        return state, graphs

    async def _try(self, name: str, ref: BlobRef) -> None:
        """In a child first: a wheel for another processor, or an odd graph, would take the agent with it."""
        if ref.digest in self._tried:
            return
        if why := await why_not(self._versions.path(ref.digest)):
            raise Transient(f"no features of {name} can be computed: {why}")
        self._tried = {*self._tried, ref.digest} if len(self._tried) < _TRIED else {ref.digest}

    async def _in_thread(self, compute: Callable[["Halt"], _T]) -> _T:
        """Cancelled or out of time, it returns when the thread has ended: an operator later, at most."""
        stop, limit_s = Halt(), self._settings.learn.timeout_s
        running = asyncio.ensure_future(asyncio.to_thread(compute, stop))
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(running)
        except TimeoutError:
            raise Transient(f"the prototypes were not made in {limit_s:g} s (learn.timeout_s)") from None
        finally:
            stop.set()
            await asyncio.wait([running])
            running.exception()  # whoever cancelled does not want to know


class Halt:
    """Says from another thread that nobody wants the features any more. One computation only."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._over = False
        self._graph: FeatureGraph | None = None

    def set(self) -> None:
        """End the work: the graph that is running, and all after it."""
        with self._lock:
            self._over = True
            if self._graph is not None:
                self._graph.end()

    def is_set(self) -> bool:
        """Whether nobody wants it."""
        return self._over

    def watch(self, graph: FeatureGraph) -> None:
        """This one runs next."""
        with self._lock:
            self._graph = graph
            if self._over:
                graph.end()


def features_of(  # noqa: PLR0917 - what is computed, of what, with what
    task: Task,
    windows: WindowSet,
    graphs: Mapping[str, bytes],
    state: Blobs,
    threads: int,
    stop: Halt,
) -> dict[str, FloatArray]:
    """Per modality ``z_BD`` for all windows; zeros where it is missing or nothing is labelled.

    Args:
        task: names the columns.
        windows: B of them.
        graphs: serialized, by modality.
        state: the encoders' blobs.
        threads: of ONNX Runtime.
        stop: set when nobody wants the result any more.

    Raises:
        Refused: a graph or an encoder cannot be used; the detail names the modality.
        Transient: stopped.
    """
    found: dict[str, FloatArray] = {}
    for name, data in graphs.items():
        use_B = windows.present_BM[:, task.modality_names.index(name)] & (windows.y_B >= 0)
        encoder = {tensor: x for blob in state.values() for tensor, x in blob.items() if _is_of(name, tensor)}
        try:
            graph = _loaded(data, threads, task.network.feature_dim)  # the one before it is dropped here
            stop.watch(graph)
            found[name] = _run(graph, windows.x[name], use_B, encoder, stop)
        except Refused as error:
            if stop.is_set():
                raise _unwanted() from None
            raise Refused(error.reason, f"features of {name}: {error.detail}"[:500]) from None
    return found


def _loaded(data: bytes, threads: int, dim: int) -> FeatureGraph:
    graph = FeatureGraph(data, threads)
    if graph.dim != dim:
        raise Refused(
            Reason.WRONG_TENSORS, f"the graph gives features of {graph.dim} values, the task says {dim}"
        )
    return graph


def _is_of(modality: str, tensor: str) -> bool:
    return tensor.startswith(f"encoder/{modality}/")


def _run(
    graph: FeatureGraph,
    x_BCT: FloatArray,
    use_B: NDArray[np.bool_],
    encoder: Tensors,
    stop: Halt,
) -> FloatArray:
    rows_N = np.flatnonzero(use_B)
    z_BD = np.zeros((len(x_BCT), 0), np.float32)
    for at in range(0, len(rows_N), _SLICE):
        if stop.is_set():
            raise _unwanted()
        rows = rows_N[at : at + _SLICE]
        z_ND = graph.run(x_BCT[rows], encoder)
        if not at:
            z_BD = np.zeros((len(x_BCT), z_ND.shape[1]), np.float32)
        z_BD[rows] = z_ND
    return z_BD


def _unwanted() -> Transient:
    return Transient("the prototypes are not wanted any more")


def _bounded(name: str, ref: BlobRef) -> BlobRef:
    """Before a byte of it is pulled."""
    if ref.size > MAX_GRAPH_BYTES:
        raise Refused(
            Reason.TOO_LARGE, f"the feature graph of {name} has {ref.size} bytes, at most {MAX_GRAPH_BYTES}"
        )
    return ref
