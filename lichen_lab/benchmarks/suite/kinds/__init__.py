"""Benchmarks of fleets that see images or hear sound."""
