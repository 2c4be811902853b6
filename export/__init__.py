"""From a trained network to a bundle: ONNX model, parity gate, pack. Runs in a child process."""

import os

# ONNX Runtime's wheels send usage data to their maker unless this is set before the library is loaded.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
