"""Status for operators: waits, history, metrics, device lists."""
