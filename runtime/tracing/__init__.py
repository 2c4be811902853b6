"""Traces of updates, from windows to predictions (docs/tracing.md). Off: nothing is imported."""
