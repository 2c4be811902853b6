"""Benchmarks of the agent, the wire and inference."""
