"""Sources of samples, found by kind: one module each."""

from edge_agent.sources.base import REGISTRY, Source
from models.data.streams.batches import Batch, LabelBatch, SampleBatch

__all__ = ["REGISTRY", "Batch", "LabelBatch", "SampleBatch", "Source"]
