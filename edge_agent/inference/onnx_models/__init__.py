"""ONNX models on the device: what may be opened, and how it is asked."""
