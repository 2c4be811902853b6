"""The agent on the device: collect, judge quality, learn, send, infer, deploy (docs/architecture.md)."""

import os

# ONNX Runtime's wheels send telemetry to their vendor unless this is set before the library is loaded.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# An agent multiplies no large matrices; a thread for each core would cost memory and prevent a fork.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
