"""Reads cameras and microphones in a process of its own, by GStreamer (docs/cameras.md).

The agent starts ``python -P -m edge_agent.media``, writes a job to its standard input, and reads packets from
its standard output. A driver or decoder that crashes or hangs ends this process, and not the agent. Standard
library only: GStreamer's own libraries are called by ctypes, so that no binding is installed (ADR 51).
"""
