"""Benchmarks: one module each, found by folder. ``lichen bench NAME`` or ``lichen bench all``."""
