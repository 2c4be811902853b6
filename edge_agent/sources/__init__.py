"""Sources of samples, found by kind: one module each."""

from edge_agent.sources.base import REGISTRY, Batch, LabelBatch, SampleBatch, Source, open_source

__all__ = ["REGISTRY", "Batch", "LabelBatch", "SampleBatch", "Source", "open_source"]
