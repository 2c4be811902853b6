"""Sensors of the Linux Industrial I/O subsystem."""

from edge_agent.sources.iio import source as source  # registers the kind
