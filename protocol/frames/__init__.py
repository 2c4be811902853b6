"""Update frames: CBOR, tensors, quantization, chunks."""
