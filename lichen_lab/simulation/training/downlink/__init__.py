"""The way of versions to simulated devices."""
