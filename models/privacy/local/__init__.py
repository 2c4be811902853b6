"""Local differential privacy of training: DP-SGD on the device, and its account."""
