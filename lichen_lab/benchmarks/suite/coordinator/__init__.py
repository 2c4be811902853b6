"""Benchmarks of the coordinator."""
