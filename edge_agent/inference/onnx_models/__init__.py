"""ONNX models on the device: which may be opened, and how they run."""
