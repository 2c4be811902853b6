"""The models that a device runs: of windows, or of graphs; which, the bundle's manifest says."""

from pathlib import Path

from edge_agent.graph_model import GraphModel
from edge_agent.model import LoadedModel, read_manifest

Model = LoadedModel | GraphModel


def load(folder: Path, threads: int) -> Model:
    """Load an unpacked bundle, without running it yet.

    Raises:
        Refused: as :class:`LoadedModel` and :class:`GraphModel`.
    """
    return (LoadedModel if read_manifest(folder).graph is None else GraphModel)(folder, threads)
