"""A model in a folder, loaded into ONNX Runtime, which is imported here and nowhere else in the agent.

Shapes: B windows, M modalities, C channels, T samples, K classes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from edge_agent.fit import MODEL_FILE, PRESENT
from protocol.bundle import BundleManifest
from protocol.errors import Reason, Refused
from protocol.frame import digest

MANIFEST_FILE: Final = "manifest.json"


def read_manifest(folder: Path) -> BundleManifest:
    """The manifest of an unpacked bundle whose files are what it says.

    Raises:
        Refused: it is not there or not readable, or a file was damaged since.
    """
    path = folder / MANIFEST_FILE
    try:
        manifest = BundleManifest.model_validate_json(path.read_bytes())
        damaged = [
            name for name, ref in manifest.files.items() if digest((folder / name).read_bytes()) != ref.digest
        ]
    except (OSError, ValidationError) as error:
        raise Refused(Reason.MALFORMED, f"{path}: {error}"[:500]) from None
    if damaged:
        raise Refused(Reason.WRONG_DIGEST, f"{folder / damaged[0]} is not what its manifest says")
    return manifest


class LoadedModel:
    """An inference session.

    Args:
        folder: an unpacked bundle.
        threads: of ONNX Runtime.

    Raises:
        Refused: the file does not load, or its inputs are not those of its manifest.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        import onnxruntime  # noqa: PLC0415 - an optional part, and slow to import

        self.manifest = read_manifest(folder)
        self.digest = folder.name
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = False  # an arena never gives memory back, and a reload makes a new one
        options.log_severity_level = 3
        try:
            self._session: Any = onnxruntime.InferenceSession(
                str(folder / MODEL_FILE), options, providers=["CPUExecutionProvider"]
            )
        except _onnx_errors() as error:
            raise Refused(Reason.MALFORMED, f"{folder / MODEL_FILE} does not load: {error}"[:500]) from None
        self._names = [m.name for m in self.manifest.modalities]
        self._require_inputs()

    def _require_inputs(self) -> None:
        expected: dict[str, list[int]] = {
            m.name: [m.channels, self.manifest.samples.get(m.name, 0)] for m in self.manifest.modalities
        }
        expected[PRESENT] = [len(self._names)]
        found = {i.name: list(i.shape[1:]) for i in self._session.get_inputs()}
        if set(found) != set(expected):
            raise Refused(
                Reason.WRONG_TENSORS, f"the graph's inputs are {sorted(found)}, not {sorted(expected)}"
            )
        for name, dims in expected.items():
            pairs = zip(found[name], dims, strict=False)
            if len(found[name]) != len(dims) or any(isinstance(a, int) and a != b for a, b in pairs):
                raise Refused(
                    Reason.WRONG_TENSORS, f"the graph's input {name!r} is {found[name]}, not {dims}"
                )

    def predict(
        self, x: Mapping[str, NDArray[np.float32]], present_BM: NDArray[np.bool_], columns: list[str]
    ) -> NDArray[np.float32]:
        """Probabilities ``(B, K)``.

        Args:
            x: per modality ``x_BCT`` in raw units.
            present_BM: availability.
            columns: the modality of each of its columns.

        Raises:
            Refused: ONNX Runtime cannot run it.
        """
        order = [columns.index(name) for name in self._names]
        feeds = {name: x[name] for name in self._names}
        feeds[PRESENT] = present_BM[:, order].astype(np.float32)
        try:
            (probabilities_BK,) = self._session.run(["probabilities"], feeds)
        except _onnx_errors() as error:
            raise Refused(Reason.MALFORMED, f"the model does not run: {error}"[:500]) from None
        return np.asarray(probabilities_BK, np.float32)

    def try_once(self) -> None:
        """Run one window of zeros.

        Raises:
            Refused: it fails, or the answer is not one finite probability a label.
        """
        x = {
            m.name: np.zeros((1, m.channels, self.manifest.samples[m.name]), np.float32)
            for m in self.manifest.modalities
        }
        answer = self.predict(x, np.ones((1, len(self._names)), np.bool_), self._names)
        if answer.shape != (1, len(self.manifest.labels)) or not np.isfinite(answer).all():
            raise Refused(
                Reason.WRONG_TENSORS, f"one window gave probabilities of shape {answer.shape}, or not finite"
            )


def _onnx_errors() -> tuple[type[Exception], ...]:
    """What ONNX Runtime raises: its own errors have no base but Exception, so they are named one by one."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state  # noqa: PLC0415 - an optional part

    names = ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoSuchFile", "NotImplemented")
    more = ("RuntimeException", "EPFail", "NoModel", "EngineError", "ModelLoaded")
    found = [getattr(state, name) for name in (*names, *more) if hasattr(state, name)]
    return (*found, RuntimeError, ValueError)
