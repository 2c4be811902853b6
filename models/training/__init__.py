"""Local training, and its evaluation."""
