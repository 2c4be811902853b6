"""The role ``prototype``: learning without torch.

The round's encoders are fetched as blobs and given, with the task's ONNX models, to ONNX Runtime (ADR 13);
the method summarizes the features by class, and only the summary is sent. One ONNX model at a time runs, in a
process of its own (``edge_agent.inference.serving``) that ends with it: neither a wheel for another processor
nor a faulty ONNX model can crash the agent.

Shapes: B windows, C channels, T samples, D features.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_agent.config.agent import AgentSettings
from edge_agent.features.feature_process import FeatureProcess
from edge_agent.inference.onnx_models.encoder_model import BATCH, MAX_MODEL_BYTES, EncoderModel
from edge_agent.inference.serving.zygote_client import ZygoteClient
from edge_agent.tasks.workspace import TrainingData
from edge_agent.training.model_blobs import ModelBlobs
from edge_agent.windows.workspace import require_windows
from models import registry
from models.contract import Blobs, ClientContext, FloatArray, LocalResult, Tensors, WindowSet
from models.materials import Material
from models.worker.job_loop import shed_memory
from protocol.errors import Reason, Refused, Transient
from protocol.messages import BlobRef, Offer
from protocol.tasks.task import Task

_SLICE: Final = 4 * BATCH
"""Windows of one request to a process."""
_T = TypeVar("_T")


class PrototypeMaker:
    """Makes the update of a device without torch.

    Args:
        settings: of the agent.
        blobs: fetches encoders and ONNX models.
        say: is told the present step, and the seconds it may take.
        zygote: starts processes; None: one of its own, that ends with :meth:`close`.
    """

    def __init__(
        self,
        settings: AgentSettings,
        blobs: ModelBlobs,
        say: Callable[[str, float], None],
        zygote: ZygoteClient | None = None,
    ) -> None:
        self._settings = settings
        self._blobs = blobs
        self._say = say
        self._zygote = zygote or ZygoteClient(settings.log)
        self._is_ours = zygote is None

    async def close(self) -> None:
        """End the zygote, if it is our own."""
        if self._is_ours:
            await self._zygote.aclose()

    @staticmethod
    def refusal(task: Task, offer: Offer) -> str:
        """Why this role cannot take up an offer; empty if it can."""
        if not registry.method(task.method).prototype_role:
            return f"method {task.method!r} has no use for devices of role 'prototype'"
        if not offer.graphs:
            return (
                "the offer names no encoder models: the coordinator has none now, or is older than this agent"
            )
        return ""

    async def make(
        self, offer: Offer, work: TrainingData, data: Material, private: Tensors, seed: int
    ) -> LocalResult:
        """The method's summary of this device's windows.

        Args:
            offer: names base and ONNX models.
            work: the task, and the modalities that this device has.
            data: labelled windows.
            private: the method's private tensors.
            seed: of the round on this device.

        Raises:
            Transient: a blob was not here in time, ONNX Runtime does not work here, or there is nothing to
                send.
            Refused: an ONNX model or an encoder is damaged, or they do not match.
            Misconfigured: the task is on knowledge graphs.
        """
        windows = require_windows(data)
        task, spec = work.task, registry.method(work.task.method)
        prototyper = spec.prototyper()
        has = [name for name in prototyper.modalities(task, windows) if name in work.modalities]
        wanted = tuple(name for name in has if name in offer.graphs)
        if not wanted:
            raise Transient(
                f"there are no encoder models of {', '.join(has) or 'a modality that labelled windows have'}"
            )
        route = spec.server().prototype_route(task, wanted)
        state, graphs = await self._pulled(offer, route, wanted)
        words = f"making prototypes for round {offer.round} of {len(windows)} windows"
        self._say(words, self._settings.learn.timeout_s)
        context = ClientContext(task, self._settings.device, offer.round, seed)
        limit_s = self._settings.learn.timeout_s
        try:
            async with asyncio.timeout(limit_s):
                features = await self._features(task, windows, graphs, state)
                return await _in_thread(partial(prototyper.summarise, context, windows, features, private))
        except TimeoutError:
            raise Transient(f"the prototypes were not made in {limit_s:g} s (learn.timeout_s)") from None
        finally:
            shed_memory()

    async def _features(
        self, task: Task, windows: WindowSet, graphs: Mapping[str, bytes], state: Blobs
    ) -> dict[str, FloatArray]:
        """As :func:`features_of`, each ONNX model in a process of its own."""
        found: dict[str, FloatArray] = {}
        for name, data in graphs.items():
            rows_N, encoder = _select_rows(task, windows, state, name)
            process = FeatureProcess(self._zygote)
            try:
                await _open(process, data, self._settings.learn.threads)
                _require_dim(process.dim, task.network.feature_dim)
                z_BD = np.zeros((len(windows), process.dim if len(rows_N) else 0), np.float32)
                for at in range(0, len(rows_N), _SLICE):
                    rows = rows_N[at : at + _SLICE]
                    limit_s = self._settings.learn.timeout_s
                    z_BD[rows] = await process.run(windows.x[name][rows], encoder, limit_s)
            except Refused as error:
                raise Refused(error.reason, f"features of {name}: {error.detail}"[:500]) from None
            except Transient as error:
                raise Transient(f"no features of {name} can be computed: {error}") from None
            finally:
                process.close()
            found[name] = z_BD
        return found

    async def _pulled(
        self, offer: Offer, route: tuple[str, ...], wanted: tuple[str, ...]
    ) -> tuple[Blobs, dict[str, bytes]]:
        """Fetch the encoders' blobs, and the ONNX models that run on this device."""
        refs = {name: _require_size(name, offer.graphs[name]) for name in wanted}
        self._say(
            f"fetching encoders and encoder models for round {offer.round}", self._settings.fetch_timeout_s
        )
        state = await self._blobs.fetch(offer, route, refs.values())
        graphs = {}
        for name, ref in refs.items():
            graphs[name] = await asyncio.to_thread(self._blobs.blob, f"graph of {name}", ref.digest)
        return state, graphs


