"""The agent on the device: collect, judge quality, learn, send, infer, deploy (DESIGN sections 4 to 6)."""
