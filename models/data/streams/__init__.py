"""Streams, below both daemons (ADR 17): recordings, label tracks, and how samples become windows. NumPy."""