def features_of(
    task: Task, windows: WindowSet, graphs: Mapping[str, bytes], state: Blobs, threads: int
) -> dict[str, FloatArray]:
    """Per modality ``z_BD`` for all windows; zeros without the modality or a label.

    Runs in this process; the agent uses :class:`PrototypeMaker`.

    Args:
        task: names the columns.
        windows: B of them.
        graphs: serialized, by modality.
        state: the encoders' blobs.
        threads: of ONNX Runtime.

    Raises:
        Refused: an ONNX model or an encoder cannot be used; the detail names the modality.
    """
    found: dict[str, FloatArray] = {}
    for name, data in graphs.items():
        rows_N, encoder = _select_rows(task, windows, state, name)
        try:
            graph = EncoderModel(data, threads)  # this drops the former one
            _require_dim(graph.dim, task.network.feature_dim)
            z_BD = np.zeros((len(windows), graph.dim if len(rows_N) else 0), np.float32)
            for at in range(0, len(rows_N), _SLICE):
                rows = rows_N[at : at + _SLICE]
                z_BD[rows] = graph.run(windows.x[name][rows], encoder)
        except Refused as error:
            raise Refused(error.reason, f"features of {name}: {error.detail}"[:500]) from None
        found[name] = z_BD
    return found


def _select_rows(task: Task, windows: WindowSet, state: Blobs, name: str) -> tuple[NDArray[np.intp], Tensors]:
    """The rows with a modality and a label, and the tensors of its encoder."""
    use_B = windows.present_BM[:, task.modality_names.index(name)] & (windows.y_B >= 0)
    ours = f"encoder/{name}/"
    encoder = {key: x for blob in state.values() for key, x in blob.items() if key.startswith(ours)}
    return np.flatnonzero(use_B), encoder


def _require_dim(dim: int, wanted: int) -> None:
    if dim != wanted:
        raise Refused(
            Reason.WRONG_TENSORS,
            f"the encoder model gives features of {dim} values, the task says {wanted}",
        )


async def _open(process: FeatureProcess, data: bytes, threads: int) -> None:
    """Raises Transient: the ONNX model or ONNX Runtime may be another one next time."""
    try:
        await process.open(data, threads)
    except Refused as error:
        raise Transient(str(error)) from None


async def _in_thread(compute: Callable[[], _T]) -> _T:
    """If cancelled or out of time, return when the thread has ended."""

    def bounded() -> _T:
        try:
            return compute()
        except MemoryError:
            raise Transient("there is not enough memory to make prototypes") from None

    running = asyncio.ensure_future(asyncio.to_thread(bounded))
    try:
        return await asyncio.shield(running)
    finally:
        await asyncio.wait([running])
        running.exception()  # the caller was cancelled


def _require_size(name: str, ref: BlobRef) -> BlobRef:
    """Check the size before anything is fetched."""
    if ref.size > MAX_MODEL_BYTES:
        raise Refused(
            Reason.TOO_LARGE, f"the encoder model of {name} has {ref.size} bytes, at most {MAX_MODEL_BYTES}"
        )
    return ref
