"""From a trained network to a signed-off ONNX bundle: graph, parity gate, pack. Runs in a child process."""
