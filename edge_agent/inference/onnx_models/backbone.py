"""A backbone from a file of the device's blobs, in ONNX Runtime."""

from pathlib import Path

from edge_agent.inference.onnx_models.session import onnx_errors, open_file
from models.backbones.model import BackboneModel
from models.contract import FloatArray, Tensors
from protocol.errors import Reason, Refused
from protocol.tasks.task import Modality


class FileBackbone:
    """Of one modality. Synchronous.

    Args:
        path: of the file.
        modality: what the sensor delivers, with its backbone.
        samples: T of its windows.
        threads: of ONNX Runtime.

    Raises:
        Refused: it is another file, is unsafe (``models.backbones.graph_safety``), does not load, or does not
            fit the modality.
        Transient: it cannot be read now.
    """

    def __init__(self, path: Path, modality: Modality, samples: int, threads: int) -> None:
        wanted = modality.backbone.sha256 if modality.backbone else None
        if wanted is None:
            raise Refused(Reason.MALFORMED, f"the backbone of {modality.name!r} has no digest")
        session = open_file(path, wanted, threads)
        self._model = BackboneModel(session, onnx_errors(), modality, samples)
        self.dim = self._model.features
        """D."""

    def run(self, x_BCT: FloatArray, encoder: Tensors) -> FloatArray:
        """The features ``z_BD`` of windows in the modality's unit; ``encoder`` is empty.

        Raises:
            Refused: ONNX Runtime cannot run it, or a feature is not finite.
        """
        del encoder  # a backbone has its weights in its file
        return self._model.run(x_BCT)
