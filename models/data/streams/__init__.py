"""Streams, below both daemons (ADR 17): recordings, label tracks, and cutting samples into windows. NumPy."""
