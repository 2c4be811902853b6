"""Execution providers of ONNX Runtime beside the CPU: found, allowed, compiled for, and cached."""
