"""An encoder model or a backbone in a process of its own (``onnx_models``).

Shapes: B windows, C channels, T samples, D features.
"""

from pathlib import Path
from typing import Final

import numpy as np

from edge_agent.inference.onnx_models.exit_words import exit_words
from edge_agent.inference.serving.codec import Arrays, Header
from edge_agent.inference.serving.host import ChannelClosed
from edge_agent.inference.serving.in_process import Host, ModelChannel
from edge_agent.inference.serving.model_server import BACKBONE, FEATURE, GRAPH, WINDOWS
from edge_agent.inference.serving.served_model import OPEN_TIMEOUT_S, require_answer
from models.contract import FloatArray, Tensors
from protocol.errors import Transient
from protocol.tasks.task import Modality

_F4: Final = np.dtype(np.float32)
_MAX_DIM: Final = 65536
_NONSENSE: Final = "the process that computes features answers nonsense"


class FeatureProcess:
    """Started by :meth:`open`; :meth:`close` ends it in any state.

    Args:
        host: where it runs.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._channel: ModelChannel | None = None
        self._pid: int | None = None
        self.dim = 0
        """D; 0 if the ONNX model does not declare it."""

    async def open(self, data: bytes, threads: int) -> None:
        """Load an ONNX model.

        Raises:
            Refused: it cannot be run.
            Transient: no process can be started, or the ONNX model killed it; the message says which.
        """
        graph = {GRAPH: np.frombuffer(data, np.uint8)}
        await self._open({"threads": threads}, graph)

    async def open_backbone(self, path: Path, modality: Modality, samples: int, threads: int) -> None:
        """Load a backbone from a file, of which the process takes a checked copy.

        Args:
            path: of the file.
            modality: what the sensor delivers, with its backbone.
            samples: T of its windows.
            threads: of ONNX Runtime.

        Raises:
            Refused, Transient: as :meth:`open`.
        """
        header = {
            "threads": threads,
            "folder": str(path.parent.absolute()),
            BACKBONE: path.name,
            "modality": modality.model_dump_json(),
            "samples": samples,
        }
        await self._open(header, {})

    async def _open(self, header: Header, given: Arrays) -> None:
        self._pid, self._channel = await self._host.channel()
        said, _ = await self._request({"op": "open", **header}, given, OPEN_TIMEOUT_S, 0)
        dim = said.get("dim")
        if type(dim) is not int or not 0 <= dim <= _MAX_DIM:
            raise Transient(_NONSENSE)
        self.dim = dim

    async def run(self, x_BCT: FloatArray, encoder: Tensors, timeout_s: float) -> FloatArray:
        """The features ``z_BD``: ``EncoderModel.run``, or ``BackboneModel.run`` without an ``encoder``.

        Raises:
            Refused: as there.
            Transient: the process died, did not answer in time, or answered nonsense.
        """
        size = (len(x_BCT), self.dim)
        given = {**encoder, WINDOWS: np.asarray(x_BCT, np.float32)}
        _, found = await self._request({"op": "features"}, given, timeout_s, 4 * size[0] * size[1])
        z_BD = found.get(FEATURE)
        if z_BD is None or z_BD.shape != size or z_BD.dtype != _F4 or not np.isfinite(z_BD).all():
            raise Transient(_NONSENSE)
        return z_BD

    async def _request(
        self, header: Header, given: Arrays, timeout_s: float, max_body: int
    ) -> tuple[Header, Arrays]:
        if self._channel is None:
            raise Transient("there is no process")
        try:
            said, found = await self._channel.ask(header, given, timeout_s, max_body)
        except ChannelClosed as error:
            pid, self._pid = self._pid, None
            status = None if pid is None else await self._host.exit_status(pid)
            raise Transient(exit_words(status or 0, "") or str(error)) from None
        require_answer(said)
        return said, found

    def close(self) -> None:
        """End the process."""
        if self._channel is not None:
            self._channel.close()
        if self._pid is not None:
            self._host.end(self._pid)
        self._channel = self._pid = None
