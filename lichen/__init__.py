"""The front door: the ``lichen`` command, demo, simulation, benchmarks. May import everything, lazily."""

import os

# ONNX Runtime's wheels send usage data to their maker unless this is set before the library is loaded.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
