"""A simulated network and broker, with message faults."""
