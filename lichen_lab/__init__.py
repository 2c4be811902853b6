"""Simulation, benchmarks and demos of lichen; no device carries it."""
