"""Windows as training data."""
