"""The ``lichen`` command and the client for predictions. Imports the packages below lazily."""

import os

# ONNX Runtime's wheels send usage data to their maker unless this is set before the library is loaded.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
