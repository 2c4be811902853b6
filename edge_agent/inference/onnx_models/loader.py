"""Loads the models that a device runs: on windows or on knowledge graphs, as the bundle's manifest says."""

from pathlib import Path

from edge_agent.inference.onnx_models.compatibility import MODEL_FILE
from edge_agent.inference.onnx_models.completion_model import CompletionModel
from edge_agent.inference.onnx_models.window_model import LoadedModel, read_manifest
from edge_agent.inference.providers.kinds import ON_CPU, Provider

Model = LoadedModel | CompletionModel


def load(folder: Path, threads: int, file: str = MODEL_FILE, provider: Provider = ON_CPU) -> Model:
    """Load an unpacked bundle into this process, without a test run; the arguments are a model's.

    Raises:
        Refused: as :class:`LoadedModel` and :class:`CompletionModel`.
    """
    kind = LoadedModel if read_manifest(folder).graph is None else CompletionModel
    return kind(folder, threads, file, provider)
