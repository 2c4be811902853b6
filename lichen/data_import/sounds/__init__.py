"""Sound files: their samples, and another rate."""
