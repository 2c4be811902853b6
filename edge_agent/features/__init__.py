"""Features of windows, by ONNX models in processes of their own: of encoder models, and of backbones."""
