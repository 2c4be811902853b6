"""An encoder without torch: an ONNX model of the task, given the tensors of any version's encoder blob.

Shapes: B windows, C channels, T samples, D features.
"""

import math
from typing import Any, Final

import numpy as np

from edge_agent.inference.onnx_models.session import onnx_errors, session_of
from models.contract import FloatArray, Tensors
from protocol.errors import Reason, Refused

INPUT: Final = "x"
OUTPUT: Final = "feature"
MAX_MODEL_BYTES: Final = 1024 * 1024
"""An ONNX model of sixteen convolutions has some 30 KB: it holds no weights."""
BATCH: Final = 64
"""Windows of one call at most: bounds the memory of a pass for any number of windows."""
_CALL_VALUES: Final = 1 << 19
"""Values of their inputs at most: between two operators an image has ten times as many, or more."""


class EncoderModel:
    """One modality's ONNX model in ONNX Runtime. Synchronous.

    Args:
        data: a serialized model, as ``export.encoder_models`` makes it.
        threads: of ONNX Runtime.

    Raises:
        Refused: too large, unsafe (``graph_safety``), it does not load, or its inputs and outputs are not an
            encoder model's.
    """

    def __init__(self, data: bytes, threads: int = 1) -> None:
        if len(data) > MAX_MODEL_BYTES:
            raise Refused(Reason.TOO_LARGE, f"encoder model of {len(data)} bytes, at most {MAX_MODEL_BYTES}")
        self._session: Any = session_of(data, "the encoder model", threads)
        self._shapes = {i.name: tuple(i.shape) for i in self._session.get_inputs()}
        given = self._session.get_outputs()
        outputs = [o.name for o in given]
        if outputs != [OUTPUT] or len(self._shapes.get(INPUT, ())) != 3:  # noqa: PLR2004 - B, C, T
            raise Refused(
                Reason.WRONG_TENSORS,
                f"the encoder model gives {', '.join(outputs)} of {', '.join(self._shapes)[:200]}, "
                f"not {OUTPUT!r} of {INPUT!r} and an encoder's tensors",
            )

        dim = given[0].shape[-1] if given[0].shape else 0
        self._dim = dim if isinstance(dim, int) else 0
        values = math.prod(n if isinstance(n, int) else 1 for n in self._shapes[INPUT][1:])
        self.at_once = max(1, min(BATCH, _CALL_VALUES // max(1, values)))
        """Windows of one call."""

    @property
    def dim(self) -> int:
        """D; 0 if the ONNX model does not declare it."""
        return self._dim

    def run(self, x_BCT: FloatArray, encoder: Tensors) -> FloatArray:
        """The features ``z_BD`` of all windows, before normalisation, in batches of :attr:`at_once`.

        Args:
            x_BCT: float32, in the modality's unit.
            encoder: the tensors of one blob ``encoder/<modality>``, by full name.

        Raises:
            Refused: names or shapes differ from the ONNX model's, ONNX Runtime cannot run it, or a feature of
                finite windows is not finite.
        """
        self._require(x_BCT, encoder)
        count = self.at_once
        parts = [self._batch(x_BCT[at : at + count], encoder) for at in range(0, len(x_BCT), count)]
        z_BD: FloatArray = np.concatenate([np.zeros((0, self._dim), np.float32), *parts])
        if not np.isfinite(z_BD).all():
            raise Refused(Reason.NON_FINITE, "the encoder model gave features that are not finite")
        return z_BD

    def try_once(self) -> None:
        """Run an encoder of ones on a full batch of zeros, the batch that needs the most memory.

        Raises:
            Refused: as :meth:`run`.
        """
        ones = {name: np.ones(shape, np.float32) for name, shape in self._shapes.items() if name != INPUT}
        self.run(np.zeros((self.at_once, *self._shapes[INPUT][1:]), np.float32), ones)

    def _require(self, x_BCT: FloatArray, encoder: Tensors) -> None:
        wanted = self._shapes.keys() - {INPUT}
        if wanted != encoder.keys():
            stray = sorted(wanted ^ encoder.keys())
            raise Refused(
                Reason.WRONG_TENSORS, f"graph and encoder differ in tensor {stray[0]!r} ({len(stray)} such)"
            )
        for name, value in encoder.items():
            if self._shapes[name] != value.shape:
                raise Refused(
                    Reason.WRONG_TENSORS,
                    f"tensor {name!r} has shape {value.shape}, the ONNX model takes {self._shapes[name]}",
                )
        if x_BCT.shape[1:] != (taken := self._shapes[INPUT][1:]):
            raise Refused(
                Reason.WRONG_TENSORS,
                f"windows are {x_BCT.shape[1:]} (channels, samples), the ONNX model takes {taken}",
            )

    def _batch(self, x_BCT: FloatArray, encoder: Tensors) -> FloatArray:
        feeds = {INPUT: np.ascontiguousarray(x_BCT, np.float32), **encoder}
        try:
            (z_BD,) = self._session.run([OUTPUT], feeds)
        except onnx_errors() as error:
            raise Refused(Reason.MALFORMED, f"the encoder model does not run: {error}"[:500]) from None
        found: FloatArray = np.asarray(z_BD)
        if found.dtype != np.float32 or found.shape != (len(x_BCT), self._dim):
            raise Refused(
                Reason.WRONG_TENSORS, f"{len(x_BCT)} windows gave {found.dtype} features of {found.shape}"
            )
        return found
