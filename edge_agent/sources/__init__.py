"""Sources of samples: one module for each kind."""

from edge_agent.sources.base import REGISTRY, Source
from models.data.streams.batches import Batch, LabelBatch, SampleBatch

__all__ = ["REGISTRY", "Batch", "LabelBatch", "SampleBatch", "Source"]
