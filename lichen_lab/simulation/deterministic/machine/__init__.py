"""A simulated machine: clock, event loop, disk, processes."""
