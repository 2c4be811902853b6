"""Cameras, microphones and other pipelines of GStreamer, read in a process of their own (docs/cameras.md)."""

from edge_agent.sources.gstreamer import kinds as kinds  # registers the kinds
