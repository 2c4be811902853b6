"""``lichen bench secure``: what secure aggregation costs, beside Flower's SecAgg+."""

from lichen_lab.benchmarks.suite.secure.bench import BENCH

__all__ = ["BENCH"]
