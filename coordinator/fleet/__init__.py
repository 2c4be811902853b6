"""Facts about devices: states, requirements, serving routes."""
