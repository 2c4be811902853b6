"""Frozen backbones: ONNX files in front of a modality's encoder, checked, run, and applied to windows."""
