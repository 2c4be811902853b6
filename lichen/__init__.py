"""The front door: the ``lichen`` command, demo, simulation, benchmarks. May import everything, lazily."""
