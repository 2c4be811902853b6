"""What operators see: waits, history, metrics, device lists."""
