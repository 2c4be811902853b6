"""Sensors on a serial line."""

from edge_agent.sources.serial import source as source  # registers the kind
